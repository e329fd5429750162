"""Induction: initiation, consecution and safety, with k-induction and time limits.

A query that Z3 gives up on makes the outcome "unknown", never "holds". A proof is not vacuous: an
initial state must exist, and every operation must be possible from a state that the invariant
allows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import z3

from kvproof.proof.relation import Operation, Relation, Term, Value, name_of, read
from kvproof.proof.unrolling import Path, States, asked, search, small_model
from kvproof.shown import Shown

Outcome = Literal["holds", "fails", "unknown"]
Phase = Literal["existence", "initiation", "consecution", "safety"]


@dataclass(frozen=True)
class Counterexample:
    """A state that the invariant allows, and an operation after which a clause is broken.

    `operation` is None where the clause is broken by the state itself (initiation, safety).
    """

    parameters: Mapping[str, Value]
    before: Mapping[str, Value]
    operation: str | None
    inputs: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True)
class Failure:
    """The obligation that was not met; `reached` is a shortest run that breaks a property.

    It is None where no run of at most `searched` operations does.
    """

    phase: Phase
    clause: str
    operation: str | None
    counterexample: Counterexample | None
    reached: Path | None = None
    searched: int = 0


@dataclass(frozen=True)
class Proof(Shown):
    """The end of a proof: `obligations` queries were answered in `seconds`."""

    relation: str
    outcome: Outcome
    depth: int
    obligations: int
    seconds: float
    failure: Failure | None = None

    def __str__(self) -> str:
        return (
            f"{self.relation}: {self.outcome}  {self.obligations:,} obligations, "
            f"{self.seconds:.1f} s"
        )


class _GivenUp(Exception):
    """Z3 has not answered within the time limit."""


class _Clock:
    """The time that is left of a proof's limit, and the queries that were asked."""

    def __init__(self, seconds: float) -> None:
        self.started = time.perf_counter()
        self._limit = seconds
        self.queries = 0

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.started

    @property
    def left(self) -> float:
        return self._limit - self.spent

    def ask(self, solver: Any, *extra: Term) -> bool:
        """Whether the solver's formulas and these can hold together."""
        if self.left <= 0:
            raise _GivenUp
        solver.set("timeout", max(int(self.left * 1000), 1))
        self.queries += 1
        answer = asked(solver, *extra)
        if answer == z3.unknown:
            raise _GivenUp
        return bool(answer == z3.sat)


def prove(
    relation: Relation,
    *,
    seconds: float = 120.0,
    depth: int = 1,
    search_steps: int = 0,
    claims: Sequence[str] = (),
) -> Proof:
    """Prove every clause of a relation by induction of a depth.

    Where it fails, runs of at most `search_steps` operations are searched for one that breaks a
    property, shortest first, within the time that is left; one of `claims` if any are named.
    """
    if depth < 1:
        raise ValueError(f"depth = {depth}: allowed is 1 or more")
    clock = _Clock(seconds)

    def end(outcome: Outcome, failure: Failure | None = None) -> Proof:
        return Proof(relation.name, outcome, depth, clock.queries, clock.spent, failure)

    try:
        failure = next(_failures(relation, clock, depth), None)
    except _GivenUp:
        return end("unknown")
    if failure is None:
        return end("holds")
    if search_steps > 0 and failure.phase != "existence":
        watched = [relation.clause(name) for name in claims] or relation.properties
        path, searched = search(relation, watched, steps=search_steps, seconds=clock.left)
        failure = replace(failure, reached=path, searched=searched)
    return end("fails", failure)


def _failures(relation: Relation, clock: _Clock, depth: int) -> Iterator[Failure]:
    yield from _existence(relation, clock)
    yield from _initiation(relation, clock, depth)
    if depth == 1:
        yield from _consecution(relation, clock)
    else:
        yield from _deep_consecution(relation, clock, depth)
    yield from _safety(relation, clock)


def _solver(relation: Relation, *formulas: Term) -> Any:
    solver = z3.SolverFor("QF_LIA" if relation.linear else "QF_NIA")
    solver.add(*formulas)
    return solver


