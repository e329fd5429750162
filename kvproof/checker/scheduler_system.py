"""The model of a scope as a system to search, with its invariants and its coverage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvproof.checker.expand import check_rows, expand
from kvproof.model import engine
from kvproof.model.bounds import max_actions
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.scope import Scope
from kvproof.model.state import Branch
from kvproof.search.system import StepTooLarge, Successors, Words
from kvproof.spec import masks


class SchedulerSystem:
    """One scope's model; `rename` switches the canonical renaming of blocks (see symmetry).

    Invariants in `ignore` are not looked at: the search goes on past a known violation. Where that
    is NoAssertion, nothing is asked of a state after the assertion, which vLLM does not reach.
    """

    def __init__(
        self,
        scope: Scope | Compiled,
        *,
        rename: bool = True,
        ignore: frozenset[masks.Id] = frozenset(),
    ) -> None:
        self.compiled = scope if isinstance(scope, Compiled) else compile_scope(scope)
        self.scope = self.compiled.scope
        self.name = self.scope.name
        self.words = self.compiled.state.words
        self.max_successors = max_actions(self.scope)
        self.invariants = tuple(identity.name for identity in masks.Id)
        self._looked_at = np.uint64(sum(1 << i for i in masks.Id if i not in ignore))
        self._report = self.compiled.new_report()
        self._workspace = masks.new_workspace(self.compiled.state.sizes)
        self._names: NDArray[np.int32] = np.zeros(self.scope.num_blocks * rename, np.int32)
        self._like = self.compiled.state.new()
        try:
            self._actions: NDArray[np.int32] = np.zeros(self.max_successors, np.int32)
        except (MemoryError, ValueError, OverflowError):
            raise StepTooLarge(self.name, self.max_successors, self.words) from None
        self._work: Words = np.zeros((1, self.words), np.uint64)
        self._kinds: NDArray[np.int64] = np.zeros(len(engine.Kind), np.int64)
        self._branches: NDArray[np.int64] = np.zeros(len(Branch), np.int64)
        self._tested: NDArray[np.int64] = np.zeros(len(masks.Id), np.int64)

    def initial(self) -> Words:
        """The state of a fresh engine."""
        row: Words = self.compiled.initial().row
        return row.reshape(1, -1)

    def expand(self, rows: Words, out: Successors) -> int:
        """Every successor of every row."""
        count = expand(
            rows,
            self._like,
            self.compiled.c,
            self._report,
            self._workspace,
            self._names,
            self._actions,
            self._work,
            out.rows,
            out.parent,
            out.action,
            out.broken,
            self._kinds,
        )
        self._mask(out.rows[:count], out.broken[:count])
        self._flush()
        return int(count)

    def check(self, rows: Words, broken: Words) -> None:
        """The state invariants that each row breaks."""
        check_rows(rows, self._like, self.compiled.c, self._workspace, broken)
        self._mask(rows, broken)
        self._flush()

    def _mask(self, rows: Words, broken: Words) -> None:
        """Drop what is not looked at."""
        broken &= self._looked_at
        if not int(self._looked_at) >> masks.Id.NoAssertion & 1:
            place, _end, _shape = self.compiled.state.places["assertion"]
            broken[rows.view(np.int16)[:, place] != 0] = 0

    def describe(self, action: int) -> str:
        """The action in words."""
        return f"{engine.Kind(action % engine.KINDS).name.lower()}({action // engine.KINDS})"

    def _flush(self) -> None:
        """Move the counters of report and workspace, which are narrow, to wide ones."""
        self._branches += self._report.branches
        self._report.branches[:] = 0
        self._tested += self._workspace.tested
        self._workspace.tested[:] = 0

    @property
    def action_counts(self) -> Mapping[str, int]:
        """Transitions of each kind of action."""
        return {kind.name.lower(): int(self._kinds[kind]) for kind in engine.Kind}

    @property
    def branch_counts(self) -> Mapping[str, int]:
        """Times that each branch of the scheduler was taken."""
        return {branch.name: int(self._branches[branch]) for branch in Branch}

    @property
    def tested_counts(self) -> Mapping[str, int]:
        """Times that each invariant was put to the test."""
        return {identity.name: int(self._tested[identity]) for identity in masks.Id}
