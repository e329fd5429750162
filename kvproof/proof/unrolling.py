"""Bounded unrolling: the states of a run, one copy of the fields for each, shortest runs first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from kvproof.proof.relation import Clause, Relation, Term, Value, every, is_flag, name_of, read

_SMALL = (3, 8, 20)


@dataclass(frozen=True)
class Move:
    """One operation of a run: its name, its inputs, and the fields after it."""

    operation: str
    inputs: Mapping[str, Value]
    after: Mapping[str, Value]


@dataclass(frozen=True)
class Path:
    """A run from an initial state; `broken` names the clauses that its last state breaks."""

    parameters: Mapping[str, Value]
    start: Mapping[str, Value]
    moves: tuple[Move, ...]
    broken: tuple[str, ...] = ()

    @property
    def end(self) -> Mapping[str, Value]:
        """The fields at its end."""
        return self.moves[-1].after if self.moves else self.start


class States:
    """The first states of a run: `solver` says how they follow each other.

    State 0 satisfies `start` (the relation's initial states by default).
    """

    def __init__(self, relation: Relation, start: Term | None = None) -> None:
        self.relation = relation
        self.solver = z3.SolverFor("QF_LIA" if relation.linear else "QF_NIA")
        self._inputs = relation.inputs()
        self._copies: list[list[tuple[Term, Term]]] = []
        self._chosen: list[Term] = []
        self._choice = z3.Int("operation")
        self._later = [z3.Const(f"{name_of(f)}'", f.sort()) for f in relation.fields]
        self._step = self._one_step()
        self._copy()
        self.solver.add(relation.assumed)
        self.solver.add(self.at(0, relation.initial if start is None else start))

    def _copy(self) -> None:
        step = len(self._copies)
        names = (*self.relation.fields, *self._inputs)
        copies = [z3.Const(f"{name_of(term)}@{step}", term.sort()) for term in names]
        self._copies.append(list(zip(names, copies, strict=True)))

    def at(self, step: int, term: Term) -> Term:
        """A term over the fields and inputs, in state `step`."""
        return z3.substitute(term, *self._copies[step])

    def extend(self) -> None:
        """One more state, which follows the last one by some operation."""
        step = len(self._copies) - 1
        self._copy()
        chosen = z3.Int(f"operation@{step}")
        self._chosen.append(chosen)
        afterwards = zip(self._later, self.relation.fields, strict=True)
        moved = [(later, self.at(step + 1, field)) for later, field in afterwards]
        pairs = [*self._copies[step], *moved, (self._choice, chosen)]
        self.solver.add(z3.substitute(self._step, *pairs))

    def _one_step(self) -> Term:
        """How the fields, `_later` after them, and the number of the operation belong together."""
        parts = [self._choice >= 0, self._choice < len(self.relation.operations)]
        for number, operation in enumerate(self.relation.operations):
            after = self.relation.after(operation)
            moved = (later == term for later, (_f, term) in zip(self._later, after, strict=True))
            parts.append(z3.Implies(self._choice == number, z3.And(operation.guard, *moved)))
        return z3.And(*parts)

    def names(self, upto: int) -> list[Term]:
        """Every constant of the states up to one, parameters included."""
        copies = [copy for copies in self._copies[: upto + 1] for _term, copy in copies]
        return [*self.relation.parameters, *copies]

    def parameters(self, model: Any) -> dict[str, Value]:
        """The values of the parameters in a model."""
        return {name_of(term): read(model, term) for term in self.relation.parameters}

    def path(self, model: Any, steps: int, watched: Sequence[Clause] = ()) -> Path:
        """The run of a model, `steps` operations long, with the watched clauses that it breaks."""
        fields = self.relation.fields
        moves = []
        for step in range(steps):
            operation = self.relation.operations[int(read(model, self._chosen[step]))]
            moves.append(
                Move(
                    operation.name,
                    {name_of(term): read(model, self.at(step, term)) for term in operation.inputs},
                    {name_of(field): read(model, self.at(step + 1, field)) for field in fields},
                )
            )
        start = {name_of(field): read(model, self.at(0, field)) for field in fields}
        broken = tuple(c.name for c in watched if not read(model, self.at(steps, c.formula)))
        return Path(self.parameters(model), start, tuple(moves), broken)


def asked(solver: Any, *extra: Term) -> Any:
    """Z3's answer on the solver's formulas and these; KeyboardInterrupt after a Ctrl-C."""
    answer = solver.check(*extra)
    if answer == z3.unknown and "interrupted" in solver.reason_unknown():
        # Z3 takes the signal for itself.
        raise KeyboardInterrupt
    return answer


def small_model(solver: Any, constants: Iterable[Term], *extra: Term) -> Any:
    """A model of the solver's formulas and `extra`, with small numbers where there is one."""
    numbers = [term for term in constants if not is_flag(term)]
    for bound in (*_SMALL, None):
        solver.push()
        solver.add(*extra)
        if bound is not None:
            solver.add(*(z3.And(term >= -bound, term <= bound) for term in numbers))
        found = asked(solver) == z3.sat
        model = solver.model() if found else None
        solver.pop()
        if found:
            return model
    raise RuntimeError("Z3 takes back a model that it has announced")


def search(
    relation: Relation, watched: Sequence[Clause], *, steps: int, seconds: float
) -> tuple[Path | None, int]:
    """A shortest run that breaks a watched clause, and how many operations were looked through."""
    deadline = time.perf_counter() + seconds
    states = States(relation)
    searched = -1
    for step in range(steps + 1):
        if step > 0:
            states.extend()
        left = deadline - time.perf_counter()
        if left <= 0:
            break
        broken = states.at(step, z3.Not(every(clause.formula for clause in watched)))
        states.solver.set("timeout", max(int(left * 1000), 1))
        answer = asked(states.solver, broken)
        if answer == z3.sat:
            model = small_model(states.solver, states.names(step), broken)
            return states.path(model, step, watched), step
        if answer == z3.unknown:
            break
        searched = step
    return None, max(searched, 0)
