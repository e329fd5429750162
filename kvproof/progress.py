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

from kvproof.check import Limits
from kvproof.explore import Chunk, Outcome, Progress, Result, explore
from kvproof.graph import Column, Cycle, Cycles, Graph, Labels, Numbers
from kvproof.lasso import Lasso, lasso
from kvproof.scheduler_system import SchedulerSystem
from kvproof.system import Words
from model.jit import kernel
from model.record import at
from spec import progress
from spec.invariants import Id
from spec.progress import ENGINE, MOVES, PASSES, PREEMPTS, STEP, Property
from spec.scope import Scope

Masks = NDArray[np.uint16]

_NOT_REACHED = 2**32 - 1


@kernel
def _look_at_states(rows, like, c, due, transfers, waiting):
    """Fill the masks of each state; returns how many states cut their runs short."""
    cut = 0
    for m in range(rows.shape[0]):
        s = at(like, rows, m)
        transfers[m] = progress.in_transfer(s, c)
        waiting[m] = progress.waiting(s, c)
        due[m] = 0
        if progress.is_cut(s):
            cut += 1
        else:
            due[m] = progress.due(s, c)
    return cut


@kernel
def _look_at_steps(rows, successors, like, c, e, parent, action, labels, goes_on, passed):
    """Fill the label of each transition and what it passes; note the states that have one."""
    passes = 0
    for k in range(successors.shape[0]):
        before = at(like, rows, parent[k])
        after = at(like, successors, k)
        labels[k] = progress.label(before, after, c, e, action[k])
        if labels[k] & ENGINE:
            goes_on[parent[k]] = True
        if labels[k] & PASSES:
            passed[passes] = progress.passed(before, after, c)
            passes += 1
    return passes


@kernel
def _pass_often(ends, targets, passes, waits, limit, came_by):
    """Follow the runs that pass one request; returns the most passes, and a state that has them.

    came_by[n, s] is the transition by which state s was reached with n + 1 passes. The search ends
    with the first that come to `limit`.
    """
    states = waits.shape[0]
    queue = np.empty(states * limit, np.int64)
    read = 0
    written = 0
    most = 0
    where = 0
    for source in range(states):
        # First what is reached by more passes from here; a state waits in the queue at most
        # once for each number of passes.
        for k in range(ends[source], ends[source + 1]):
            if passes[k] and targets[k] < states and waits[targets[k]]:
                if came_by[0, targets[k]] == _NOT_REACHED:
                    came_by[0, targets[k]] = k
                    queue[written] = targets[k]
                    written += 1
        while read < written:
            number = queue[read] // states
            state = queue[read] % states
            read += 1
            if number + 1 > most:
                most = number + 1
                where = state
                if most == limit:
                    return most, where
            for k in range(ends[state], ends[state + 1]):
                target = targets[k]
                following = number + 1 if passes[k] else number
                if target < states and waits[target]:
                    if came_by[following, target] == _NOT_REACHED:
                        came_by[following, target] = k
                        queue[written] = following * states + target
                        written += 1
    return most, where


class _Recorder:
    """Keeps the graph of a search, chunk by chunk, and notes its first dead end."""

    def __init__(self, system: SchedulerSystem) -> None:
        self._system = system
        self._report = system.compiled.new_report()
        self._like = system.compiled.state.new()
        self.graph = Graph()
        self.due = Column(np.uint16)
        self.transfers = Column(np.uint16)
        self.waiting = Column(np.uint16)
        self.cut = 0
        self.dead_end: int | None = None
        self.passing = Column(np.uint32)
        self.passed = Column(np.uint16)

    def __call__(self, chunk: Chunk) -> None:
        states, steps = len(chunk.rows), len(chunk.action)
        c = self._system.compiled.c
        due, transfers, waiting = (np.empty(states, np.uint16) for _ in range(3))
        self.cut += _look_at_states(chunk.rows, self._like, c, due, transfers, waiting)
        labels, passed = np.empty(steps, np.uint8), np.empty(steps, np.uint16)
        goes_on = np.zeros(states, np.bool_)
        passes = _look_at_steps(
            chunk.rows,
            chunk.successors,
            self._like,
            c,
            self._report,
            chunk.parent,
            chunk.action,
            labels,
            goes_on,
            passed,
        )
        if self.dead_end is None and (stays := (due != 0) & ~goes_on).any():
            self.dead_end = chunk.first + int(np.argmax(stays))
        if passes:
            first = self.graph.edges
            self.passing.extend((first + np.flatnonzero(labels & PASSES)).astype(np.uint32))
            self.passed.extend(passed[:passes])
        self.due.extend(due)
        self.transfers.extend(transfers)
        self.waiting.extend(waiting)
        self.graph.extend(states, chunk.parent, chunk.target, labels)

    @property
    def nbytes(self) -> int:
        """Memory of the graph and all that is kept with it."""
        columns = (self.due, self.transfers, self.waiting, self.passing, self.passed)
        return self.graph.nbytes + sum(column.nbytes for column in columns)


