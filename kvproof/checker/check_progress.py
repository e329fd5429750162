"""Progress: search a scope, keep its graph, and look for runs that never get anywhere.

Dead ends show while the search goes on. The rest are cycles: components of the graph of what the
engine and its devices do by themselves. Transfers are the only actions beside the engine's steps
that a cycle must not put off for ever, and one that is under way stays so until it ends; so a
component has a fair cycle exactly if no transfer is under way in all of its states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.checker.check import Limits, too_small
from kvproof.checker.known import known_hang
from kvproof.checker.recorder import Recorder
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.scope import Scope
from kvproof.search.explore import Outcome, Result, SoFar, explore
from kvproof.search.graph import Cycle, Cycles, Graph, most_counted
from kvproof.shown import Shown
from kvproof.spec import progress
from kvproof.spec.masks import Id
from kvproof.spec.progress import Property
from kvproof.spec.progress_labels import ENGINE, MOVES, PREEMPTS, STEP
from kvproof.trace.identify import identity_of_lasso
from kvproof.trace.lasso import Lasso, lasso
from kvproof.trace.trace import dumps

Masks = NDArray[np.uint16]


@dataclass(frozen=True)
class ProgressCheck(Shown):
    """What a progress check found and what it looked at.

    `lassos` has one of shortest stem for each property that is broken, but for BoundedOvertaking,
    where it is the first run met. `due_states` had work pending; `cut_states` end in an assertion
    or a wrong token, where vLLM ends too. `cycles` are components in which the engine can go round,
    `fair_cycles` those in which it can do so for ever with every transfer ending. `passes` are
    calls of schedule that pass a waiting request, `most_passes` the most that one request is passed
    while it waits. Seconds leave compilation out.
    """

    scope: Scope
    result: Result
    lassos: tuple[Lasso, ...]
    due_states: int
    cut_states: int
    cycles: int
    cycle_states: int
    fair_cycles: int
    passes: int
    most_passes: int
    graph_bytes: int
    graph_seconds: float

    @property
    def headline(self) -> str:
        """What came out and what was looked at, in three lines."""
        result = self.result
        why = f" ({self.short_because}: progress is not claimed)" if self.short_because else ""
        broken = "; ".join(map(_told, self.lassos)) or "nothing"
        if not self.due_states:
            broken = "nothing, but nothing was due anywhere: this scope says nothing about progress"
        return "\n".join(
            (
                f"progress {self.outcome}{why}  {result.states:,} states, "
                f"{result.transitions:,} transitions, {result.seconds:.2f} s search, "
                f"{self.graph_seconds:.2f} s graph, {self.bytes_per_edge:.1f} bytes an edge",
                f"  work pending in {self.due_states:,} states; {self.cycles:,} cycles of the "
                f"engine examined, of {self.cycle_states:,} states, {self.fair_cycles:,} of them "
                f"fair; {self.passes:,} calls pass a waiting request, one at most "
                f"{self.most_passes} times",
                f"  broken: {broken}",
            )
        )

    def __str__(self) -> str:
        return "\n\n".join([f"{self.scope.name}: {self.headline}", *map(str, self.lassos)])

    @property
    def outcome(self) -> Outcome:
        """Progress is claimed only where every run was followed to its end."""
        if self.lassos:
            return "violated"
        return "bounded" if self.short_because else "holds"

    @property
    def short_because(self) -> str:
        """Why runs were cut short; empty where none was."""
        if self.result.outcome == "bounded":
            need = too_small(self.result)
            return f"the search ended early ({self.result.reason}){need and f'; {need}'}"
        if self.cut_states:
            return f"{self.cut_states:,} states end in an assertion or a wrong token"
        return ""

    @property
    def seconds(self) -> float:
        """Search and graph pass together."""
        return self.result.seconds + self.graph_seconds

    @property
    def bytes_per_edge(self) -> float:
        """Memory of the graph, what is kept for each state included, by transitions."""
        return self.graph_bytes / max(self.result.transitions, 1)


def _told(found: Lasso) -> str:
    """What a lasso breaks, and the open finding that it is, if it is one."""
    names = ", ".join(found.broken)
    scope = found.scope
    hang = None if scope.rules_off else known_hang(identity_of_lasso(found), scope.mends)
    return names if hang is None else f"{names} (docs/progress.md: {hang.id})"


def check_progress(
    scope: Scope,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    *,
    rename: bool = True,
    most: int = 1,
    watch: Callable[[SoFar], None] | None = None,
) -> ProgressCheck:
    """Search a scope past every broken invariant and look for runs that get nowhere.

    At most `most` cycles that break a property are reported for each, the soonest first.
    """
    system = SchedulerSystem(scope, rename=rename, ignore=frozenset(Id))
    recorder = Recorder(system)
    result = explore(
        system,
        max_states=limits.states,
        max_process=limits.memory,
        max_seconds=limits.seconds,
        watch=watch,
        observe=recorder,
    )
    return _Analysis(scope, result, recorder, most).check()


class _Analysis:
    """The graph pass over a finished search."""

    def __init__(self, scope: Scope, result: Result, recorder: Recorder, most: int) -> None:
        self.scope = scope
        self.result = result
        self.recorder = recorder
        self.most = most
        self.graph = recorder.graph
        self.due: Masks = recorder.due.values
        self.transfers: Masks = recorder.transfers.values

    def check(self) -> ProgressCheck:
        _warm_up()
        started = time.perf_counter()
        around = Cycles(self.graph, ENGINE, ENGINE)
        idle = Cycles(self.graph, ENGINE | MOVES, ENGINE) if around.found else around
        stuck = self._bad(idle, self._is_fair)
        preempting = self._bad(around, lambda cycle: bool(cycle.labels & PREEMPTS))
        busy = self._bad(around, lambda c: self._is_fair(c) and bool(c.labels & MOVES))
        most, passing_run = self._overtaking()
        seconds = time.perf_counter() - started
        found = [
            self._dead_end(),
            *(self._around(Property.NothingStuck, idle, cycle, STEP) for cycle in stuck),
            *(self._around(Property.NoPreemptionCycle, around, c, PREEMPTS) for c in preempting),
            *(self._around(None, around, cycle, MOVES) for cycle in busy),
            self._passed_too_often(passing_run),
        ]
        lassos: dict[bytes, Lasso] = {}
        for one in found:
            # A preempting cycle may be a busy one too.
            if one is not None:
                lassos.setdefault(dumps(one.rounds(1)), one)
        return ProgressCheck(
            scope=self.scope,
            result=self.result,
            lassos=tuple(lassos.values()),
            due_states=int(np.count_nonzero(self.due)),
            cut_states=self.recorder.cut,
            cycles=len(around.found),
            cycle_states=sum(len(cycle.states) for cycle in around.found),
            fair_cycles=sum(map(self._is_fair, around.found)),
            passes=len(self.recorder.passing),
            most_passes=most,
            graph_bytes=self.recorder.nbytes,
            graph_seconds=seconds,
        )

    def _dead_end(self) -> Lasso | None:
        state = self.recorder.dead_end
        if state is None:
            return None
        return self._lasso((Property.NoDeadEnd, Property.EveryRequestFinishes), state)

    def _passed_too_often(self, run: tuple[int, ...]) -> Lasso | None:
        if not run:
            return None
        return self._lasso((Property.BoundedOvertaking,), self.graph.source(run[0]), then=run)

    def _is_fair(self, cycle: Cycle) -> bool:
        return self._under_way(cycle) == 0 and bool(cycle.labels & STEP)

    def _under_way(self, cycle: Cycle) -> int:
        """Mask of the requests whose transfer does not end anywhere on the cycle."""
        return int(np.bitwise_and.reduce(self.transfers[cycle.states]))

    def _bad(self, cycles: Cycles, is_bad: Callable[[Cycle], bool]) -> list[Cycle]:
        """The first bad cycles, with something due all the way, that a run reaches."""
        bad = [
            cycle
            for cycle in cycles.found
            if is_bad(cycle) and np.bitwise_and.reduce(self.due[cycle.states])
        ]
        return sorted(bad, key=lambda cycle: int(cycle.states[0]))[: self.most]

    def _around(self, broken: Property | None, cycles: Cycles, cycle: Cycle, label: int) -> Lasso:
        """The lasso to a cycle's first state, whose loop takes a transition of the given label.

        Every transfer that can end on the cycle ends on the loop; if all do, the loop is fair, and
        nobody finishes.
        """
        properties: tuple[Property, ...] = () if broken is None else (broken,)
        if self._is_fair(cycle):
            properties += (Property.EveryRequestFinishes,)
        first = int(cycle.states[0])
        requests = (1 << len(self.scope.requests)) - 1
        takes = requests + 1
        goals = takes | (int(self.transfers[first]) & ~self._under_way(cycle))

        def met(transition: int, state: int) -> int:
            ended = requests & ~int(self.transfers[state])
            return ended | (takes if self.graph.labels[transition] & label else 0)

        return self._lasso(properties, first, loop=cycles.walk(cycle, goals, met))

    def _lasso(
        self,
        broken: tuple[Property, ...],
        state: int,
        then: Iterable[int] = (),
        loop: Iterable[int] = (),
    ) -> Lasso:
        """The lasso of the search's path to a state and transitions from there."""
        _row, stem = self.result.store.path_to(state)
        places = tuple(map(self.graph.place, then)), tuple(map(self.graph.place, loop))
        return lasso(self.scope, broken, stem, *places)

    def _overtaking(self) -> tuple[int, tuple[int, ...]]:
        """The most passes of a waiting request, and a run that passes one too often, if any."""
        passing = self.recorder.passing.values
        passed = self.recorder.passed.values
        most = 0
        for r in range(len(self.scope.requests)):
            of_r = passing[(passed >> r & 1) != 0]
            if len(of_r) == 0:
                continue
            passes = np.zeros(self.graph.edges, np.bool_)
            passes[of_r] = True
            waits = (self.recorder.waiting.values >> r & 1) != 0
            limit = progress.most_passes(self.scope, r) + 1
            often, run = most_counted(self.graph, passes, waits, limit)
            most = max(most, often)
            if often == limit:
                return most, run
        return most, ()


def _warm_up() -> None:
    """Compile what the graph pass uses before its clock runs."""
    empty = Graph()
    Cycles(empty, ENGINE, ENGINE)
    none = np.zeros(0, np.bool_)
    most_counted(empty, none, none, 1)
