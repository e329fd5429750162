"""Mutations: the small changes of a function's tree that make its mutants.

A change is named by the number of a node of the tree, in the order of `ast.walk`, and its own
number at that node: the same for the same source, and no text of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from kvproof.vllm.edits import FunctionNode, names_in

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITE_CALLS = {"min": "max", "max": "min", "append": "appendleft", "popleft": "pop"}
_TRANSPARENT_CALLS = {"reversed", "sorted", "list", "set"}

Change = tuple[str, Callable[[], None]]


def _excluded(tree: FunctionNode) -> set[int]:
    """Nodes whose change says nothing: docstrings, assertions, logs, annotations."""
    out: set[int] = set()
    for node in ast.walk(tree):
        quiet = isinstance(node, (ast.Assert, ast.Raise)) or (
            isinstance(node, ast.Expr)
            and (isinstance(node.value, ast.Constant) or "logger" in names_in([node.value]))
        )
        parts = [node] if quiet else []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts += [node.args, *([node.returns] if node.returns else [])]
        if isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        out.update(id(inner) for part in parts for inner in ast.walk(part))
    return out


def statement_lines(tree: FunctionNode) -> list[tuple[int, int]]:
    """First and last line of each statement that leaves something to run, nested ones included.

    Of a compound statement they are those of its head.
    """
    out = []
    for node in ast.walk(tree):
        if node is tree or not isinstance(node, ast.stmt) or _leaves_nothing(node):
            continue
        last = node.end_lineno or node.lineno
        inner = [block[0].lineno for block in _blocks(node) if block]
        out.append((node.lineno, max(node.lineno, min([last, *(line - 1 for line in inner)]))))
    return sorted(out)


def _leaves_nothing(node: ast.stmt) -> bool:
    """Whether no line of its own runs: a docstring, a declaration, a try."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.AnnAssign):
        return node.value is None
    return isinstance(node, (ast.Try, ast.Global, ast.Nonlocal))


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


def changes(tree: FunctionNode) -> Iterator[tuple[int, int, int, str, Callable[[], None]]]:
    """Each change: number of its node, its own number there, line, what it does, and how."""
    excluded = _excluded(tree)
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in excluded or node is tree:
            continue
        line = getattr(node, "lineno", 0)
        for k, (what, make) in enumerate(_of_node(node)):
            yield number, k, line, what, make
        for block in _blocks(node):
            yield from _deletions(number, block, excluded)
    yield from _deletions(0, tree.body, excluded)


def _deletions(
    number: int, block: list[ast.stmt], excluded: set[int]
) -> Iterator[tuple[int, int, int, str, Callable[[], None]]]:
    for place, statement in enumerate(block):
        if id(statement) in excluded or not _can_go(statement):
            continue

        def delete(block: list[ast.stmt] = block, place: int = place) -> None:
            block[place] = ast.copy_location(ast.Pass(), block[place])

        kind = type(statement).__name__
        # Each statement has a line of its own, which tells it from its neighbours.
        yield number, 1000 + statement.lineno, statement.lineno, f"{kind} deleted", delete


def _can_go(statement: ast.stmt) -> bool:
    """Whether something is left to run without the statement; a lost variable is no mutant."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(one, (ast.Attribute, ast.Subscript)) for one in statement.targets)
    return isinstance(statement, (ast.Expr, ast.AugAssign, ast.Delete, ast.Continue, ast.Break))


def _setting(node: ast.AST, field: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, field, value)


def _of_node(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISONS[type(node.ops[0])]:
            yield f"Compare becomes {other.__name__}", _setting(node, "ops", [other()])
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"BoolOp becomes {type(other_op).__name__}", _setting(node, "op", other_op)
        for i in range(len(node.values)):
            kept = [one for j, one in enumerate(node.values) if j != i]
            kept = kept if len(kept) > 1 else kept * 2
            yield f"BoolOp loses operand {i}", _setting(node, "values", kept)
    elif isinstance(node, (ast.If, ast.IfExp)):
        for value in (True, False):
            yield (
                f"{type(node).__name__} always {value}",
                _setting(node, "test", ast.Constant(value)),
            )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        twice = ast.UnaryOp(ast.Not(), node.operand)
        yield "Not lost", _setting(node, "operand", twice)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
        other_operator = _ARITHMETIC[type(node.op)]
        kind = type(node).__name__
        yield f"{kind} becomes {other_operator.__name__}", _setting(node, "op", other_operator())
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "Constant flipped", _setting(node, "value", not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "Constant plus 1", _setting(node, "value", node.value + 1)
    elif isinstance(node, ast.Return) and not _is_nothing(node.value):
        yield "Return of nothing", _setting(node, "value", ast.Constant(None))
        if isinstance(node.value, (ast.Compare, ast.BoolOp)):
            yield "Return negated", _setting(node, "value", ast.UnaryOp(ast.Not(), node.value))
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
        more = ast.BinOp(node.value, ast.Add(), ast.Constant(1))
        yield "Assign plus 1", _setting(node, "value", more)


def _is_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _of_call(node: ast.Call) -> Iterator[Change]:
    function = node.func
    field = "id" if isinstance(function, ast.Name) else "attr"
    name = getattr(function, field, "")
    if name in _OPPOSITE_CALLS:
        other = _OPPOSITE_CALLS[name]
        yield f"{name} becomes {other}", _setting(function, field, other)
    if name in _TRANSPARENT_CALLS and len(node.args) == 1:
        yield f"{name} becomes iter", _setting(node, "func", ast.Name("iter", ast.Load()))
    if name in ("min", "max") and len(node.args) > 1:
        for i in range(len(node.args)):
            kept = [one for j, one in enumerate(node.args) if j != i]
            kept = kept if len(kept) > 1 else kept * 2
            yield f"{name} loses argument {i}", _setting(node, "args", kept)
    for i in range(len(node.keywords)):
        kept_keywords = [one for j, one in enumerate(node.keywords) if j != i]
        yield f"Call loses {node.keywords[i].arg}", _setting(node, "keywords", kept_keywords)


def mutate(tree: FunctionNode, number: int, k: int) -> None:
    """Make one change of the function's tree."""
    for one, other, _line, _what, make in changes(tree):
        if (one, other) == (number, k):
            make()
            ast.fix_missing_locations(tree)
            return
    raise ValueError(f"{tree.name}: there is no mutant {number}.{k}")
