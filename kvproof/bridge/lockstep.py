"""Lockstep: every explored transition, taken by the model and by the real classes at once.

The search's tree of first paths is walked depth first. At each state every enabled action is taken
once on both sides, so that each transition of the searched graph is compared; a snapshot on the
real side makes going back cheap. Operations travel in batches, and the real side works on one
batch while the model prepares the next. After a difference only shorter runs are taken, so that
the last one found is the shortest.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Expected, Field, compare, is_endless, is_skipped, told
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

_BATCH = 400


@dataclass(frozen=True)
class Difference:
    """A run after whose last action the two sides differ: field, model's value, vLLM's value."""

    scope: Scope
    codes: tuple[int, ...]
    fields: tuple[Field, ...]

    @property
    def trace(self) -> Trace:
        """The run as a trace."""
        return from_codes(self.scope, self.codes)

    @property
    def lines(self) -> list[str]:
        """Each field that differs, with both values."""
        return [f"  {line}" for line in told(self.fields)]


@dataclass(frozen=True)
class Report(Shown):
    """What a lockstep compared; `difference` is the shortest one found, None if all was equal.

    `left` transitions were not compared, for a Ctrl-C came. `unseen` cannot be observed on this
    release.
    """

    scope: str
    version: str
    transitions: int
    operations: int
    seconds: float
    difference: Difference | None
    left: int = 0
    unseen: tuple[str, ...] = ()

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
            f"{'; not observed there: ' if self.unseen else ''}{', '.join(self.unseen)}"
        )

    def __str__(self) -> str:
        lines = [f"{self.scope}: {'equal' if self.agrees else 'DIFFERENT'}{self.figures}"]
        if self.difference is not None:
            lines += ["", str(self.difference.trace), *self.difference.lines]
        return "\n".join(lines)


def _tree(result: Result) -> dict[int, dict[int, int]]:
    """Children of each state in the tree of first paths: state -> action -> state."""
    parents: NDArray[np.uint32] = result.store.parents
    actions: NDArray[np.int32] = result.store.actions
    children: dict[int, dict[int, int]] = {}
    for state in range(result.initial_states, result.states):
        children.setdefault(int(parents[state]), {})[int(actions[state])] = state
    return children


class _Walk:
    """The operations of a lockstep in order, each with what is expected of it (None: no answer).

    No run has more than `most` actions, which may fall on the way.
    """

    def __init__(self, compiled: Compiled, children: dict[int, dict[int, int]]) -> None:
        self.compiled = compiled
        self.children = children
        self.most = sys.maxsize

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
            if len(codes) >= self.most:
                if k > 0:
                    yield ["pop"], None
                return
            if k == 0 and len(enabled) > 1:
                yield ["push"], None
            elif k > 0:
                yield ["pop" if k == len(enabled) - 1 else "peek"], None
            action = name_action(self.compiled, state, code)
            after = state.copy()
            report = self.compiled.new_report()
            engine.apply(after, self.compiled.c, report, code)
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


class Comparison:
    """A lockstep under way over an exhausted search: what was compared so far."""

    def __init__(
        self,
        scope: Scope,
        result: Result,
        client: Client,
        watch: Callable[[int, int], None] | None = None,
    ) -> None:
        self.operations = self.transitions = 0
        self._scope = scope
        self._total = result.transitions
        self._walk = _Walk(compile_scope(scope), _tree(result))
        self._client = client
        self._watch = watch
        self._pending: list[list[Expected | None]] = []
        self._endless = False

    def differences(self) -> Iterator[Difference]:
        """Each difference that is shorter than the one before."""
        self._endless = True
        while self._endless:
            # What does not return takes the rest of the walk with it.
            self._endless = False
            self.transitions = 0
            yield from self._take()

    def _take(self) -> Iterator[Difference]:
        awaited: list[Expected | None] = []
        batch: list[list[Any]] = []
        try:
            for operation, expected in self._walk.operations():
                batch.append(operation)
                awaited.append(expected)
                self.operations += 1
                if len(batch) >= _BATCH:
                    self._submit(batch, awaited)
                    batch, awaited = [], []
                    if len(self._pending) > 1:
                        yield from self._collect()
                if self._endless:
                    break
            if batch and not self._endless:
                self._submit(batch, awaited)
            while self._pending:
                yield from self._collect()
        except GeneratorExit:
            while self._pending:
                self._pending.pop()
                self._client.collect()
            raise

    def _submit(self, batch: list[list[Any]], awaited: list[Expected | None]) -> None:
        self._client.submit(batch)
        self._pending.append(awaited)

    def _collect(self) -> Iterator[Difference]:
        answers = self._client.collect()
        for expected, answer in zip(self._pending.pop(0), answers, strict=True):
            if expected is None or len(expected.codes) > self._walk.most:
                continue
            if is_skipped(answer) and self._walk.most < sys.maxsize:
                continue
            self.transitions += 1
            fields = compare(expected, answer)
            if fields:
                self._walk.most = len(expected.codes) - 1
                self._endless |= is_endless(answer)
                yield Difference(self._scope, expected.codes, fields)
        if self._watch is not None:
            self._watch(self.transitions, self._total)


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
    comparison = Comparison(scope, result, client, watch)
    started = time.perf_counter()
    left = 0
    shortest: Difference | None = None
    try:
        for found in comparison.differences():
            shortest = found
    except KeyboardInterrupt:
        left = result.transitions - comparison.transitions
    return Report(
        scope=scope.name,
        version=client.version,
        transitions=comparison.transitions,
        operations=comparison.operations,
        seconds=time.perf_counter() - started,
        difference=shortest,
        left=left,
        unseen=client.unseen,
    )


def lockstep_scope(
    scope: Scope, client: Client, *, watch: Callable[[int, int], None] | None = None
) -> Report:
    """Search a scope to the end and replay all of its transitions on the real classes."""
    return lockstep(scope, explore(SchedulerSystem(scope)).finished(), client, watch=watch)
