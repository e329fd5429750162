"""Lockstep: every explored transition, taken by the model and by the real classes at once.

The search's tree of first paths is walked depth first. At each state every enabled action is taken
once on both sides, so that each transition of the searched graph is compared; a snapshot on the
real side makes going back cheap. Operations travel in batches, and the real side works on one
batch while the model prepares the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.observation import Past
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.scope import Scope
from kvproof.native.record import Record
from kvproof.search.explore import Result, explore
from kvproof.shown import Shown
from kvproof.trace.actions import Action
from kvproof.trace.codes import enabled_codes, name_action
from kvproof.trace.trace import Trace, from_codes
from kvproof.vllm import protocol

_BATCH = 400
_KEPT_DIFFERENCES = 20


@dataclass(frozen=True)
class Difference:
    """A run after whose last action the two sides differ: field, model's value, vLLM's value."""

    scope: Scope
    codes: tuple[int, ...]
    fields: tuple[tuple[str, Any, Any], ...]

    @property
    def trace(self) -> Trace:
        """The run as a trace."""
        return from_codes(self.scope, self.codes)

    @property
    def lines(self) -> list[str]:
        """Each field that differs, with both values."""
        return [
            f"  {field}\n    model {model}\n    vLLM  {real}" for field, model, real in self.fields
        ]


@dataclass(frozen=True)
class Report(Shown):
    """What a lockstep compared; `difference` is the shortest one found, None if all was equal.

    `left` transitions were not compared, for a Ctrl-C came.
    """

    scope: str
    version: str
    transitions: int
    operations: int
    seconds: float
    differences: int
    difference: Difference | None
    left: int = 0

    @property
    def agrees(self) -> bool:
        """Whether everything observable was equal after every transition that was compared."""
        return self.difference is None

    @property
    def interrupted(self) -> bool:
        """Whether a Ctrl-C came before the end."""
        return self.left > 0

    @property
    def figures(self) -> str:
        """What was compared, in words."""
        return (
            f"  {self.transitions:,} transitions replayed on vLLM {self.version}, "
            f"{f'{self.left:,} left, ' if self.left else ''}{self.seconds:.1f} s"
        )

    def __str__(self) -> str:
        lines = [f"{self.scope}: {'equal' if self.agrees else 'DIFFERENT'}{self.figures}"]
        if self.difference is not None:
            lines += ["", str(self.difference.trace), *self.difference.lines]
        return "\n".join(lines)


@dataclass
class Expected:
    """One operation under way: the run it ends, and what the model says of it.

    `past` is what the run has come by after it.
    """

    codes: tuple[int, ...]
    past: Past
    result: Any
    observation: list[Any]
    asserts: bool


def _tree(result: Result) -> dict[int, dict[int, int]]:
    """Children of each state in the tree of first paths: state -> action -> state."""
    parents: NDArray[np.uint32] = result.store.parents
    actions: NDArray[np.int32] = result.store.actions
    children: dict[int, dict[int, int]] = {}
    for state in range(result.initial_states, result.states):
        children.setdefault(int(parents[state]), {})[int(actions[state])] = state
    return children


class _Walk:
    """The operations of a lockstep in order, each with what is expected of it (None: no answer)."""

    def __init__(self, compiled: Compiled, children: dict[int, dict[int, int]]) -> None:
        self.compiled = compiled
        self.children = children
        self.transitions = 0

    def operations(self) -> Iterator[tuple[list[Any], Expected | None]]:
        yield observation.new_engine(self.compiled.scope), None
        stack = [self._visit(0, self.compiled.initial(), (), Past())]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif isinstance(item, tuple):
                yield item
            else:
                stack.append(item)

    def _visit(
        self, number: int, state: Record, codes: tuple[int, ...], past: Past
    ) -> Iterator[Any]:
        enabled = enabled_codes(self.compiled, state).tolist()
        children = self.children.get(number, {})
        for k, code in enumerate(enabled):
            if k == 0 and len(enabled) > 1:
                yield ["push"], None
            elif k > 0:
                yield ["pop" if k == len(enabled) - 1 else "peek"], None
            action = name_action(self.compiled, state, code)
            after = state.copy()
            report = self.compiled.new_report()
            engine.apply(after, self.compiled.c, report, code)
            self.transitions += 1
            operation, expected = expect(
                self.compiled, state, after, action, report, (*codes, code), past
            )
            yield operation, expected
            if code in children and not after.assertion:
                yield self._visit(children[code], after, expected.codes, expected.past)


def expect(
    compiled: Compiled,
    before: Record,
    after: Record,
    action: Action,
    report: Record,
    codes: tuple[int, ...],
    past: Past,
) -> tuple[list[Any], Expected]:
    """The driver's operation for an action that the model has taken, and what must come of it."""
    result = observation.expected_result(compiled, before, after, action, report, past)
    past = observation.passed(compiled, before, after, action, report, past)
    return observation.operation(compiled, before, action, report), Expected(
        codes=codes,
        past=past,
        result=result,
        observation=observation.observe(compiled, after, past),
        asserts=bool(after.assertion),
    )


