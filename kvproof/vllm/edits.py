"""Edits: functions of vLLM changed in this process, by rewriting their syntax trees.

An edit names a function and places in it; a place is told by what stands there (a kind of node and
the names that occur in it), never by its text or line, and must be found exactly once. The code of
the function object is exchanged, so that every reference to it sees the change, and put back.
"""

from __future__ import annotations
import __future__

import ast
import copy
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol

from kvproof.errors import KvproofError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Rewrite = Callable[[ast.AST], ast.AST | list[ast.stmt]]

_OUTER = "_cells"
_FEATURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FEATURE_FLAGS |= getattr(__future__, _name).compiler_flag


class EditError(KvproofError, ValueError):
    """An edit does not fit the function that it names."""


@dataclass(frozen=True)
class Place:
    """The one node of a kind in whose `part` (a field of the node; all of it) `names` occur.

    `within` narrows the search to a field of another place: (place, field), where a list of
    statements is a field too.
    """

    kind: type[ast.AST]
    names: tuple[str, ...]
    part: str = ""
    within: tuple[Place, str] | None = None

    def __str__(self) -> str:
        text = f"{self.kind.__name__} whose {self.part or 'node'} names {', '.join(self.names)}"
        if self.within is not None:
            text += f", in the {self.within[1]} of the {self.within[0]}"
        return text

    def find(self, root: ast.AST) -> ast.AST:
        """The node; EditError where there is none, or more than one."""
        roots: list[ast.AST] = [root]
        if self.within is not None:
            outer, field = self.within
            inner = getattr(outer.find(root), field)
            roots = inner if isinstance(inner, list) else [inner]
        found = [
            node
            for one in roots
            for node in ast.walk(one)
            if isinstance(node, self.kind) and set(self.names) <= names_in(_part(node, self.part))
        ]
        if len(found) != 1:
            raise EditError(f"{len(found)} places instead of one are a {self}")
        return found[0]


def _part(node: ast.AST, name: str) -> list[ast.AST]:
    part = getattr(node, name) if name else node
    if isinstance(part, list):
        return part
    return [] if part is None else [part]


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of variables, attributes and keywords that occur in the nodes."""
    names = set()
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, (ast.keyword, ast.arg)) and node.arg is not None:
                names.add(node.arg)
    return names


class Changes(Protocol):
    """Something that changes the tree of a function."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Where; all are found before anything is changed."""
        ...

    def apply(self, function: FunctionNode, found: list[ast.AST]) -> None:
        """Change the tree in place, given what stands at the places."""
        ...


@dataclass(frozen=True)
class Change:
    """What stands at a place becomes something else."""

    place: Place
    to: Rewrite

    @property
    def places(self) -> tuple[Place, ...]:
        """The place."""
        return (self.place,)

    def apply(self, function: FunctionNode, found: list[ast.AST]) -> None:
        """Change the function's tree in place."""
        (node,) = found
        replace(function, node, self.to(node))


@dataclass(frozen=True)
class Move:
    """A statement moves to before another one."""

    place: Place
    before: Place

    @property
    def places(self) -> tuple[Place, ...]:
        """From where, and to where."""
        return (self.place, self.before)

    def apply(self, function: FunctionNode, found: list[ast.AST]) -> None:
        """Change the function's tree in place."""
        moved, target = found
        assert isinstance(moved, ast.stmt)
        assert isinstance(target, ast.stmt)
        replace(function, moved, ast.Pass())
        replace(function, target, [moved, target])


@dataclass(frozen=True)
class Edit:
    """Changes of one function, named as "package.module:Qualified.name"."""

    function: str
    changes: tuple[Changes, ...]


