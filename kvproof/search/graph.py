"""State graphs as flat arrays, built during a search, and their strongly connected components."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvproof.native.jit import kernel

Numbers = NDArray[np.uint32]
Labels = NDArray[np.uint8]
Flags = NDArray[np.bool_]
Cell = TypeVar("Cell", np.uint8, np.uint16, np.uint32)

MAX_EDGES = 2**32 - 1
NO_TRANSITION = 2**32 - 1
_GROWTH = 1.5
_FIRST_ROOM = 1024


class Column(Generic[Cell]):
    """An array that grows at its end."""

    def __init__(self, kind: type[Cell]) -> None:
        self._room: NDArray[Cell] = np.empty(_FIRST_ROOM, kind)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Cell]:
        """What was appended so far; a view that is good until the next `extend`."""
        return self._room[: self._count]

    @property
    def nbytes(self) -> int:
        """Memory, room for growth included."""
        return self._room.nbytes

    def extend(self, values: NDArray[Cell]) -> None:
        """Append a copy of the values."""
        count = self._count + len(values)
        if count > len(self._room):
            larger = np.empty(max(count, int(len(self._room) * _GROWTH)), self._room.dtype)
            larger[: self._count] = self.values
            self._room = larger
        self._room[self._count : count] = values
        self._count = count


class Graph:
    """Transitions in the order of a search: those of state 0, of state 1, and so on.

    A transition costs five bytes, target and label, and a state four, where its transitions end.
    Which action a transition is follows from its place: the k-th of a state is the k-th enabled.
    """

    def __init__(self) -> None:
        self._ends = Column(np.uint32)
        self._ends.extend(np.zeros(1, np.uint32))
        self._targets = Column(np.uint32)
        self._labels = Column(np.uint8)

    @property
    def states(self) -> int:
        """States whose transitions are known."""
        return len(self._ends) - 1

    @property
    def edges(self) -> int:
        """Transitions."""
        return len(self._targets)

    @property
    def ends(self) -> Numbers:
        """Transitions of state s are numbered from ends[s] to before ends[s + 1]."""
        return self._ends.values

    @property
    def targets(self) -> Numbers:
        """State that each transition leads to; not all need be expanded."""
        return self._targets.values

    @property
    def labels(self) -> Labels:
        """Label of each transition."""
        return self._labels.values

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return self._ends.nbytes + self._targets.nbytes + self._labels.nbytes

    def source(self, transition: int) -> int:
        """State that a transition starts from."""
        return int(np.searchsorted(self.ends, transition, side="right")) - 1

    def place(self, transition: int) -> int:
        """Place of a transition among those of its state."""
        return transition - int(self.ends[self.source(transition)])

    def extend(
        self, states: int, sources: NDArray[np.int32], targets: Numbers, labels: Labels
    ) -> None:
        """Append the transitions of the next states; sources count from the first of these.

        Raises OverflowError past MAX_EDGES transitions.
        """
        if self.edges + len(targets) > MAX_EDGES:
            raise OverflowError(f"more than {MAX_EDGES:,} transitions; narrow the scope")
        counts = np.bincount(sources, minlength=states)
        self._ends.extend((self.edges + np.cumsum(counts)).astype(np.uint32))
        self._targets.extend(targets)
        self._labels.extend(labels)


@kernel
def _components(
    ends: Numbers, targets: Numbers, labels: Labels, mask: int, wanted: int, number: Numbers
) -> None:
    """Number the components of the transitions whose label masked is as wanted.

    Pearce's form of Tarjan's algorithm: while it works, `number` holds the order of first visits.
    """
    states = len(number)
    is_root = np.ones(states, np.bool_)
    path = np.empty(states, np.uint32)
    cursor = np.empty(states, np.uint32)
    stack = np.empty(states, np.uint32)
    stacked = 0
    order = np.int64(1)
    component = np.int64(states)
    for start in range(states):
        if number[start] != 0:
            continue
        depth = 0
        path[0] = start
        cursor[0] = ends[start]
        number[start] = order
        order += 1
        while depth >= 0:
            state = path[depth]
            k = cursor[depth]
            descends = False
            while k < ends[state + 1]:
                if labels[k] & mask == wanted and targets[k] < states:
                    target = targets[k]
                    if number[target] == 0:
                        descends = True
                        break
                    if number[target] < number[state]:
                        number[state] = number[target]
                        is_root[state] = False
                k += 1
            # A target just visited is looked at again on the way back: its number counts then.
            cursor[depth] = k
            if descends:
                depth += 1
                path[depth] = targets[k]
                cursor[depth] = ends[targets[k]]
                number[targets[k]] = order
                order += 1
                continue
            depth -= 1
            if not is_root[state]:
                stack[stacked] = state
                stacked += 1
                continue
            order -= 1
            while stacked > 0 and number[state] <= number[stack[stacked - 1]]:
                stacked -= 1
                number[stack[stacked]] = component
                order -= 1
            number[state] = component
            component -= 1
    for state in range(states):
        number[state] = states - number[state]


def components(graph: Graph, mask: int, wanted: int) -> Numbers:
    """The component of each state in the graph of the transitions with `label & mask == wanted`.

    Components are numbered from 0 such that transitions lead from higher to lower numbers.
    """
    number = np.zeros(graph.states, np.uint32)
    _components(graph.ends, graph.targets, graph.labels, mask, wanted, number)
    return number


@kernel
def _inner_labels(
    ends: Numbers,
    targets: Numbers,
    labels: Labels,
    mask: int,
    wanted: int,
    number: Numbers,
    inner: Labels,
) -> None:
    for state in range(len(number)):
        for k in range(ends[state], ends[state + 1]):
            target = targets[k]
            if labels[k] & mask == wanted and target < len(number):
                if number[target] == number[state]:
                    inner[state] |= labels[k]


@dataclass(frozen=True)
class Cycle:
    """A component with a cycle, `states` in order, and the labels of the transitions within."""

    component: int
    states: NDArray[np.intp]
    labels: int


class Cycles:
    """The components with cycles in the graph of the transitions with `label & mask == wanted`.

    Labels that are kept must not be zero.
    """

    def __init__(self, graph: Graph, mask: int, wanted: int) -> None:
        self._graph = graph
        self._mask = mask
        self._wanted = wanted
        self._number = components(graph, mask, wanted)
        inner = np.zeros(graph.states, np.uint8)
        _inner_labels(graph.ends, graph.targets, graph.labels, mask, wanted, self._number, inner)
        (states,) = np.nonzero(inner)
        states = states[np.argsort(self._number[states], kind="stable")]
        numbers, begins = np.unique(self._number[states], return_index=True)
        self.found = tuple(
            Cycle(int(number), part, int(np.bitwise_or.reduce(inner[part])))
            for number, part in zip(numbers, np.split(states, begins)[1:], strict=True)
        )

    def walk(self, cycle: Cycle, goals: int, met: Callable[[int, int], int]) -> tuple[int, ...]:
        """Transitions of a closed walk within a cycle from its first state that meets all goals.

        `met(transition, state)` is a mask of the goals that a transition and the state at its end
        meet; the walk goes to the nearest goal each time. Raises ValueError where one cannot be
        met within the cycle.
        """
        start = state = int(cycle.states[0])
        walked: list[int] = []
        while goals:
            path = self._shortest(state, met, goals)
            walked += path
            state = int(self._graph.targets[path[-1]])
            for k in path:
                goals &= ~met(k, int(self._graph.targets[k]))
        if not walked or state != start:
            walked += self._shortest(state, lambda _k, target: int(target == start), 1)
        return tuple(walked)

    def _shortest(self, start: int, met: Callable[[int, int], int], goals: int) -> list[int]:
        """The fewest transitions within a component up to one that meets any of the goals."""
        graph = self._graph
        came_by: dict[int, tuple[int, int]] = {}
        frontier = deque([start])
        seen = {start}
        while frontier:
            state = frontier.popleft()
            for k in range(int(graph.ends[state]), int(graph.ends[state + 1])):
                target = int(graph.targets[k])
                if int(graph.labels[k]) & self._mask != self._wanted:
                    continue
                if target >= graph.states or self._number[target] != self._number[state]:
                    continue
                if met(k, target) & goals:
                    path = [k]
                    while state != start:
                        state, k = came_by[state]
                        path.append(k)
                    return path[::-1]
                if target not in seen:
                    seen.add(target)
                    came_by[target] = state, k
                    frontier.append(target)
        raise ValueError(f"no walk from state {start} within its cycle meets the goal")


@kernel
def _count_along(
    ends: Numbers,
    targets: Numbers,
    counted: Flags,
    within: Flags,
    limit: int,
    came_by: Numbers,
) -> tuple[int, int]:
    """Fill came_by[n, s], the transition by which s is reached with n + 1 counted ones.

    Returns the most counted on one run, and where; ends with the first run that has `limit`.
    """
    states = len(within)
    queue = np.empty(states * limit, np.int64)
    read = 0
    written = 0
    most = 0
    where = 0
    for source in range(states):
        for k in range(ends[source], ends[source + 1]):
            target = np.int64(targets[k])
            if counted[k] and target < states and within[target]:
                if came_by[0, target] == NO_TRANSITION:
                    came_by[0, target] = k
                    queue[written] = target
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
                target = np.int64(targets[k])
                if target < states and within[target]:
                    following = number + 1 if counted[k] else number
                    if came_by[following, target] == NO_TRANSITION:
                        came_by[following, target] = k
                        queue[written] = following * states + target
                        written += 1
    return most, where


def most_counted(
    graph: Graph, counted: Flags, within: Flags, limit: int
) -> tuple[int, tuple[int, ...]]:
    """The most counted transitions on a run all of whose targets are within the given states.

    Not more than `limit` are counted. Also returns a run that has as many, from the source of the
    first one counted to the last one; it is the first that is met, not always the shortest.
    """
    came_by = np.full((limit, graph.states), NO_TRANSITION, np.uint32)
    most, state = _count_along(graph.ends, graph.targets, counted, within, limit, came_by)
    run: list[int] = []
    left = most
    while left > 0:
        transition = int(came_by[left - 1, state])
        run.append(transition)
        state = graph.source(transition)
        left -= int(counted[transition])
    return most, tuple(reversed(run))
