"""What invariants answer with, what they work in, and what several of them need."""

from __future__ import annotations

import numpy as np

from kvproof.native.jit import kernel
from kvproof.native.record import Field, Schema

VACUOUS = 0
HOLDS = 1
BROKEN = 2

WORKSPACE = Schema(
    "workspace",
    np.int32,
    (
        Field("tested", ("I",), "0..", "times each invariant was put to the test"),
        Field("holders", ("B",), "0..", "holders of each block"),
        Field("kv_later", ("B", "S"), "0..P-1", "the KV after the steps in flight have run"),
        Field("accepted", ("R",), "0..k", "what the device reads of a report: drafts accepted"),
        Field("load_fails", ("R",), "0..N", "1 + block of a synchronous load that fails"),
        Field("behind", ("R",), "0..D*k", "positions that a step moves back"),
        Field("misread", ("R",), "0..1", "a step read KV of another prefix"),
    ),
)
"""Room for the kernels of invariants. Only `tested` is kept from one question to the next."""


@kernel
def verdict(holds):
    """HOLDS or BROKEN."""
    return HOLDS if holds else BROKEN


@kernel
def count(queue, length, r):
    """Times that request r stands in a queue."""
    times = 0
    for i in range(length):
        if queue[i] == r + 1:
            times += 1
    return times
