"""Edits of functions: found exactly once, put in everywhere, taken out again."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from kvproof.vllm.edits import (
    Change,
    Edit,
    EditError,
    Move,
    Place,
    always,
    become,
    drop,
    edited,
    followed_by,
    function_named,
    never,
    preceded_by,
    rewritten,
    source_of,
    without,
)

SOURCE = '''
from __future__ import annotations

import functools

LOG = []

def grow(value, by=1):
    """Documented."""
    if value > 10:
        return value
    LOG.append(value)
    return value + by

class Base:
    def total(self, *parts):
        return sum(parts)

class Queue(Base):
    __limit = 3

    def total(self, *parts, extra=0):
        if len(parts) > self.__limit and extra >= 0:
            raise ValueError("too many")
        return super().total(*parts) + extra

    @property
    def limit(self):
        return self.__limit

    @classmethod
    def of(cls, n):
        return [cls() for _ in range(n)]

    @staticmethod
    @functools.lru_cache
    def double(n):
        return 2 * n

    def largest(self, parts):
        def key(part):
            return abs(part)
        best = max(parts, key=key)
        return min(best, 5)
'''


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "edited_here.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("edited_here", None)
    import edited_here  # type: ignore[import-not-found]

    yield edited_here
    sys.modules.pop("edited_here", None)


def edit(function: str, *changes: Change | Move) -> Edit:
    return Edit(f"edited_here:{function}", changes)


LIMIT = Place(ast.If, ("value",), "test")


@pytest.mark.parametrize(
    ("function", "change", "call", "before", "after"),
    [
        ("grow", Change(LIMIT, never), lambda m: m.grow(20), 20, 21),
        ("grow", Change(LIMIT, always), lambda m: m.grow(2), 3, 2),
        (
            "grow",
            Change(Place(ast.Compare, ("value",)), become("value > 1")),
            lambda m: m.grow(2),
            3,
            2,
        ),
        (
            "grow",
            Change(Place(ast.Return, ("by",)), preceded_by("by = 7")),
            lambda m: m.grow(2),
            3,
            9,
        ),
        (
            "grow",
            Change(Place(ast.Expr, ("append",)), followed_by("value = 0")),
            lambda m: m.grow(2),
            3,
            1,
        ),
        (
            "Queue.total",
            Change(Place(ast.BoolOp, ("parts", "extra")), without("extra")),
            lambda m: m.Queue().total(1, 2, extra=-1),
            2,
            2,
        ),
        (
            "Queue.total",
            Change(Place(ast.If, ("parts", "extra"), "test"), drop),
            lambda m: m.Queue().total(1, 2, extra=1),
            4,
            4,
        ),
        (
            "Queue.total",
            Change(Place(ast.Return, ("extra",)), become("return self.__limit")),
            lambda m: m.Queue().total(1),
            1,
            3,
        ),
        (
            "Queue.limit",
            Change(Place(ast.Return, ()), become("return 8")),
            lambda m: m.Queue().limit,
            3,
            8,
        ),
        (
            "Queue.of",
            Change(Place(ast.Call, ("range",), "func"), become("range(n + 1)")),
            lambda m: len(m.Queue.of(2)),
            2,
            3,
        ),
        (
            "Queue.largest",
            Change(Place(ast.Call, ("min",), "func"), become("best")),
            lambda m: m.Queue().largest([-9, 1]),
            -9,
            -9,
        ),
        (
            "Queue.largest",
            Change(Place(ast.Call, ("abs",), "func"), become("part")),
            lambda m: m.Queue().largest([-9, 1]),
            -9,
            1,
        ),
    ],
)
def test_a_function_does_what_it_is_changed_to_and_then_what_it_did(
    module: Any, function: str, change: Change, call: Callable[[Any], Any], before: Any, after: Any
) -> None:
    assert call(module) == before
    with edited([edit(function, change)]):
        assert call(module) == after
    assert call(module) == before


def test_a_function_that_others_hold_is_changed_for_them_too(module: Any) -> None:
    held = module.grow
    with edited([edit("grow", Change(LIMIT, never))]):
        assert held(20) == 21
    assert held(20) == 20


def test_what_a_function_is_called_and_where_it_stands_stays(module: Any) -> None:
    function = module.Queue.largest
    kept = (function.__qualname__, function.__defaults__, function.__code__.co_filename)
    lines = function.__code__.co_firstlineno, {line for *_, line in function.__code__.co_lines()}
    inner = [code.co_qualname for code in function.__code__.co_consts if hasattr(code, "co_name")]
    with edited([edit("Queue.largest", Change(Place(ast.Call, ("min",), "func"), become("best")))]):
        code = function.__code__
        assert (code.co_qualname, function.__defaults__, code.co_filename) == kept
        assert (code.co_firstlineno, {line for *_, line in code.co_lines()}) == lines
        changed = [one.co_qualname for one in code.co_consts if hasattr(one, "co_name")]
        assert changed == inner


def test_a_statement_moves_before_another(module: Any) -> None:
    returns = Place(ast.If, ("value",), "test")
    with edited([edit("grow", Move(Place(ast.Expr, ("append",)), before=returns))]):
        module.grow(20)
    assert module.LOG == [20]


def test_changes_of_one_function_are_found_before_any_is_made(module: Any) -> None:
    test = Place(ast.If, ("parts", "extra"), "test")
    longer = Change(Place(ast.Compare, ("parts",), within=(test, "test")), become("len(parts) > 0"))
    with edited([edit("Queue.total", Change(test, never)), edit("Queue.total", longer)]):
        assert module.Queue().total(1, 1, 1, 1) == 4
    with (
        edited([edit("Queue.total", longer), edit("Queue.total", Change(test, always))]),
        pytest.raises(ValueError, match="too many"),
    ):
        module.Queue().total()


@pytest.mark.parametrize(
    ("function", "change", "said"),
    [
        (
            "grow",
            Change(Place(ast.If, ("nothing",), "test"), never),
            "grow: 0 places instead of one are a If whose test names nothing",
        ),
        (
            "grow",
            Change(Place(ast.Return, ("value",)), drop),
            "grow: 2 places instead of one are a Return whose node names value",
        ),
        (
            "Queue.total",
            Change(Place(ast.BoolOp, ("extra",)), without("nobody")),
            "Queue.total: 0 operands instead of one name",
        ),
        ("shrink", Change(LIMIT, never), "edited_here:shrink: there is no such function"),
        ("LOG", Change(LIMIT, never), "edited_here:LOG: list instead of a function"),
    ],
)
def test_an_edit_that_does_not_fit_says_which_and_changes_nothing(
    module: Any, function: str, change: Change, said: str
) -> None:
    before = module.grow.__code__
    with pytest.raises(EditError, match=said), edited([edit(function, change)]):
        pass
    assert module.grow.__code__ is before


def test_a_function_is_not_changed_twice_at_once(module: Any) -> None:
    with (
        edited([edit("grow", Change(LIMIT, never))]),
        pytest.raises(EditError, match="grow is changed already"),
        edited([edit("grow", Change(LIMIT, always))]),
    ):
        pass


def test_the_function_behind_its_descriptors_and_wrappers_is_found(module: Any) -> None:
    for name in ("Queue.limit", "Queue.of", "Queue.double", "Queue.total", "grow"):
        function = function_named(f"edited_here:{name}")
        assert isinstance(function, FunctionType)
        tree, owner = source_of(function)
        assert (tree.name, owner) == (name.split(".")[-1], "Queue" if "." in name else None)


def test_a_function_rewritten_to_itself_does_the_same(module: ModuleType) -> None:
    for name in ("Queue.limit", "Queue.of", "Queue.total", "Queue.largest", "grow"):
        function = function_named(f"edited_here:{name}")
        with rewritten(function, lambda tree: None) as same:
            assert same is function
            assert module.Queue().total(1, 2, extra=3) == 6
