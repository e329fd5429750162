"""Pairwise coverage: rows of values in which every possible pair of values occurs.

Nearly all faults of a configuration need only one or two of its values (Kuhn, Wallace and Gallo,
"Software Fault Interactions and Implications for Software Testing", 2004). Rows are built greedily
(Cohen et al., "The AETG System", 1997), with backtracking over what constraints refuse, so that a
pair is left out only if no row has it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

Value = str | int | bool
Row = dict[str, Value]
Pair = tuple[tuple[str, Value], tuple[str, Value]]


@dataclass(frozen=True)
class Constraint:
    """Combinations that make no row: `refuses` takes the values of `names`, `why` is for people."""

    names: tuple[str, ...]
    refuses: Callable[..., bool]
    why: str


def pairs_of(row: Mapping[str, Value]) -> Iterator[Pair]:
    """The pairs of values in a row, in the order of its parameters."""
    return combinations(row.items(), 2)


class Cover:
    """Rows over `parameters` (name -> values, at least two parameters) that meet `constraints`.

    `infeasible` fills while rows are built; it is complete after the first round.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Value]],
        constraints: Sequence[Constraint] = (),
        *,
        seed: int = 0,
    ) -> None:
        self.parameters = parameters
        self.constraints = constraints
        self.infeasible: set[Pair] = set()
        self._random = random.Random(seed)
        self._used: Counter[tuple[str, Value]] = Counter()
        self._constraints_on = {
            name: [one for one in constraints if name in one.names] for name in parameters
        }

    def pairs(self) -> list[Pair]:
        """Every pair of values of two parameters, possible or not."""
        return [
            ((first, a), (second, b))
            for first, second in combinations(self.parameters, 2)
            for a in self.parameters[first]
            for b in self.parameters[second]
        ]

    def why_infeasible(self, pair: Pair) -> str:
        """The reason of the constraint that refuses a pair, or that no row has it."""
        for constraint in self.constraints:
            if _is_refused(constraint, dict(pair)):
                return constraint.why
        return "refused by several constraints together"

    def rows(self) -> Iterator[Row]:
        """Rows without end: each round covers every possible pair once more."""
        while True:
            yield from self.round()

    def round(self) -> Iterator[Row]:
        """Rows that cover every possible pair."""
        # A dict as an ordered set: the same seed gives the same rows whatever the hash seed.
        uncovered = dict.fromkeys(self.pairs())
        for pair in self.infeasible:
            del uncovered[pair]
        while uncovered:
            pair = next(iter(uncovered))
            row = self._complete(dict(pair), uncovered)
            if row is None:
                self.infeasible.add(pair)
                del uncovered[pair]
                continue
            ordered = {name: row[name] for name in self.parameters}
            self._used.update(ordered.items())
            for covered in pairs_of(ordered):
                uncovered.pop(covered, None)
            yield ordered

    def _complete(self, row: Row, uncovered: Mapping[Pair, Any]) -> Row | None:
        """The row with all parameters, chosen to cover much; None if constraints forbid any."""
        if any(_is_refused(constraint, row) for constraint in self.constraints):
            return None
        choices = {name: self._allowed(row, name) for name in self.parameters if name not in row}
        if not choices:
            return row
        # A parameter with one value left comes first (it limits the others); with none, it fails.
        forced = [name for name, values in choices.items() if len(values) <= 1]
        name = self._random.choice(forced or list(choices))
        values = choices[name]
        self._random.shuffle(values)
        values.sort(key=lambda v: (-_gain(row, name, v, uncovered), self._used[name, v]))
        for value in values:
            completed = self._complete({**row, name: value}, uncovered)
            if completed is not None:
                return completed
        return None

    def _allowed(self, row: Row, name: str) -> list[Value]:
        constraints = self._constraints_on[name]
        return [
            value
            for value in self.parameters[name]
            if not any(_is_refused(one, {**row, name: value}) for one in constraints)
        ]


def _gain(row: Row, name: str, value: Value, uncovered: Mapping[Pair, Any]) -> int:
    """Uncovered pairs that a value adds to a row."""
    new = (name, value)
    return sum((old, new) in uncovered or (new, old) in uncovered for old in row.items())


def _is_refused(constraint: Constraint, row: Mapping[str, Value]) -> bool:
    """Whether a row has all the parameters of a constraint, with values that it refuses."""
    if not all(name in row for name in constraint.names):
        return False
    return constraint.refuses(*(row[name] for name in constraint.names))
