"""Operations seen in the model, and what a relation says of them, field by field."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvproof.model.compiled import Compiled
from kvproof.model.rules import Rule
from kvproof.proof.evaluate import Evaluator
from kvproof.proof.interpreted import Plain, Watcher
from kvproof.proof.relation import Operation, Relation, Term, is_flag, name_of

Row = tuple[int, ...]
Sample = tuple[Row, Row, Row, Row]
"""Parameters, fields before, inputs, fields after; in the order in which the relation has them."""

GUARD = "the operation is not possible"
UNEXPLAINED = "no operation"


@dataclass(frozen=True)
class Disagreement:
    """A transition of the model that the relation does not have; `field` says where they part."""

    relation: str
    operation: str
    field: str
    expected: int | None
    found: int | None
    before: Mapping[str, int]
    inputs: Mapping[str, int]

    def __str__(self) -> str:
        seen = "" if self.found is None else f": model {self.found}, relation {self.expected}"
        before = ", ".join(f"{name} {value}" for name, value in self.before.items() if value)
        inputs = ", ".join(f"{name} {value}" for name, value in self.inputs.items())
        return (
            f"{self.relation}, {self.operation}: {self.field}{seen} (before: {before or 'zero'}"
            f"{'; ' + inputs if inputs else ''})"
        )


def plain(name: str) -> str:
    """The name of an operation or a field without the number of its request or its step."""
    return name.rstrip("0123456789").removesuffix(" R")


class Samples:
    """Distinct samples of one relation's operations; `total` counts them all."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.rows: dict[str, set[Sample]] = {o.name: set() for o in relation.operations}
        self.unexplained: list[Disagreement] = []
        self.total = 0

    def add(self, operation: str, parameters: Row, before: Row, inputs: Row, after: Row) -> None:
        """Note one operation."""
        self.total += 1
        self.rows[operation].add((parameters, before, inputs, after))

    def unchanged(self, before: Row, after: Row) -> None:
        """Note that the model did nothing that is an operation of the relation."""
        if before != after:
            pairs = zip(self.relation.fields, before, after, strict=True)
            name, old, new = next((name_of(f), x, y) for f, x, y in pairs if x != y)
            values = dict(zip(map(name_of, self.relation.fields), before, strict=True))
            self.unexplained.append(
                Disagreement(self.relation.name, UNEXPLAINED, name, old, new, values, {})
            )

    def effects(self) -> set[tuple[str, str]]:
        """Operations with a field that they were seen to change, by `plain` names."""
        names = [plain(name_of(field)) for field in self.relation.fields]
        return {
            (plain(operation), name)
            for operation, rows in self.rows.items()
            for _parameters, before, _inputs, after in rows
            for name, old, new in zip(names, before, after, strict=True)
            if old != new
        }

    def disagreements(self) -> list[Disagreement]:
        """At most one for each operation and field, smallest sample first."""
        found = list(self.unexplained[:1])
        for operation in self.relation.operations:
            samples = sorted(self.rows[operation.name])
            if samples:
                found += _compare(self.relation, operation, samples)
        return found

    def broken_clauses(self) -> list[str]:
        """Clauses that a sampled state breaks, before or after an operation; lemmas too."""
        states = sorted(
            {
                (sample[0], sample[i])
                for rows in self.rows.values()
                for sample in rows
                for i in (1, 3)
            }
        )
        if not states:
            return []
        parameters = _columns(self.relation.parameters, [state[0] for state in states])
        fields = _columns(self.relation.fields, [state[1] for state in states])
        value = Evaluator(parameters | fields)
        clauses = (*self.relation.lemmas, *self.relation.properties)
        return sorted(c.name for c in clauses if not np.all(value(c.formula)))


def _columns(terms: Iterable[Term], rows: list[Row]) -> dict[str, Any]:
    names = list(terms)
    table = np.array(rows, np.int64).reshape(len(rows), len(names))
    return {
        name_of(term): table[:, i].astype(bool) if is_flag(term) else table[:, i]
        for i, term in enumerate(names)
    }


