"""Mutants of Z3's relations, by the proofs and by the tie: `python -m benchmarks.relation_mutants`.

A mutant is one change of a function of kvproof/proof/ that makes operations: an effect or a
condition lost, a branch taken always, a number off by one. Drawn with a fixed seed. A proof catches
it by failing, the tie by a transition of the model that the mutant does not have. What passes both
is a gap, unless Z3 finds that the mutant has every transition of the relation: what holds of it
holds of the relation.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import z3

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.compiled import Compiled
from kvproof.model.scope import Scope
from kvproof.proof.induction import prove
from kvproof.proof.proofs import THEOREMS, Theorem
from kvproof.proof.relation import Operation, Relation, every, name_of
from kvproof.proof.tie.compare import TIED, compare, ties, transitions_of
from kvproof.proof.tie.made import made
from kvproof.proof.tie.samples import Sample, Samples, Tie
from kvproof.proof.tie.worlds import WORLDS
from kvproof.vllm.edits import EditError, FunctionNode, function_named, rewritten, source_of
from kvproof.vllm.mutations import changes

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "mutants" / "relations.json"

SEED = 1
SECONDS = 60.0
MODULES = ("blocks", "budget", "counters", "fence")
CLAIMS = ("_properties", "_lemmas", "_assumptions", "parameters", "fields", "counters", "on")
"""Functions that make no operation."""

Kept = tuple[Scope, dict[str, dict[str, set[Sample]]]]
"""What the tie has seen in a scope: samples by relation and operation."""

Change = tuple[str, Callable[[], None]]


def _set(owner: Any, place: str | int, value: Any) -> Callable[[], None]:
    def change() -> None:
        if isinstance(place, int):
            owner[place] = value
        else:
            setattr(owner, place, value)

    return change


def _without(owner: Any, place: int, *lists: list[Any]) -> Callable[[], None]:
    def change() -> None:
        for one in lists or (owner,):
            del one[place]

    return change


def _of_terms(tree: FunctionNode) -> Iterator[tuple[ast.AST, Change]]:
    """The changes of what is written in Z3's words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for i in range(len(node.keys)):
                yield node, ("effect lost", _without(node, i, node.keys, node.values))
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ("every", "some") and node.args:
            other = "some" if name == "every" else "every"
            yield node, (f"{name} becomes {other}", _set(node.func, "id", other))
            (parts,) = node.args
            if isinstance(parts, ast.Tuple):
                for i in range(len(parts.elts)):
                    yield node, (f"{name} loses operand {i}", _without(parts.elts, i))
        elif name in ("If", "Not", "Implies"):
            for i, part in enumerate(node.args):
                if name != "If" or i:
                    identity = ast.Call(ast.Attribute(_z3(), "And"), [part], [])
                    whole = part if name == "If" else identity
                    yield node, (f"{name} becomes its part {i}", _becoming(node, whole))


def _z3() -> ast.Name:
    return ast.Name("z3", ast.Load())


def _becoming(node: ast.Call, part: ast.expr) -> Callable[[], None]:
    def change() -> None:
        # The call turns into one that gives its only argument back.
        node.func = ast.Lambda(
            ast.arguments([], [ast.arg("it")], None, [], [], None, []), ast.Name("it", ast.Load())
        )
        node.args, node.keywords = [part], []

    return change


def _changes(tree: FunctionNode) -> Iterator[tuple[int, str, Callable[[], None]]]:
    """Each change: its number, what it does, and how; what stands in a clause is no operation's."""
    clauses = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Clause"
        for inner in ast.walk(node)
    }
    nodes = list(ast.walk(tree))
    number = 0
    for place, _k, _line, what, make in changes(tree):
        if id(nodes[place]) not in clauses and not what.startswith(("Return", "Call", "Assign")):
            yield number, what, make
            number += 1
    for node, (what, make) in _of_terms(tree):
        if id(node) not in clauses:
            yield number, what, make
            number += 1


def functions() -> Iterator[str]:
    """The functions that make operations, as the edits name them."""
    for name in MODULES:
        module = f"kvproof.proof.{name}"
        file = importlib.import_module(module).__file__
        assert file is not None
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            for one in node.body if isinstance(node, ast.ClassDef) else [node]:
                if (
                    isinstance(one, ast.FunctionDef)
                    and one.name not in CLAIMS
                    and not one.name.startswith("__")
                ):
                    owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                    yield f"{module}:{owner}{one.name}"


def listed() -> list[tuple[str, int, str]]:
    """Every mutant: its function, its number there, what it does."""
    return [
        (name, number, what)
        for name in functions()
        for number, what, _make in _changes(source_of(function_named(name))[0])
    ]


