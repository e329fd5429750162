"""The model of a small scope as plain Python, its functions called one by one by name."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from kvproof.model.compiled import compile_scope
from kvproof.model.rules import Rule
from kvproof.model.scope import RequestSpec, Scope
from kvproof.proof.interpreted import Interpreted, Plain


def small_scope(**options: Any) -> Scope:
    """Three requests of which the first two are equal, five blocks of two tokens besides null."""
    requests = (
        RequestSpec(prompt=(1, 2, 1, 2, 1), max_tokens=3),
        RequestSpec(prompt=(1, 2, 1, 2, 1), max_tokens=3),
        RequestSpec(prompt=(1, 2, 2), max_tokens=5),
    )
    values = {
        "name": "small",
        "requests": requests,
        "num_blocks": 6,
        "max_num_batched_tokens": 8,
        "max_model_len": 8,
    }
    return Scope(**{**values, **options})


class SmallModel:
    """One state of a scope, its report, and the functions that change them."""

    def __init__(self, scope: Scope, off: tuple[str, ...] = ()) -> None:
        self.compiled = compile_scope(scope)
        self.model = Interpreted(self.compiled)
        self.c = self.model.c
        for rule in off:
            self.c.rules[Rule[rule]] = 0
        self.fresh()

    def fresh(self) -> None:
        """Start anew, with the state of a fresh engine."""
        self.s = Plain(self.compiled.state.new())
        self.e = self.model.report()
        self.model.call("engine.start", self.s, self.c)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call one like "block_pool.fail", given the records that its first parameters name."""
        module, _, function = name.partition(".")
        kernel = getattr(importlib.import_module(f"kvproof.model.{module}"), function)
        records = {"s": self.s, "c": self.c, "e": self.e}
        parameters = inspect.signature(getattr(kernel, "py_func", kernel)).parameters
        first = [records[parameter] for parameter in parameters if parameter in records]
        return self.model.call(name, *first, *arguments)

    def cells(self) -> list[int]:
        """All cells of the state."""
        return self.s.cells(self.compiled.state)
