"""Mutants of vLLM: its scheduler's functions with one small change each, made in this process.

`python -m kvproof.vllm.mutants FD` is the driver with more operations: `mutants` lists them,
`mutant` puts one in (or none, for None), `statements` lists those of each function by their
lines, `reach` answers with the lines of vLLM's files that have run since it was last asked. A
mutant is named by its function, the number of a node in the function's tree and the number of a
change of that node; its text is never shown.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import vllm

from kvproof.vllm.driver import Driver, serve_on
from kvproof.vllm.edits import (
    EditError,
    function_named,
    names_in,
    rewritten,
    source_of,
)
from kvproof.vllm.mutations import changes, mutate, statement_lines

MODULES = (
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.core.sched.request_queue",
    "vllm.v1.core.sched.utils",
    "vllm.v1.core.block_pool",
    "vllm.v1.core.kv_cache_manager",
    "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.core.kv_cache_utils",
    "vllm.v1.request",
)

_VLLM = os.path.dirname(vllm.__file__)

SECONDS = 1.0
"""Time that one call may take before it counts as one that does not return."""


def functions() -> list[str]:
    """Every function of the files, as the edits name it; nested ones are part of theirs."""
    # A property's setter has the name of its getter.
    return list(dict.fromkeys(_functions()))


def _functions() -> Iterator[str]:
    for module in MODULES:
        file = inspect.getsourcefile(importlib.import_module(module))
        assert file is not None
        for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                yield f"{module}:{node.name}"
            elif isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, ast.FunctionDef):
                        yield f"{module}:{node.name}.{one.name}"


@cache
def _short(file: str) -> str:
    """A file of vLLM's, wherever vLLM is."""
    return os.path.relpath(file, _VLLM)


def listed() -> list[list[Any]]:
    """Every mutant: its name, its file, its line, and what it does to which names."""
    out = []
    for name in functions():
        function = function_named(name)
        try:
            tree, _ = source_of(function)
        except EditError:
            # A function that is made by a decorator has no tree of its own.
            continue
        nodes = list(ast.walk(tree))
        for number, k, line, what, _make in changes(tree):
            names = sorted(names_in([nodes[number]]))[:8] if number else []
            file = _short(function.__code__.co_filename)
            out.append([f"{name}#{number}.{k}", file, line, what, names])
    return out


def statements() -> list[list[Any]]:
    """Each function: its name, its file, and the first and last line of each of its statements.

    Lines of a compound statement are those of its head; what leaves nothing to run is left out.
    """
    out = []
    for name in functions():
        function = function_named(name)
        try:
            tree, _ = source_of(function)
        except EditError:
            continue
        spans = [list(lines) for lines in statement_lines(tree)]
        if spans:
            out.append([name, _short(function.__code__.co_filename), spans])
    return out


class Mutants:
    """The driver's operations, on vLLM with a mutant in it."""

    def __init__(self) -> None:
        self._driver = Driver(SECONDS)
        self._in = ExitStack()
        self._lines: set[tuple[str, int]] = set()
        self._files: set[str] = set()

    def answer(self, operation: list[Any]) -> Any:
        """The answer to an operation of the driver, or to one of ours."""
        name, *arguments = operation
        if name == "mutants":
            return listed()
        if name == "statements":
            return statements()
        if name == "mutant":
            return self._put_in(*arguments)
        if name == "reach":
            return self._reach()
        return self._driver.answer(operation)

    def _put_in(self, name: str | None) -> None:
        random.seed(0)
        self._in.close()
        self._driver = Driver(SECONDS)
        if name is not None:
            function, _, place = name.partition("#")
            number, _, k = place.partition(".")
            self._in.enter_context(
                rewritten(function_named(function), lambda tree: mutate(tree, int(number), int(k)))
            )

    def _reach(self) -> list[list[Any]]:
        if not self._files:
            self._files = {str(importlib.import_module(one).__file__) for one in MODULES}
            sys.settrace(self._called)
        lines = sorted(self._lines)
        self._lines.clear()
        return [list(one) for one in lines]

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        self._lines.add((_short(frame.f_code.co_filename), frame.f_lineno))
        return self._line


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]), Mutants().answer)


if __name__ == "__main__":
    main()
