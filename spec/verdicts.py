"""Verdicts of invariants, and what several of them need."""

from __future__ import annotations

from kvproof.native.jit import kernel

VACUOUS = 0
HOLDS = 1
BROKEN = 2


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