def replace(root: ast.AST, node: ast.AST, by: ast.AST | list[ast.stmt]) -> None:
    """Put something in the place of a node of the tree, with the node's line numbers."""
    met = False

    class Replacement(ast.NodeTransformer):
        def visit(self, seen: ast.AST) -> Any:
            nonlocal met
            if seen is not node:
                return self.generic_visit(seen)
            met = True
            for one in by if isinstance(by, list) else [by]:
                for part in ast.walk(one):
                    if not hasattr(part, "lineno") and hasattr(node, "lineno"):
                        ast.copy_location(part, node)
            return by

    Replacement().visit(root)
    if not met:
        raise EditError(f"another change has taken away a {type(node).__name__}")
    ast.fix_missing_locations(root)


def drop(node: ast.AST) -> ast.AST:
    """Nothing in the place of a statement."""
    assert isinstance(node, ast.stmt)
    return ast.Pass()


def never(node: ast.AST) -> ast.AST:
    """The same branch or loop, never taken."""
    return _with_test(node, ast.And(), False)


def always(node: ast.AST) -> ast.AST:
    """The same branch or loop, always taken."""
    return _with_test(node, ast.Or(), True)


def _with_test(node: ast.AST, operator: ast.boolop, value: bool) -> ast.AST:
    """Another operand decides; what it decides over stays, for other changes to be found there."""
    assert isinstance(node, (ast.If, ast.While, ast.IfExp))
    test = ast.BoolOp(operator, [ast.Constant(value), node.test])
    node.test = ast.copy_location(test, node.test)
    return node


def and_also(text: str) -> Rewrite:
    """A branch that is taken only if our own condition holds too."""

    def changed(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.If)
        node.test = ast.BoolOp(ast.And(), [node.test, _expression(text, node.test)])
        return node

    return changed


def with_argument(name: str, text: str) -> Rewrite:
    """A call with one more argument, given by name."""

    def changed(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        node.keywords.append(ast.keyword(name, _expression(text, node)))
        return node

    return changed


def without(*names: str) -> Rewrite:
    """An and, an or or a call that loses the one operand or argument in which the names occur."""

    def lose(node: ast.AST) -> ast.AST:
        field = "values" if isinstance(node, ast.BoolOp) else "args"
        operands: list[ast.expr] = getattr(node, field)
        kept = [one for one in operands if not set(names) <= names_in([one])]
        if len(kept) != len(operands) - 1:
            raise EditError(f"{len(operands) - len(kept)} operands instead of one name {names}")
        if len(kept) == 1 and isinstance(node, ast.BoolOp):
            return kept[0]
        setattr(node, field, kept)
        return node

    return lose


def _ours(text: str, place: ast.AST) -> list[ast.stmt]:
    """Our own statements, which count as standing in the line of the place."""
    module = ast.parse(text)
    for node in ast.walk(module):
        ast.copy_location(node, place)
    return module.body


def _expression(text: str, place: ast.AST) -> ast.expr:
    (statement,) = _ours(text, place)
    assert isinstance(statement, ast.Expr)
    return statement.value


def become(text: str) -> Rewrite:
    """Our own expression, or statements, in the place of an expression or of a statement."""

    def changed(node: ast.AST) -> ast.AST | list[ast.stmt]:
        return _expression(text, node) if isinstance(node, ast.expr) else _ours(text, node)

    return changed


def preceded_by(text: str) -> Rewrite:
    """A statement with our own statements before it."""

    def changed(node: ast.AST) -> list[ast.stmt]:
        assert isinstance(node, ast.stmt)
        return [*_ours(text, node), node]

    return changed


def followed_by(text: str) -> Rewrite:
    """A statement with our own statements after it."""

    def changed(node: ast.AST) -> list[ast.stmt]:
        assert isinstance(node, ast.stmt)
        return [node, *_ours(text, node)]

    return changed


def function_named(name: str) -> FunctionType:
    """The function of "package.module:Qualified.name", out of its descriptor and its wrappers."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        try:
            found = inspect.getattr_static(found, part)
        except AttributeError:
            raise EditError(f"{name}: there is no such function") from None
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        elif isinstance(found, property):
            found = found.fget
    found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise EditError(f"{name}: {type(found).__name__} instead of a function")
    return found


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text(encoding="utf-8"))


def source_of(function: FunctionType) -> tuple[FunctionNode, str | None]:
    """A copy of the function's tree without decorators, and the name of its class."""
    code = function.__code__
    stack: list[tuple[ast.AST, str | None]] = [(_tree(code.co_filename), None)]
    while stack:
        node, owner = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                tree = copy.deepcopy(node)
                tree.decorator_list = []
                return tree, owner
        inner = node.name if isinstance(node, ast.ClassDef) else owner
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))
    raise EditError(f"{function.__qualname__}: its source is not in {code.co_filename}")


