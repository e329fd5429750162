"""The other way round: Z3 makes a state and inputs for an operation, and the model runs it.

A world builds a record of the model in which the relation's fields have the values that Z3 chose,
and calls the function that the operation stands for. The model must take that operation, from
those fields to the fields that the relation says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import z3

from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.scope import Scope
from kvproof.proof.interpreted import Interpreted, Plain
from kvproof.proof.relation import Operation, Relation, Term, Value, every, is_flag, name_of, read
from kvproof.proof.tie.samples import Row, Tie

Values = Mapping[str, Value]


class World:
    """How to put the fields of one relation into the model."""

    relation: Relation
    operations: tuple[Operation, ...]
    open_fields: frozenset[str] = frozenset()
    """Fields that the model settles among what the relation allows."""

    def named(self, operation: Operation) -> dict[str, Term]:
        """Fields, parameters and inputs by name."""
        relation = self.relation
        terms = (*relation.fields, *relation.parameters, *operation.inputs)
        return {name_of(term): term for term in terms}

    def fits(self, operation: Operation) -> Term:
        """What a state and inputs must satisfy to be put into the model."""
        raise NotImplementedError

    def scope(self, values: Values) -> Scope:
        """The scope of the world."""
        raise NotImplementedError

    def tie(self, compiled: Compiled) -> Tie:
        """What reads the fields off the model."""
        raise NotImplementedError

    def fill(self, world: Filled, values: Values) -> None:
        """Set the state."""
        raise NotImplementedError

    def run(self, world: Filled, operation: str, values: Values) -> int:
        """Call the function that the operation stands for; returns the code of an action.

        `begin` is called here, when the state is complete.
        """
        raise NotImplementedError


@dataclass
class Filled:
    """A state of the model and what acts on it."""

    model: Interpreted
    tie: Tie
    state: Plain
    report: Plain

    @property
    def c(self) -> Plain:
        """The compiled scope."""
        return self.model.c

    def begin(self, action: int) -> None:
        """The state is complete."""
        self.tie.begin(self.state, self.report, action)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the model that takes state, scope and report."""
        return self.model.call(name, self.state, self.c, self.report, *arguments)


@dataclass(frozen=True)
class Made:
    """One state that Z3 made, and what the model did with it; no problem is an empty text.

    `changes` are the fields that the operation changes in it.
    """

    relation: str
    operation: str
    before: Values
    inputs: Values
    changes: tuple[str, ...]
    problem: str


def made(world: World, operation: Operation) -> Iterator[Made]:
    """Let Z3 make states for an operation of the world, a different one for each goal; run them."""
    relation = world.relation
    solver = z3.SolverFor("QF_LIA")
    solver.add(relation.assumed, *(clause.formula for clause in relation.clauses))
    solver.add(operation.guard, world.fits(operation))
    constants = (*relation.parameters, *relation.fields, *operation.inputs)
    for goal in _goals(relation, operation):
        if solver.check(goal) != z3.sat:
            continue
        model = solver.model()
        values = {name_of(term): read(model, term) for term in constants}
        after = tuple(int(read(model, term)) for _field, term in relation.after(operation))
        problem = _run(world, operation, values, after)
        before = {name_of(field): values[name_of(field)] for field in relation.fields}
        inputs = {name_of(term): values[name_of(term)] for term in operation.inputs}
        changes = tuple(
            name for name, end in zip(before, after, strict=True) if int(before[name]) != end
        )
        yield Made(relation.name, operation.name, before, inputs, changes, problem)
        solver.add(z3.Or(*(term != read(model, term) for term in constants)))


def _goals(relation: Relation, operation: Operation) -> Iterator[Term]:
    """What the states should show: each field that can change does, with each input at work."""
    flags = [term for term in operation.inputs if is_flag(term)]
    for field, after in relation.after(operation):
        if not after.eq(field):
            yield after != field
            yield from (every((after != field, flag)) for flag in flags)
            yield from (every((after != field, z3.Not(flag))) for flag in flags)
    yield z3.BoolVal(True)


def _run(world: World, operation: Operation, values: Values, after: Row) -> str:
    """Run one state; says what went wrong."""
    compiled = compile_scope(world.scope(values))
    tie = world.tie(compiled)
    model = Interpreted(compiled, (tie,))
    filled = Filled(model, tie, Plain(compiled.initial()), model.report())
    world.fill(filled, values)
    action = world.run(filled, operation.name, values)
    tie.end(action)
    fields = [name_of(field) for field in world.relation.fields]
    before = tuple(int(values[name]) for name in fields)
    if tie.samples.unexplained:
        return str(tie.samples.unexplained[0])
    if world.open_fields and (disagreements := tie.samples.disagreements()):
        return str(disagreements[0])
    rows = tie.samples.rows[operation.name]
    ends = [end for _parameters, start, _inputs, end in rows if start == before]
    if not ends:
        started = [start for _parameters, start, _inputs, _end in rows]
        return f"the model was not in {before} when it did {operation.name}, but in {started}"
    settled = [i for i, name in enumerate(fields) if name not in world.open_fields]
    if not any(all(end[i] == after[i] for i in settled) for end in ends):
        return f"the model came to {ends}, the relation to {after}"
    return ""