def _compare(
    relation: Relation, operation: Operation, samples: list[Sample]
) -> Iterable[Disagreement]:
    parameters = _columns(relation.parameters, [s[0] for s in samples])
    before = _columns(relation.fields, [s[1] for s in samples])
    inputs = _columns(operation.inputs, [s[2] for s in samples])
    after = _columns(relation.fields, [s[3] for s in samples])
    value = Evaluator(parameters | before | inputs)

    def differs(row: int, field: str, expected: int | None, found: int | None) -> Disagreement:
        return Disagreement(
            relation.name,
            operation.name,
            field,
            expected,
            found,
            {name: int(column[row]) for name, column in (parameters | before).items()},
            {name: int(column[row]) for name, column in inputs.items()},
        )

    possible = np.broadcast_to(value(relation.assumed) & value(operation.guard), len(samples))
    if not possible.all():
        yield differs(int(np.argmin(possible)), GUARD, None, None)
    for field, term in relation.after(operation):
        expected = np.broadcast_to(value(term), len(samples))
        found = after[name_of(field)]
        wrong = expected != found
        if wrong.any():
            row = int(np.argmax(wrong))
            yield differs(row, name_of(field), int(expected[row]), int(found[row]))


def rules_off(compiled: Compiled) -> frozenset[Rule]:
    """The rules that are off in a compiled scope."""
    return frozenset(Rule[name] for name in compiled.scope.rules_off)


Named = tuple[str, Row]
"""An operation with its inputs."""


class Tie(Watcher):
    """Reads one relation's fields off the model while a transition is interpreted.

    A subject is what the relation is about: a block, a request, a call. After each watched call
    the fields of every subject are read; what changed since the last reading is one operation.
    """

    watched: ClassVar[tuple[str, ...]]

    def __init__(self, compiled: Compiled, relation: Relation) -> None:
        self.compiled = compiled
        self.c = Plain(compiled.c)
        self.relation = relation
        self.samples = Samples(relation)
        self.last: dict[Hashable, Row] = {}
        self._places = {name_of(field): place for place, field in enumerate(relation.fields)}
        self.state: Plain
        self.report: Plain

    def value(self, row: Row, name: str) -> int:
        """The value of a field, by the relation's name."""
        return row[self._places[name]]

    def changed(self, row: Row, **values: int) -> Row:
        """The row with other values of the named fields."""
        return tuple(values.get(name, row[place]) for name, place in self._places.items())

    def parameters(self, subject: Hashable) -> Row:
        """The relation's parameters for a subject."""
        raise NotImplementedError

    def project(self, subject: Hashable) -> Row:
        """The relation's fields of a subject, read off the state."""
        raise NotImplementedError

    def subjects(self) -> Iterable[Hashable]:
        """What there is to follow now."""
        raise NotImplementedError

    def look(self) -> None:
        """Read what all subjects share, before they are read one by one."""

    def begin(self, state: Plain, report: Plain, action: int) -> None:
        """A transition begins."""
        self.state, self.report = state, report
        self.look()
        self.last = {subject: self.project(subject) for subject in self.subjects()}

    def end(self, action: int) -> None:
        """It is over: what has changed since the last operation is no operation."""
        self.step(lambda _subject, _before, _after: None)

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """A watched function was called."""
        raise NotImplementedError

    def step(self, explain: Callable[[Any, Row, Row], Named | None]) -> None:
        """Every subject takes the operation that `explain` names, or stays as it is."""
        self.look()
        for subject, before in self.last.items():
            after = self.project(subject)
            named = explain(subject, before, after)
            if named is None:
                self.samples.unchanged(before, after)
            else:
                operation, inputs = named
                self.samples.add(operation, self.parameters(subject), before, inputs, after)
            self.last[subject] = after
