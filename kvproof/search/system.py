"""What the search needs to know of a transition system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvproof.errors import KvproofError
from kvproof.native.record import Words as Words

MOST_INVARIANTS = 63
"""Bits of a mask of broken invariants."""


class StepTooLarge(KvproofError, MemoryError):
    """The successors of one state may take more memory than there is; says how much."""

    def __init__(self, name: str, successors: int, words: int) -> None:
        super().__init__(
            f"{name}: a state may have {successors:,} successors, which take "
            f"{successors * Successors(1, words).nbytes / 1e9:,.0f} GB: more than there is"
        )


class Successors:
    """Room for the transitions of one chunk of states; entry k of each array is transition k.

    `rows` (capacity, words) holds the new states, `parent` the row numbers of the states they come
    from, `action` their codes, `broken` a bit for each invariant that the transition breaks.
    `broken` is zero when a system gets it.
    """

    def __init__(self, capacity: int, words: int) -> None:
        self.rows: Words = np.zeros((capacity, words), np.uint64)
        self.parent: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.action: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.broken: Words = np.zeros(capacity, np.uint64)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.rows.nbytes + self.parent.nbytes + self.action.nbytes + self.broken.nbytes


class System(Protocol):
    """A transition system whose states are rows of 64-bit words; equal states are equal rows."""

    @property
    def name(self) -> str:
        """What to call the system in a report."""
        ...

    @property
    def words(self) -> int:
        """The length of a row, at least 1."""
        ...

    @property
    def max_successors(self) -> int:
        """A bound on the successors of one state, at least 1."""
        ...

    @property
    def invariants(self) -> Sequence[str]:
        """Names: entry i belongs to bit i of every mask of broken invariants; at most 63."""
        ...

    def initial(self) -> Words:
        """The initial states, (n, words) with n >= 1."""
        ...

    def expand(self, rows: Words, out: Successors) -> int:
        """Write every successor of every row to `out` and return how many there are.

        `rows` is (m, words) with 0 <= m and m * max_successors <= len(out.rows). The order of the
        successors decides which of several shortest violations is reported.
        """
        ...

    def check(self, rows: Words, broken: Words) -> None:
        """Set in `broken` (m,), zero on entry, the invariants that the states in `rows` break.

        Called once for each state; what only a transition can show belongs in `expand`.
        """
        ...

    def describe(self, action: int) -> str:
        """The action in words, for a trace."""
        ...