def _compiled(function: FunctionType, tree: FunctionNode, owner: str | None) -> CodeType:
    """The code of a changed tree, as good as the original's for the same function object."""
    original = function.__code__
    free = original.co_freevars
    if free:
        # A name that the changed function uses no more keeps its cell.
        mention = ast.If(ast.Constant(False), [ast.Expr(ast.Name(n, ast.Load())) for n in free], [])
        tree.body.append(ast.copy_location(mention, tree.body[-1]))
    inner: ast.stmt = tree
    if owner is not None:
        inner = ast.ClassDef(owner, bases=[], keywords=[], body=[tree], decorator_list=[])
    cells: list[ast.stmt] = [] if owner is None else [ast.Global([owner])]
    cells += [
        ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None))
        for name in free
        if name != "__class__"
    ]
    outer = ast.parse(f"def {_OUTER}(): pass")
    assert isinstance(outer.body[0], ast.FunctionDef)
    outer.body[0].body = [*cells, inner]
    code = compile(
        ast.fix_missing_locations(outer),
        original.co_filename,
        "exec",
        flags=original.co_flags & _FEATURE_FLAGS,
        dont_inherit=True,
    )
    depth = [_OUTER] if owner is None else [_OUTER, owner]
    for name in (*depth, tree.name):
        (code,) = (
            one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name
        )
    if code.co_freevars != free:
        raise EditError(
            f"{function.__qualname__}: the changed function closes over {code.co_freevars}, "
            f"the original over {free}"
        )
    return _renamed(code, code.co_qualname, original.co_qualname)


def _renamed(code: CodeType, prefix: str, by: str) -> CodeType:
    """The code and those inside it with another beginning of their qualified names."""
    return code.replace(
        co_qualname=by + code.co_qualname.removeprefix(prefix),
        co_consts=tuple(
            _renamed(one, prefix, by) if isinstance(one, CodeType) else one
            for one in code.co_consts
        ),
    )


_changed: set[FunctionType] = set()


@contextmanager
def rewritten(
    function: FunctionType, rewrite: Callable[[FunctionNode], None]
) -> Iterator[FunctionType]:
    """The function with its tree changed in place by `rewrite`, until the end of the context."""
    if function in _changed:
        raise EditError(f"{function.__qualname__} is changed already")
    original = function.__code__
    tree, owner = source_of(function)
    rewrite(tree)
    function.__code__ = _compiled(function, tree, owner)
    _changed.add(function)
    try:
        yield function
    finally:
        _changed.discard(function)
        function.__code__ = original


@contextmanager
def edited(edits: Iterable[Edit]) -> Iterator[None]:
    """The functions with these edits, until the end of the context; EditError if one misfits."""
    by_function: dict[str, list[Changes]] = {}
    for edit in edits:
        by_function.setdefault(edit.function, []).extend(edit.changes)
    with ExitStack() as stack:
        for name, changes in by_function.items():

            def change_all(
                tree: FunctionNode, name: str = name, changes: list[Changes] = changes
            ) -> None:
                try:
                    found = [[place.find(tree) for place in change.places] for change in changes]
                    for change, nodes in zip(changes, found, strict=True):
                        change.apply(tree, nodes)
                except EditError as error:
                    raise EditError(f"{name}: {error}") from None

            stack.enter_context(rewritten(function_named(name), change_all))
        yield
