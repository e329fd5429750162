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
        Field("tested", ("I",), "times each invariant was put to the test"),
        Field("holders", ("B",), "holders of each block"),
        Field("kv_later", ("B", "S"), "the KV after the steps in flight have run"),
        Field("accepted", ("R",), "what the device reads of a report: drafts accepted"),
        Field("load_fails", ("R",), "1 + block of a synchronous load that fails"),
        Field("behind", ("R",), "positions that a step starts earlier, for rejected drafts"),
        Field("misread", ("R",), "a step read KV of another prefix"),
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
