"""Every distinct violation of a scope in one search, not only the first.

A run ends where an invariant first falls: what follows from a violation is not another one. The
search goes on with all other runs, so that one violation does not hide the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.search.explore import Result, SoFar, explore
from kvproof.search.system import Successors, Words
from kvproof.trace.trace import Trace, from_codes, names_of


def collect(
    system: SchedulerSystem,
    *,
    max_states: int | None = None,
    max_seconds: float | None = None,
    watch: Callable[[SoFar], None] | None = None,
) -> tuple[Result, tuple[Trace, ...]]:
    """Search on past every violation; returns one run to each distinct one, shortest first.

    Two are the same if the same invariants fall at the same kind of action with the same
    assertion. The result's outcome is "holds" or "bounded", and says only whether every run was
    followed to its end or its first violation. What the system ignores is not a violation.
    """
    collector = _Collector(system)
    result = explore(collector, max_states=max_states, max_seconds=max_seconds, watch=watch)
    return result, collector.violations(result)


class _Collector:
    """A system without violations: those of `system` are noted, and have no successors."""

    def __init__(self, system: SchedulerSystem) -> None:
        self._system = system
        self.name = system.name
        self.words = system.words
        self.max_successors = system.max_successors
        self.invariants = system.invariants
        self._assertion_cell = system.compiled.state.places["assertion"][0]
        # The search numbers states in the order in which it checks and expands them.
        self._checked = 0
        self._expanded = 0
        self._ended: deque[int] = deque()
        self._broken_states: list[tuple[int, int, int]] = []
        self._broken_steps: list[tuple[int, int, int, int]] = []

    def initial(self) -> Words:
        return self._system.initial()

    def describe(self, action: int) -> str:
        return self._system.describe(action)

    def expand(self, rows: Words, out: Successors) -> int:
        first = self._expanded
        self._expanded += len(rows)
        ended = []
        while self._ended and self._ended[0] < self._expanded:
            ended.append(self._ended.popleft() - first)
        going_on = np.delete(np.arange(len(rows), dtype=np.int32), ended)
        if ended:
            rows = np.ascontiguousarray(rows[going_on])
        count = self._system.expand(rows, out)
        if ended:
            out.parent[:count] = going_on[out.parent[:count]]
        (bad,) = np.nonzero(out.broken[:count])
        if len(bad) == 0:
            return count
        broken = self._with_states(out.rows[bad], out.broken[bad])
        parents = first + out.parent[bad]
        assertions = self._assertions(out.rows[bad])
        self._broken_steps += zip(
            parents.tolist(),
            out.action[bad].tolist(),
            broken.tolist(),
            assertions.tolist(),
            strict=True,
        )
        kept = np.delete(np.arange(count), bad)
        for array in (out.rows, out.parent, out.action):
            array[: len(kept)] = array[kept]
        out.broken[:count] = 0
        return len(kept)

    def check(self, rows: Words, broken: Words) -> None:
        first = self._checked
        self._checked += len(rows)
        self._system.check(rows, broken)
        (bad,) = np.nonzero(broken)
        numbers = (first + bad).tolist()
        self._ended.extend(numbers)
        self._broken_states += zip(
            numbers, broken[bad].tolist(), self._assertions(rows[bad]).tolist(), strict=True
        )
        broken[:] = 0

    def _with_states(self, rows: Words, broken: Words) -> Words:
        """The broken of each transition with what the state at its end breaks."""
        of_state = np.zeros(len(rows), np.uint64)
        self._system.check(rows, of_state)
        both: Words = broken | of_state
        return both

    def _assertions(self, rows: Words) -> NDArray[np.int16]:
        cells: NDArray[np.int16] = rows.view(self._system.compiled.state.schema.cell)
        return cells[:, self._assertion_cell]

    def violations(self, result: Result) -> tuple[Trace, ...]:
        store = result.store
        steps = self._broken_steps + [
            (int(store.parents[number]), int(store.actions[number]), mask, assertion)
            for number, mask, assertion in self._broken_states
        ]
        seen = set()
        found = []
        for parent, code, mask, assertion in sorted(steps):
            same = mask, code % engine.KINDS, assertion
            if same not in seen:
                seen.add(same)
                codes = (*store.path_to(parent)[1], code)
                found.append(from_codes(self._system.scope, codes, names_of(mask)))
        return tuple(found)