def _existence(relation: Relation, clock: _Clock) -> Iterator[Failure]:
    if not clock.ask(_solver(relation, relation.assumed, relation.initial)):
        yield Failure("existence", "an initial state exists", None, None)
    allowed = _solver(relation, relation.assumed, *(clause.formula for clause in relation.clauses))
    for operation in relation.operations:
        if not clock.ask(allowed, operation.guard):
            yield Failure("existence", "the operation is possible", operation.name, None)


def _initiation(relation: Relation, clock: _Clock, depth: int) -> Iterator[Failure]:
    """No run of fewer than `depth` operations breaks a clause."""
    states = States(relation)
    for step in range(depth):
        if step > 0:
            states.extend()
        for clause in relation.clauses:
            broken = states.at(step, z3.Not(clause.formula))
            if clock.ask(states.solver, broken):
                model = small_model(states.solver, states.names(step), broken)
                before = _values(model, states, step)
                yield Failure(
                    "initiation",
                    clause.name,
                    None,
                    Counterexample(states.parameters(model), before, None, {}, before),
                )


def _consecution(relation: Relation, clock: _Clock) -> Iterator[Failure]:
    """Every operation keeps every clause: the terms after it are put into the clause."""
    invariant = _solver(
        relation, relation.assumed, *(clause.formula for clause in relation.clauses)
    )
    for operation in relation.operations:
        after = relation.after(operation)
        touched = {name_of(field) for field, term in after if not field.eq(term)}
        invariant.push()
        invariant.add(operation.guard)
        for clause in relation.clauses:
            if touched.isdisjoint(_names_in(clause.formula)):
                continue
            broken = z3.Not(z3.substitute(clause.formula, *after))
            if clock.ask(invariant, broken):
                constants = (*relation.parameters, *relation.fields, *operation.inputs)
                model = small_model(invariant, constants, broken)
                yield Failure(
                    "consecution",
                    clause.name,
                    operation.name,
                    _counterexample(relation, operation, model),
                )
        invariant.pop()


def _deep_consecution(relation: Relation, clock: _Clock, depth: int) -> Iterator[Failure]:
    """After `depth` states in a row that keep every clause, the next one keeps them too."""
    states = States(relation, start=z3.BoolVal(True))
    for step in range(depth):
        states.solver.add(*(states.at(step, clause.formula) for clause in relation.clauses))
        states.extend()
    for clause in relation.clauses:
        broken = states.at(depth, z3.Not(clause.formula))
        if clock.ask(states.solver, broken):
            model = small_model(states.solver, states.names(depth), broken)
            path = states.path(model, depth)
            last = path.moves[-1]
            before = path.moves[-2].after if depth > 1 else path.start
            yield Failure(
                "consecution",
                clause.name,
                last.operation,
                Counterexample(path.parameters, before, last.operation, last.inputs, last.after),
            )


def _safety(relation: Relation, clock: _Clock) -> Iterator[Failure]:
    invariant = _solver(
        relation, relation.assumed, *(clause.formula for clause in relation.clauses)
    )
    for clause in relation.properties:
        broken = z3.Not(clause.formula)
        if clause.derived and clock.ask(invariant, broken):
            model = small_model(invariant, (*relation.parameters, *relation.fields), broken)
            before = {name_of(field): read(model, field) for field in relation.fields}
            values = {name_of(term): read(model, term) for term in relation.parameters}
            yield Failure(
                "safety", clause.name, None, Counterexample(values, before, None, {}, before)
            )


def _counterexample(relation: Relation, operation: Operation, model: Any) -> Counterexample:
    return Counterexample(
        {name_of(term): read(model, term) for term in relation.parameters},
        {name_of(field): read(model, field) for field in relation.fields},
        operation.name,
        {name_of(term): read(model, term) for term in operation.inputs},
        {name_of(field): read(model, term) for field, term in relation.after(operation)},
    )


def _values(model: Any, states: States, step: int) -> dict[str, Value]:
    return {name_of(f): read(model, states.at(step, f)) for f in states.relation.fields}


def _names_in(formula: Term) -> set[str]:
    """Names of the constants in a formula."""
    found: set[str] = set()
    seen: set[int] = set()
    todo = [formula]
    while todo:
        term = todo.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        if term.num_args() == 0 and term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found.add(name_of(term))
        todo.extend(term.children())
    return found
