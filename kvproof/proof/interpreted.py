"""The model's own source run as ordinary Python, stopping where one asks for it.

The kernels are functions of Python before numba compiles them. Here they are given globals in which
they call each other as such, on plain lists instead of records, and a watcher is told of chosen
calls. Nothing of the compiled model is changed.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from kvproof.model import (
    async_scheduler,
    block_pool,
    connector,
    device,
    engine,
    kv_cache,
    queues,
    scheduler,
)
from kvproof.model.compiled import Compiled
from kvproof.native.record import Layout, Record

_MODULES = (
    async_scheduler,
    block_pool,
    connector,
    device,
    engine,
    kv_cache,
    queues,
    scheduler,
)


class Watcher(Protocol):
    """Told after each call of the functions in `watched`, of nested ones only of the outermost."""

    watched: ClassVar[tuple[str, ...]]

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """The function of this name was called with these arguments and returned `result`."""


class Grid:
    """A field with two or three dimensions over one list of cells."""

    __slots__ = ("cells", "shape", "strides")

    def __init__(self, cells: list[int], shape: tuple[int, ...]) -> None:
        self.cells = cells
        self.shape = shape
        self.strides = [math.prod(shape[i + 1 :]) for i in range(len(shape) - 1)]

    def _place(self, index: tuple[int, ...]) -> int:
        if len(index) == 2:
            return index[0] * self.strides[0] + index[1]
        return index[0] * self.strides[0] + index[1] * self.strides[1] + index[2]

    def __getitem__(self, index: tuple[int, ...]) -> int:
        return self.cells[self._place(index)]

    def __setitem__(self, index: tuple[int, ...], value: int) -> None:
        self.cells[self._place(index)] = value

    def row(self, *index: int) -> list[int]:
        """The cells of the last dimension."""
        start = self._place((*index, 0))
        return self.cells[start : start + self.shape[-1]]


class Plain:
    """A record's fields as plain numbers, lists and grids."""

    def __init__(self, record: Record) -> None:
        cells = record.cells.tolist()
        for name, (start, end, shape) in record.layout.places.items():
            value: Any = cells[start:end]
            if not shape:
                value = cells[start]
            elif len(shape) > 1:
                value = Grid(value, shape)
            setattr(self, name, value)
        first_lasting = record.schema.first_lasting
        self._cleared = [field.name for field in record.schema.fields[:first_lasting]]

    def clear(self) -> None:
        """Zero every field but those that last."""
        for name in self._cleared:
            value = getattr(self, name)
            if isinstance(value, Grid):
                value.cells[:] = [0] * len(value.cells)
            elif isinstance(value, list):
                value[:] = [0] * len(value)
            else:
                setattr(self, name, 0)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def cells(self, layout: Layout) -> list[int]:
        """The cells of the record with this content."""
        found: list[int] = []
        for name, (_start, _end, shape) in layout.places.items():
            value = getattr(self, name)
            if not shape:
                found.append(int(value))
            else:
                found.extend(map(int, value.cells if len(shape) > 1 else value))
        return found


def kernels() -> dict[str, types.FunctionType]:
    """The functions of the model as they are written, by names like "scheduler.free_request"."""
    found = {}
    for module in _MODULES:
        for name, value in vars(module).items():
            source = getattr(value, "py_func", value)
            if isinstance(source, types.FunctionType) and source.__module__ == module.__name__:
                found[f"{module.__name__.removeprefix('kvproof.model.')}.{name}"] = source
    return found


class Interpreted:
    """The model of one scope, interpreted; functions are named like "scheduler.free_request"."""

    def __init__(self, compiled: Compiled, watchers: Sequence[Watcher] = ()) -> None:
        self.compiled = compiled
        self.c = Plain(compiled.c)
        self._spaces = {module: types.SimpleNamespace() for module in _MODULES}
        names = self._functions(watchers)
        for watcher in watchers:
            unknown = set(watcher.watched) - set(names)
            if unknown:
                raise ValueError(f"the model has no functions {sorted(unknown)}")
        self._apply = self._spaces[engine].apply

    def _functions(self, watchers: Sequence[Watcher]) -> list[str]:
        """Give every kernel globals with the interpreted ones; returns their names."""
        depths = [[0] for _ in watchers]
        sources = kernels()
        for module, space in self._spaces.items():
            scope = dict(vars(module))
            for name, value in vars(module).items():
                if isinstance(value, types.ModuleType) and value in self._spaces:
                    scope[name] = self._spaces[value]
                where = f"{module.__name__.removeprefix('kvproof.model.')}.{name}"
                source = sources.get(where)
                if source is None:
                    setattr(space, name, value)
                    continue
                function: Any = types.FunctionType(source.__code__, scope, name)
                function.__defaults__ = source.__defaults__
                for watcher, depth in zip(watchers, depths, strict=True):
                    if where in watcher.watched:
                        function = _watch(watcher, depth, where, function)
                scope[name] = function
                setattr(space, name, function)
        return list(sources)

    def apply(self, state: Plain, report: Plain, action: int) -> None:
        """Take an action on the state in place (engine.apply)."""
        self._apply(state, self.c, report, action)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the model on a state of its own."""
        module, _, function = name.partition(".")
        space = next(x for m, x in self._spaces.items() if m.__name__ == f"kvproof.model.{module}")
        return getattr(space, function)(*arguments)

    def report(self) -> Plain:
        """An empty report."""
        return Plain(self.compiled.new_report())

    def state(self, row: np.ndarray) -> Plain:
        """The state in a row."""
        return Plain(self.compiled.read(row))


def _watch(watcher: Watcher, depth: list[int], where: str, function: Any) -> Any:
    def watched(*arguments: Any) -> Any:
        depth[0] += 1
        try:
            result = function(*arguments)
        finally:
            depth[0] -= 1
        if depth[0] == 0:
            watcher.called(where, arguments, result)
        return result

    return watched
