"""The model of a scope as a system to search, with its invariants and its coverage."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvproof.actions import max_actions
from kvproof.symmetry import rename_blocks
from kvproof.system import Successors, Words
from model import engine
from model.compiled import Compiled, compile_scope
from model.jit import kernel
from model.record import at
from model.state import Branch
from spec import invariants
from spec.scope import Scope


@kernel
def _copy(source, i, target, j):
    for k in range(source.shape[1]):
        target[j, k] = source[i, k]


@kernel
def _expand(rows, like, c, e, rename, actions, work, out_rows, parent, action, broken, kinds):
    """All successors of the rows, canonical where `rename`; returns how many."""
    n = 0
    for m in range(rows.shape[0]):
        before = at(like, rows, m)
        for k in range(engine.enabled_actions(before, c, actions)):
            _copy(rows, m, work, 0)
            after = at(like, work, 0)
            engine.apply(after, c, e, actions[k])
            broken[n] = invariants.check_step(before, after, c, e, actions[k])
            _copy(work, 0, out_rows, n)
            if rename:
                rename_blocks(after, at(like, out_rows, n), c, e)
            parent[n] = m
            action[n] = actions[k]
            kinds[engine.kind_of(actions[k])] += 1
            n += 1
    return n


@kernel
def _check(rows, like, c, e, broken):
    for m in range(rows.shape[0]):
        broken[m] = invariants.check_state(at(like, rows, m), c, e)


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
        ignore: frozenset[invariants.Id] = frozenset(),
    ) -> None:
        self.compiled = scope if isinstance(scope, Compiled) else compile_scope(scope)
        self.scope = self.compiled.scope
        self.rename = rename
        self.name = self.scope.name
        self.words = self.compiled.state.words
        self.max_successors = max_actions(self.scope)
        self.invariants = tuple(identity.name for identity in invariants.Id)
        self._looked_at = np.uint64(sum(1 << i for i in invariants.Id if i not in ignore))
        self._report = self.compiled.new_report()
        self._like = self.compiled.state.new()
        self._actions: NDArray[np.int32] = np.zeros(self.max_successors, np.int32)
        self._work: Words = np.zeros((1, self.words), np.uint64)
        self._kinds: NDArray[np.int64] = np.zeros(len(engine.Kind), np.int64)
        self._branches: NDArray[np.int64] = np.zeros(len(Branch), np.int64)
        self._tested: NDArray[np.int64] = np.zeros(len(invariants.Id), np.int64)

    def initial(self) -> Words:
        """The state of a fresh engine."""
        row: Words = self.compiled.initial().row
        return row.reshape(1, -1)

    def expand(self, rows: Words, out: Successors) -> int:
        """Every successor of every row."""
        count = _expand(
            rows,
            self._like,
            self.compiled.c,
            self._report,
            self.rename,
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
        _check(rows, self._like, self.compiled.c, self._report, broken)
        self._mask(rows, broken)
        self._flush()

    def _mask(self, rows: Words, broken: Words) -> None:
        """Drop what is not looked at."""
        broken &= self._looked_at
        if not int(self._looked_at) >> invariants.Id.NoAssertion & 1:
            place, _end, _shape = self.compiled.state.places["assertion"]
            broken[rows.view(np.int16)[:, place] != 0] = 0

    def describe(self, action: int) -> str:
        """The action in words."""
        return f"{engine.Kind(action % engine.KINDS).name.lower()}({action // engine.KINDS})"

    def _flush(self) -> None:
        """Move the report's counters, which are narrow, to wide ones."""
        self._branches += self._report.branches
        self._report.branches[:] = 0
        self._tested += self._report.tested[: len(self._tested)]
        self._report.tested[:] = 0

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
        return {identity.name: int(self._tested[identity]) for identity in invariants.Id}
