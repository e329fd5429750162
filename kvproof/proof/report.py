"""Proofs and runs in the model's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvproof.proof.configurations import Found
from kvproof.proof.induction import Counterexample, Failure
from kvproof.proof.relation import Relation, Value
from kvproof.proof.unrolling import Path


def explain(failure: Failure, relation: Relation) -> str:
    """Why a proof fails: the obligation, its counterexample, and whether a run leads there."""
    return "\n".join(_failure_lines(failure, relation))


def _failure_lines(failure: Failure, relation: Relation) -> Iterator[str]:
    at = "" if failure.operation is None else f" at `{failure.operation}`"
    yield f"  {failure.phase}: {failure.clause}{at}"
    if failure.counterexample is None:
        yield "  the proof would say nothing: no state allows it"
        return
    yield f"  {relation.clause(failure.clause).statement}"
    yield from _counterexample_lines(failure.counterexample, relation)
    if failure.reached is None:
        yield (
            f"  no run of at most {failure.searched} operations breaks a property: it is not known "
            "whether the state before can be reached"
        )
    else:
        yield f"  reachable: {len(failure.reached.moves)} operations from a fresh engine"
        yield from run_lines(failure.reached, relation)


def _counterexample_lines(found: Counterexample, relation: Relation) -> Iterator[str]:
    if found.parameters:
        yield f"    with      {_words(found.parameters)}"
    yield f"    before    {_words(found.before)}"
    if found.operation is not None:
        about = relation.operation(found.operation).about
        inputs = f" ({_words(found.inputs)})" if found.inputs else ""
        yield f"    action    {found.operation}{inputs}: {about}"
        yield f"    after     {_changes(found.before, found.after)}"


def run_lines(run: Path, relation: Relation) -> Iterator[str]:
    """A run, one operation a line with what it changed."""
    if run.parameters:
        yield f"    with {_words(run.parameters)}"
    before = run.start
    for number, move in enumerate(run.moves, 1):
        inputs = f" ({_words(move.inputs)})" if any(move.inputs.values()) else ""
        yield f"    {number}  {move.operation}{inputs}: {_changes(before, move.after)}"
        before = move.after
    for name in run.broken:
        yield f"       broken: {name}. {relation.clause(name).statement}"


def configuration_lines(found: Found, relation: Relation) -> Iterator[str]:
    """A configuration that was found, its run, and what the explorer says of it."""
    yield from run_lines(found.run, relation)
    if found.trace is None:
        yield "    the explorer breaks nothing in this configuration"
    else:
        yield (
            f"    the explorer breaks {', '.join(found.trace.broken)} in this configuration "
            f"after {len(found.trace.actions)} actions"
        )


def _words(values: Mapping[str, Value]) -> str:
    """What is not zero, by name; a flag that is set is its name."""
    parts = [
        name if value is True else f"{name} {value}" for name, value in values.items() if value
    ]
    return ", ".join(parts) or "everything zero"


def _changes(before: Mapping[str, Value], after: Mapping[str, Value]) -> str:
    parts = []
    for name, value in after.items():
        old = before[name]
        if value == old:
            continue
        if isinstance(value, bool):
            parts.append(name if value else f"not {name}")
        else:
            parts.append(f"{name} {old}->{value}")
    return ", ".join(parts) or "nothing changes"
