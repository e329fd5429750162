"""Mutations of a function: each is another program, and none is a text."""

from __future__ import annotations

import ast
import copy
from typing import Any

import pytest

from kvproof.vllm.edits import FunctionNode
from kvproof.vllm.mutations import changes, mutate

SOURCE = """
def scan(queue, budget=3):
    '''Documented.'''
    taken: list[int] = []
    assert budget < 9
    for one in queue:
        if one < 0 and budget > 0:
            logger.debug("negative %s", one)
            continue
        if one == 7:
            break
        taken.append(min(one, budget, 5))
        budget -= 1
    return sorted(taken, reverse=True)
"""
QUEUES = ([1, 2, 3], [9, 9, 1], [-1, 2], [7, 1], [5, 4, 7, 2], [0, -2, 8])


def tree() -> FunctionNode:
    (function,) = ast.parse(SOURCE).body
    assert isinstance(function, ast.FunctionDef)
    return function


def what_it_does(function: FunctionNode) -> list[Any]:
    names: dict[str, Any] = {"logger": type("Logger", (), {"debug": lambda *args: None})}
    module = ast.Module([function], [])
    exec(compile(ast.fix_missing_locations(module), "scan", "exec"), names)
    done: list[Any] = []
    for queue in QUEUES:
        try:
            done.append(names["scan"](list(queue)))
        except Exception as error:
            done.append(type(error).__name__)
    return done


NAMES = [(number, k, what) for number, k, _line, what, _make in changes(tree())]


def test_a_function_has_a_mutant_of_every_kind_that_its_statements_allow() -> None:
    kinds = {what for _, _, what in NAMES}
    assert {
        "Compare becomes LtE",
        "Compare becomes NotEq",
        "BoolOp becomes Or",
        "BoolOp loses operand 1",
        "If always True",
        "If always False",
        "Constant plus 1",
        "Constant flipped",
        "AugAssign becomes Add",
        "AugAssign deleted",
        "Expr deleted",
        "Continue deleted",
        "Break deleted",
        "min becomes max",
        "min loses argument 0",
        "Call loses reverse",
        "Return of nothing",
    } <= kinds
    assert len({(number, k) for number, k, _ in NAMES}) == len(NAMES)


def test_assertions_docstrings_and_logs_have_no_mutants() -> None:
    lines = {line for _number, _k, line, _what, _make in changes(tree())}
    source = SOURCE.splitlines()
    for line in lines:
        assert not any(word in source[line - 1] for word in ("assert", "Documented", "logger"))


@pytest.mark.parametrize(("number", "k", "what"), NAMES, ids=lambda part: str(part))
def test_a_mutant_compiles_and_is_another_tree(number: int, k: int, what: str) -> None:
    changed = tree()
    mutate(changed, number, k)
    assert ast.dump(changed) != ast.dump(tree())
    what_it_does(changed)


def test_most_mutants_do_something_else() -> None:
    alike = []
    for number, k, what in NAMES:
        changed = copy.deepcopy(tree())
        mutate(changed, number, k)
        if what_it_does(changed) == what_it_does(tree()):
            alike.append(what)
    assert len(alike) < len(NAMES) / 4, alike


def test_a_mutant_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"scan: there is no mutant 999\.0"):
        mutate(tree(), 999, 0)