def _mutate(tree: FunctionNode, number: int) -> None:
    for one, _what, make in _changes(tree):
        if one == number:
            make()
            ast.fix_missing_locations(tree)
            return
    raise EditError(f"{tree.name}: there is no mutant {number}")


def _forget_relations() -> None:
    for name in MODULES:
        getattr(importlib.import_module(f"kvproof.proof.{name}"), name).cache_clear()


def _giving(watchers: tuple[Tie, ...]) -> Callable[[Compiled], tuple[Tie, ...]]:
    return lambda compiled: watchers


def seen_by_the_tie(scopes: Iterable[Scope]) -> list[Kept]:
    """The samples of each scope, once for all mutants."""
    kept = []
    for scope in scopes:
        watchers = ties(SchedulerSystem(scope).compiled)
        compare(scope, transitions_of(scope)[0], _giving(watchers))
        kept.append((scope, {one.relation.name: one.samples.rows for one in watchers}))
    return kept


def by_tie(theorem: Theorem, kept: list[Kept]) -> str:
    """How the theorem's relation and the model part: in what the tie has seen, or in states that
    Z3 makes; nothing where they do not.
    """
    for scope, seen in kept:
        for tie in ties(SchedulerSystem(scope).compiled):
            if tie.relation.name == theorem.name:
                samples = Samples(tie.relation)
                samples.rows = seen[theorem.name]
                for disagreement in samples.disagreements():
                    return f"{scope.name}: {disagreement}"[:200]
    for build in WORLDS:
        world = build()
        if world.relation.name == theorem.name:
            for operation in world.operations:
                for one in made(world, operation):
                    if one.problem:
                        return f"made by Z3: {one.operation}: {one.problem}"[:200]
    return ""


def wider(original: Relation, mutant: Relation) -> bool:
    """Whether every transition of the original from an allowed state is one of the mutant."""
    allowed = every((original.assumed, *(clause.formula for clause in original.clauses)))
    for before, after in zip(original.operations, mutant.operations, strict=True):
        if not _included(original, allowed, before, after):
            return False
    return True


def _included(relation: Relation, allowed: Any, one: Operation, other: Operation) -> bool:
    solver = z3.Solver()
    solver.set("timeout", int(SECONDS * 1000))
    parts = [z3.Not(other.guard)]
    for field in relation.fields:
        name = name_of(field)
        ours, theirs = one.after.get(name, field), other.after.get(name, field)
        if not ours.eq(theirs):
            parts.append(ours != theirs)
    solver.add(allowed, one.guard, z3.Or(*parts))
    return bool(solver.check() == z3.unsat)


def judge(name: str, number: int, kept: list[Kept]) -> dict[str, str]:
    """What catches one mutant."""
    concerned = [t for t in THEOREMS.values() if t.name.partition("-")[0] in name.split(":")[0]]
    originals = {t.name: t.build(frozenset()) for t in concerned}
    found = {"proof": "", "tie": "", "verdict": "missed"}
    _forget_relations()
    try:
        with rewritten(function_named(name), partial(_mutate, number=number)):
            for theorem in concerned:
                proof = prove(theorem.build(frozenset()), seconds=SECONDS)
                if proof.failure is not None:
                    failure = proof.failure
                    where = failure.operation or failure.phase
                    found["proof"] = f"{theorem.name}: {where}, {failure.clause}"
                found["tie"] = found["tie"] or by_tie(theorem, kept)
            if found["proof"] or found["tie"]:
                found["verdict"] = "caught"
            elif all(wider(originals[t.name], t.build(frozenset())) for t in concerned):
                found["verdict"] = "no transition less"
    except Exception as error:
        found |= {"verdict": "caught", "proof": f"makes no sense: {type(error).__name__}"}
    finally:
        _forget_relations()
    return found


def main() -> None:
    """Run, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="mutants in all")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    chosen = parser.parse_args()
    started = time.perf_counter()
    kept = seen_by_the_tie(TIED)
    print(f"{len(kept)} scopes seen by the tie, {time.perf_counter() - started:.0f} s")
    every_one = listed()
    random.Random(SEED).shuffle(every_one)
    print(f"{len(every_one)} mutants")
    record = []
    wanted = [one for one in every_one if chosen.only in f"{one[0]}#{one[1]}"]
    for name, number, what in wanted[: chosen.count]:
        found = judge(name, number, kept)
        entry = {"mutant": f"{name.removeprefix('kvproof.proof.')}#{number}", "change": what}
        record.append(entry | found)
        print(*record[-1].values(), sep=" | ", flush=True)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