@dataclass(frozen=True)
class ProgressCheck:
    """What a progress check found and what it looked at.

    `lassos` has the shortest stem to each property that is broken. `due_states` had work pending;
    `cut_states` end in an assertion or a wrong token, where vLLM ends too. `cycles` are components
    in which the engine can go round, `fair_cycles` those in which it can do so for ever with every
    transfer ending. `passes` are calls of schedule that pass a waiting request, `most_passes` the
    most that one request is passed while it waits. Seconds leave compilation out.
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
    def outcome(self) -> Outcome:
        """Progress is claimed only where every run was followed to its end."""
        if self.lassos:
            return "violated"
        return "bounded" if self.short_because else "holds"

    @property
    def short_because(self) -> str:
        """Why runs were cut short; empty where none was."""
        if self.result.outcome == "bounded":
            return f"the search ended early ({self.result.reason})"
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


def check_progress(
    scope: Scope,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    *,
    rename: bool = True,
    show: Callable[[Progress], None] | None = None,
) -> ProgressCheck:
    """Search a scope past every broken invariant and look for runs that get nowhere."""
    system = SchedulerSystem(scope, rename=rename, ignore=frozenset(Id))
    recorder = _Recorder(system)
    result = explore(
        system,
        max_states=limits.states,
        max_memory=limits.memory,
        max_seconds=limits.seconds,
        progress=show,
        observe=recorder,
    )
    return _Analysis(scope, result, recorder).check()


class _Analysis:
    """The graph pass over a finished search."""

    def __init__(self, scope: Scope, result: Result, recorder: _Recorder) -> None:
        self.scope = scope
        self.result = result
        self.recorder = recorder
        self.graph = recorder.graph
        self.due: Masks = recorder.due.values
        self.transfers: Masks = recorder.transfers.values

    def check(self) -> ProgressCheck:
        _warm_up()
        started = time.perf_counter()
        around = Cycles(self.graph, ENGINE, ENGINE)
        idle = Cycles(self.graph, ENGINE | MOVES, ENGINE) if around.found else around
        stuck = self._first(idle, self._is_fair)
        preempting = self._first(around, lambda cycle: bool(cycle.labels & PREEMPTS))
        busy = self._first(around, lambda c: self._is_fair(c) and bool(c.labels & MOVES))
        most, passing_run = self._overtaking()
        seconds = time.perf_counter() - started
        found = [
            self._dead_end(),
            self._around(Property.NothingStuck, idle, stuck, STEP),
            self._around(Property.NoPreemptionCycle, around, preempting, PREEMPTS),
            self._around(None, around, busy, MOVES),
            passing_run and self._lasso((Property.BoundedOvertaking,), *passing_run),
        ]
        lassos: list[Lasso] = []
        for one in found:
            # A preempting cycle may be the busy one too.
            if one and not any(one.rounds(1) == other.rounds(1) for other in lassos):
                lassos.append(one)
        return ProgressCheck(
            scope=self.scope,
            result=self.result,
            lassos=tuple(lassos),
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

    def _is_fair(self, cycle: Cycle) -> bool:
        return self._under_way(cycle) == 0 and bool(cycle.labels & STEP)

    def _under_way(self, cycle: Cycle) -> int:
        """Mask of the requests whose transfer does not end anywhere on the cycle."""
        return int(np.bitwise_and.reduce(self.transfers[cycle.states]))

    def _first(self, cycles: Cycles, is_bad: Callable[[Cycle], bool]) -> Cycle | None:
        """The bad cycle, with something due all the way, that a run reaches soonest."""
        bad = [
            cycle
            for cycle in cycles.found
            if is_bad(cycle) and np.bitwise_and.reduce(self.due[cycle.states])
        ]
        return min(bad, key=lambda cycle: int(cycle.states[0]), default=None)

    def _around(
        self, broken: Property | None, cycles: Cycles, cycle: Cycle | None, label: int
    ) -> Lasso | None:
        """The lasso to a cycle's first state, whose loop takes a transition of the given label.

        Every transfer that can end on the cycle ends on the loop; if all do, the loop is fair, and
        nobody finishes.
        """
        if cycle is None:
            return None
        properties = () if broken is None else (broken,)
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
        places = tuple(map(self._place, then)), tuple(map(self._place, loop))
        return lasso(self.scope, broken, stem, *places)

    def _source(self, transition: int) -> int:
        return int(np.searchsorted(self.graph.ends, transition, side="right")) - 1

    def _place(self, transition: int) -> int:
        """Place of a transition among those of its state."""
        return transition - int(self.graph.ends[self._source(transition)])

    def _overtaking(self) -> tuple[int, tuple[int, list[int]] | None]:
        """The most passes of a waiting request, and where a run that has too many leads from."""
        passing = self.recorder.passing.values
        passed: Masks = self.recorder.passed.values
        most = 0
        for r in range(len(self.scope.requests)):
            of_r = passing[(passed >> r & 1) != 0]
            if len(of_r) == 0:
                continue
            passes = np.zeros(self.graph.edges, np.bool_)
            passes[of_r] = True
            waits = (self.recorder.waiting.values >> r & 1) != 0
            limit = progress.most_passes(self.scope, r) + 1
            came_by = np.full((limit, self.graph.states), _NOT_REACHED, np.uint32)
            often, state = _pass_often(
                self.graph.ends, self.graph.targets, passes, waits, limit, came_by
            )
            most = max(most, int(often))
            if often == limit:
                return most, self._passing_run(limit, int(state), came_by, passes)
        return most, None

    def _passing_run(
        self, number: int, state: int, came_by: Numbers, passes: NDArray[np.bool_]
    ) -> tuple[int, list[int]]:
        """A state before the first pass, and the transitions up to the last one."""
        walk: list[int] = []
        while number > 0:
            transition = int(came_by[number - 1, state])
            walk.append(transition)
            state = self._source(transition)
            number -= int(passes[transition])
        return state, walk[::-1]


def _warm_up() -> None:
    """Compile what the graph pass uses before its clock runs."""
    empty = Graph()
    Cycles(empty, ENGINE, ENGINE)
    none = np.zeros(0, np.bool_)
    _pass_often(empty.ends, empty.targets, none, none, 1, np.zeros((1, 0), np.uint32))