def compare(expected: Expected, answer: Any) -> tuple[tuple[str, Any, Any], ...]:
    """The fields in which the real side's answer differs from the model's."""
    result, seen = answer
    if isinstance(result, list) and result and result[0] in ("error", "skipped"):
        return () if expected.asserts else (("outcome", "no error", result),)
    if expected.asserts:
        return (("outcome", "an assertion of vLLM", "no error"),)
    fields: list[tuple[str, Any, Any]] = []
    if result != expected.result:
        fields += _parts(expected.result, result)
    if seen != expected.observation:
        for name, model, real in zip(protocol.OBSERVATION, expected.observation, seen, strict=True):
            if model not in (real, observation.UNSTATED):
                fields.append((name, model, real))
    return tuple(fields)


def _parts(model: Any, real: Any) -> list[tuple[str, Any, Any]]:
    """The parts in which two results differ."""
    if not (isinstance(model, dict) and isinstance(real, dict)):
        return [("result", model, real)]
    return [
        (f"result, {key}", model.get(key), real.get(key))
        for key in {**model, **real}
        if model.get(key) not in (real.get(key), observation.UNSTATED)
    ]


def lockstep(
    scope: Scope,
    result: Result,
    client: Client,
    *,
    watch: Callable[[int, int], None] | None = None,
) -> Report:
    """Replay every transition of an exhausted search of `scope` on the real classes.

    `watch` is called with the transitions compared and their total. Ctrl-C ends it with what is
    done, and the client is of no use then.
    """
    compiled = compile_scope(scope)
    walk = _Walk(compiled, _tree(result))
    started = time.perf_counter()
    operations = compared = left = 0
    shortest: Difference | None = None
    differences = 0
    pending: list[list[Expected | None]] = []
    batch: list[list[Any]] = []
    awaited: list[Expected | None] = []

    def collect() -> None:
        nonlocal shortest, differences, compared
        for expected, answer in zip(pending.pop(0), client.collect(), strict=True):
            if expected is None:
                continue
            compared += 1
            fields = compare(expected, answer)
            if not fields:
                continue
            differences += 1
            if shortest is None or len(expected.codes) < len(shortest.codes):
                shortest = Difference(scope, expected.codes, fields)
        if watch is not None:
            watch(compared, result.transitions)

    try:
        for operation, expected in walk.operations():
            batch.append(operation)
            awaited.append(expected)
            operations += 1
            if len(batch) >= _BATCH:
                client.submit(batch)
                pending.append(awaited)
                batch, awaited = [], []
                if len(pending) > 1:
                    collect()
            if differences >= _KEPT_DIFFERENCES:
                break
        if batch:
            client.submit(batch)
            pending.append(awaited)
        while pending:
            collect()
    except KeyboardInterrupt:
        left = result.transitions - compared
    return Report(
        scope=scope.name,
        version=client.version,
        transitions=compared,
        operations=operations,
        seconds=time.perf_counter() - started,
        differences=differences,
        difference=shortest,
        left=left,
    )


def lockstep_scope(
    scope: Scope, client: Client, *, watch: Callable[[int, int], None] | None = None
) -> Report:
    """Search a scope to the end and replay all of its transitions on the real classes."""
    return lockstep(scope, explore(SchedulerSystem(scope)).finished(), client, watch=watch)
