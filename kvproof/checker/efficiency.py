"""Efficiency beside a search: the steps that miss a property, and a shortest run to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.checker.expand import look_at_efficiency
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.scope import Scope
from kvproof.search.explore import Result
from kvproof.search.system import Successors, Words
from kvproof.spec.masks import Efficiency, Id
from kvproof.trace.trace import Trace, from_codes


@dataclass(frozen=True)
class Measured:
    """One property: the steps that put it to the test, those that miss it, a shortest run to one.

    The run names no invariant: none is broken by it.
    """

    name: str
    tested: int
    missed: int
    trace: Trace | None


class EfficiencySystem(SchedulerSystem):
    """A scope's model whose steps are asked for efficiency too, which breaks nothing."""

    def __init__(self, scope: Scope, *, rename: bool, ignore: frozenset[Id]) -> None:
        super().__init__(scope, rename=rename, ignore=ignore)
        # A report of its own: the steps that are taken once more count no branch twice.
        self._again = self.compiled.new_report()
        self._times: NDArray[np.int64] = np.zeros(len(Efficiency), np.int64)
        self._missed: NDArray[np.int64] = np.zeros(len(Efficiency), np.int64)
        self._first: dict[Efficiency, tuple[int, int]] = {}
        # The search numbers states in the order in which it expands them.
        self._expanded = 0

    def expand(self, rows: Words, out: Successors) -> int:
        """Every successor of every row."""
        count = super().expand(rows, out)
        missed = np.zeros(count, np.int64)
        look_at_efficiency(
            rows,
            self._like,
            self.compiled.c,
            self._again,
            self._work,
            out.parent[:count],
            out.action[:count],
            self._times,
            missed,
        )
        for one in Efficiency:
            (steps,) = np.nonzero(missed >> one & 1)
            self._missed[one] += len(steps)
            if len(steps) and one not in self._first:
                parent = self._expanded + int(out.parent[steps[0]])
                self._first[one] = parent, int(out.action[steps[0]])
        self._expanded += len(rows)
        return count

    def measured(self, result: Result) -> tuple[Measured, ...]:
        """What was measured on the way to a result of this system's search."""
        return tuple(
            Measured(
                one.name, int(self._times[one]), int(self._missed[one]), self._trace(result, one)
            )
            for one in Efficiency
        )

    def _trace(self, result: Result, one: Efficiency) -> Trace | None:
        if one not in self._first:
            return None
        parent, code = self._first[one]
        return from_codes(self.scope, (*result.store.path_to(parent)[1], code), ())
