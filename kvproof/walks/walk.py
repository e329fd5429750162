"""Random runs of the model in compiled code, plain or drawn towards rare transitions.

A plain walk takes any enabled call, all equally likely, and any answer of the device. A guided one
tries a call of each kind, looks at what it does (the branches of the scheduler that it takes and
where the pipeline and the pool stand then), and prefers what was seen least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.model import engine
from kvproof.model.bounds import max_calls
from kvproof.model.compiled import Compiled
from kvproof.native.record import Record, at
from kvproof.search.system import Words
from kvproof.spec import masks
from kvproof.trace.trace import names_of, step
from kvproof.walks.walking import BRANCHES, CURRENT, PRIME, ROWS, measure, walk

_FEATURES = 1 << 12

PEAKS = ("shared blocks", "steps in flight", "stale tokens")
"""What is measured in every state; a walk keeps the most of each."""


@dataclass(frozen=True)
class Walked:
    """A walk: the codes of its actions and the names of the invariants that fall at the last."""

    codes: tuple[int, ...]
    broken: tuple[str, ...]


class Walker:
    """One run of a scope, walked in pieces; its state moves along.

    What was seen counts from the start of the run, so that a run is a function of its scope and
    its seeds; `actions` and `branches` count what occurred, `peaks` has the most of each of PEAKS.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self._seen: NDArray[np.int64] = np.zeros(_FEATURES, np.int64)
        self.actions: NDArray[np.int64] = np.zeros(len(engine.Kind), np.int64)
        self.branches: NDArray[np.int64] = np.zeros(BRANCHES, np.int64)
        self.peaks: NDArray[np.int64] = np.zeros(len(PEAKS), np.int64)
        self._like = compiled.state.new()
        self._report = compiled.new_report()
        self._workspace = masks.new_workspace(compiled.state.sizes)
        self._rows: Words = np.zeros((ROWS, compiled.state.words), np.uint64)
        self._rows[CURRENT] = compiled.initial().row
        self._calls: NDArray[np.int32] = np.zeros(max_calls(compiled.scope), np.int32)
        self._scratch: NDArray[np.int64] = np.zeros(BRANCHES, np.int64)

    @property
    def state(self) -> Record:
        """The state now; reading it only."""
        return at(self._like, self._rows, CURRENT)

    def take(self, code: int) -> tuple[str, ...]:
        """Take one enabled action; returns the names of the invariants that it breaks."""
        after, report, broken = step(self.compiled, self.state, code)
        self._rows[CURRENT] = after.row
        self.actions[code % engine.KINDS] += 1
        self.branches += report.branches
        measure(after, self.compiled.c, self.peaks)
        return names_of(broken)

    def walk(self, steps: int, seed: int, *, guided: bool) -> Walked:
        """Go on by at most `steps` actions, to the first broken invariant or where none follows."""
        codes: NDArray[np.int64] = np.zeros(steps, np.int64)
        rng = np.array([1 + seed % (PRIME - 1)], np.int64)
        taken, broken = walk(
            self._rows,
            self._like,
            self.compiled.c,
            self._report,
            self._workspace,
            self._calls,
            codes,
            self._seen,
            rng,
            guided,
            self.branches,
            self._scratch,
            self.actions,
            self.peaks,
        )
        return Walked(tuple(codes[:taken].tolist()), names_of(int(broken)))

    def report_to(
        self, kinds: NDArray[np.int64], branches: NDArray[np.int64], peaks: NDArray[np.int64]
    ) -> None:
        """Move the counts on to others, and take over the peaks."""
        kinds += self.actions
        branches += self.branches
        np.maximum(peaks, self.peaks, out=peaks)
        self.actions[:] = 0
        self.branches[:] = 0
