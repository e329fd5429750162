"""What a proof is about: a transition relation over unbounded numbers, and what must hold in it.

Terms are Z3 terms over constants that are named like the model's fields. An operation gives the
fields after it as terms over the fields before, the parameters and its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import z3

Term = Any
"""A Z3 term; z3 has no types to check against."""

Value = int | bool


@dataclass(frozen=True)
class Clause:
    """A named statement about one state.

    `invariants` names those of spec/invariants.py that it answers. A derived clause is no part of
    the induction: it must follow from the clauses that are.
    """

    name: str
    formula: Term
    statement: str
    invariants: tuple[str, ...] = ()
    derived: bool = False


@dataclass(frozen=True)
class Operation:
    """One kind of transition: possible where `guard` holds; fields not in `after` stay."""

    name: str
    about: str
    guard: Term
    after: Mapping[str, Term]
    inputs: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Relation:
    """A transition system with unbounded parameters, and the clauses to be proved of it.

    `assumptions` constrain the parameters. `properties` are what is claimed, `lemmas` what the
    induction needs besides. `history` names fields that only remember: the model has no such cell.
    Where terms multiply fields the relation is not `linear`, and proofs of it may end unknown.
    """

    name: str
    title: str
    parameters: tuple[Term, ...]
    assumptions: tuple[Clause, ...]
    fields: tuple[Term, ...]
    initial: Term
    operations: tuple[Operation, ...]
    properties: tuple[Clause, ...]
    lemmas: tuple[Clause, ...]
    history: frozenset[str] = frozenset()
    linear: bool = True

    def __post_init__(self) -> None:
        known = {name_of(field) for field in self.fields}
        for operation in self.operations:
            unknown = set(operation.after) - known
            if unknown:
                raise ValueError(f"{self.name}: {operation.name} sets no field {sorted(unknown)}")
        names = [operation.name for operation in self.operations]
        names += [clause.name for clause in (*self.properties, *self.lemmas)]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: a name is used twice")

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """The inductive invariant: lemmas and the properties that are not derived."""
        return (*self.lemmas, *(p for p in self.properties if not p.derived))

    @property
    def assumed(self) -> Term:
        """Everything that is assumed of the parameters."""
        return every(clause.formula for clause in self.assumptions)

    def operation(self, name: str) -> Operation:
        """The operation of a name; KeyError names the ones that there are."""
        for operation in self.operations:
            if operation.name == name:
                return operation
        raise KeyError(
            f"{self.name} has no operation {name!r}: {[o.name for o in self.operations]}"
        )

    def clause(self, name: str) -> Clause:
        """The clause of a name."""
        for clause in (*self.properties, *self.lemmas):
            if clause.name == name:
                return clause
        raise KeyError(f"{self.name} has no clause {name!r}")

    def after(self, operation: Operation) -> list[tuple[Term, Term]]:
        """Pairs of each field and its term after the operation."""
        return [(field, operation.after.get(name_of(field), field)) for field in self.fields]

    def inputs(self) -> tuple[Term, ...]:
        """The inputs of all operations, each once."""
        found = {name_of(term): term for operation in self.operations for term in operation.inputs}
        return tuple(found.values())


def name_of(constant: Term) -> str:
    """The name of a constant, which Z3 takes long to print."""
    return str(constant.decl().name())


def every(terms: Iterable[Term]) -> Term:
    """All of the terms."""
    return z3.And(*terms)


def some(terms: Iterable[Term]) -> Term:
    """One of the terms at least."""
    return z3.Or(*terms)


def least(first: Term, *others: Term) -> Term:
    """The smallest of the terms."""
    for other in others:
        first = z3.If(other < first, other, first)
    return first


def most(first: Term, *others: Term) -> Term:
    """The largest of the terms."""
    for other in others:
        first = z3.If(other > first, other, first)
    return first


def number(flag: Term) -> Term:
    """1 where the flag holds, else 0."""
    return z3.If(flag, z3.IntVal(1), z3.IntVal(0))


def is_flag(term: Term) -> bool:
    """Whether a term is a truth value."""
    return bool(z3.is_bool(term))


def read(model: Any, term: Term) -> Value:
    """The value of a term in a Z3 model; what the model leaves open is zero or false."""
    value = model.eval(term, model_completion=True)
    if z3.is_bool(value):
        return bool(z3.is_true(value))
    return int(value.as_long())
