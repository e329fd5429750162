"""Covering rows: rows of values in which every possible combination of a few values occurs.

Nearly all faults of a configuration need few of its values at once (Kuhn, Wallace and Gallo,
"Software Fault Interactions and Implications for Software Testing", 2004). Rows are built greedily
(Cohen et al., "The AETG System", 1997). Constraints that share parameters make a group, of which
every assignment that they allow is listed beforehand: a row never has to be taken back, and how
many combinations are possible is known exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray

Value = str | int | bool
Row = dict[str, Value]
Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """Combinations that make no row: `refuses` takes the values of `names`, `why` is for people."""

    names: tuple[str, ...]
    refuses: Callable[..., bool]
    why: str


class Cover:
    """Rows over `parameters` (name -> values) that meet `constraints`.

    `strength` is how many values are combined, from 2 to as many as there are parameters.
    `possible` counts the combinations that some row has, of `combined` in all; `left` those that
    the round under way has not come to.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]],
        constraints: Sequence[Constraint] = (),
        *,
        strength: int = 2,
        seed: int = 0,
    ) -> None:
        self.parameters = parameters
        self.strength = strength
        self._random = random.Random(seed)
        self._names = [name for name, values in parameters.items() for _ in values]
        self._values = [value for values in parameters.values() for value in values]
        self._places: dict[str, range] = {}
        for name, values in parameters.items():
            start = sum(map(len, self._places.values()))
            self._places[name] = range(start, start + len(values))
        self._used = [0] * len(self._values)
        self._groups = [_Group(parameters, among) for among in _grouped(constraints)]
        self._group_of = {name: group for group in self._groups for name in group.names}
        self._possible = self._mark_possible()
        sizes = [len(values) for values in parameters.values()]
        self.combined = sum(int(np.prod(some)) for some in combinations(sizes, strength))
        self.possible = self.left = self._count(self._possible)

    def rows(self) -> Iterator[Row]:
        """Rows without end: each round covers every possible combination once more."""
        while True:
            yield from self.round()

    def round(self) -> Iterator[Row]:
        """Rows that cover every possible combination."""
        uncovered = self._possible.copy()
        self.left = self.possible
        flat = uncovered.reshape(-1)
        first = 0
        while True:
            first += int(np.argmax(flat[first:]))
            if not flat[first]:
                return
            seed = [int(place) for place in np.unravel_index(first, uncovered.shape)]
            row = sorted(self._complete(seed, uncovered))
            for place in row:
                self._used[place] += 1
            combined = np.ix_(*[row] * self.strength)
            self.left -= self._count(uncovered[combined])
            uncovered[combined] = False
            yield {self._names[place]: self._values[place] for place in row}

    def covered(self, rows: Iterable[Row]) -> int:
        """How many of the possible combinations these rows have."""
        marks = np.zeros_like(self._possible)
        for row in rows:
            places = [self._places[name][self.parameters[name].index(row[name])] for name in row]
            marks[np.ix_(*[places] * self.strength)] = True
        return self._count(marks & self._possible)

    def _count(self, marks: Marks) -> int:
        """Combinations that are marked, each in every order of its values."""
        return int(np.count_nonzero(marks)) // factorial(self.strength)

    def _mark_possible(self) -> Marks:
        """A mark for each combination, in every order of its values, that some row has."""
        marks = np.zeros((len(self._values),) * self.strength, np.bool_)
        for names in combinations(self.parameters, self.strength):
            grid = np.ones([len(self.parameters[name]) for name in names], np.bool_)
            for group in {id(g): g for n in names if (g := self._group_of.get(n))}.values():
                grid = grid & group.possible(names)
            slices = [slice(self._places[n].start, self._places[n].stop) for n in names]
            for order in permutations(range(self.strength)):
                marks[tuple(slices[i] for i in order)] = grid.transpose(order)
        return marks

    def _complete(self, row: list[int], uncovered: Marks) -> list[int]:
        """The row with a value of every parameter, chosen one by one to cover much."""
        row = list(row)
        chosen = {self._names[place]: self._values[place] for place in row}
        while len(chosen) < len(self.parameters):
            name = self._random.choice([one for one in self.parameters if one not in chosen])
            group = self._group_of.get(name)
            places = [
                place
                for place in self._places[name]
                if group is None or group.allows({**chosen, name: self._values[place]})
            ]
            among = uncovered[np.ix_(places, *[row] * (self.strength - 1))]
            gains = among.reshape(len(places), -1).sum(axis=1)
            best = max(
                range(len(places)),
                key=lambda i: (gains[i], -self._used[places[i]], self._random.random()),
            )
            row.append(places[best])
            chosen[name] = self._values[places[best]]
        return row


class _Group:
    """Parameters that constraints tie to each other, with every assignment that they allow."""

    def __init__(
        self, parameters: Mapping[str, Sequence[Value]], constraints: Sequence[Constraint]
    ) -> None:
        self._parameters = parameters
        tied = {name for constraint in constraints for name in constraint.names}
        self.names = tuple(name for name in parameters if name in tied)
        self._allowed: list[Row] = [{}]
        for name in self.names:
            longer = ({**row, name: value} for row in self._allowed for value in parameters[name])
            self._allowed = [
                row for row in longer if not any(_is_refused(one, row) for one in constraints)
            ]

    def allows(self, row: Mapping[str, Value]) -> bool:
        """Whether some allowed assignment has the row's values."""
        own = [(name, row[name]) for name in self.names if name in row]
        return any(all(one[name] == value for name, value in own) for one in self._allowed)

    def possible(self, names: Sequence[str]) -> Marks:
        """Which combinations of values of these parameters it allows, an axis a parameter."""
        values = [self._parameters[name] if name in self.names else () for name in names]
        grid = np.zeros([len(some) or 1 for some in values], np.bool_)
        for one in self._allowed:
            at = [
                some.index(one[name]) if some else 0
                for name, some in zip(names, values, strict=True)
            ]
            grid[tuple(at)] = True
        return grid


def _grouped(constraints: Sequence[Constraint]) -> list[list[Constraint]]:
    """The constraints, those together that share a parameter."""
    groups: list[list[Constraint]] = []
    for constraint in constraints:
        tied = [g for g in groups if any(set(constraint.names) & set(o.names) for o in g)]
        groups = [g for g in groups if g not in tied]
        groups.append([one for group in tied for one in group] + [constraint])
    return groups


def _is_refused(constraint: Constraint, row: Mapping[str, Value]) -> bool:
    """Whether a row has all the parameters of a constraint, with values that it refuses."""
    if not all(name in row for name in constraint.names):
        return False
    return constraint.refuses(*(row[name] for name in constraint.names))
