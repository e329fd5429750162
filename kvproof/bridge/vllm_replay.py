"""One trace on the real classes: is what the model shows a fact about vLLM?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Expected, Field, compare, told
from kvproof.bridge.lockstep import expect
from kvproof.bridge.observation import Past
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.shown import Shown
from kvproof.trace.trace import Moment, Trace, TraceError, replay


@dataclass(frozen=True)
class Replay(Shown):
    """What vLLM did: the first action that differs (0: none) with its fields, and what it raised.

    `error` is [exception, message, place] where the last action raised, as the model says.
    """

    differs_at: int
    fields: tuple[Field, ...]
    error: tuple[str, ...] | None
    moments: tuple[Moment, ...]

    def __str__(self) -> str:
        if self.agrees:
            raised = f" ({self.error[0]} in {self.error[2]})" if self.error else ""
            return f"{len(self.moments)} actions, each as on the model{raised}"
        return differs(self.differs_at, self.fields)

    @property
    def agrees(self) -> bool:
        """Whether vLLM did at every action what the model says."""
        return not self.fields


def differs(number: int, fields: tuple[Field, ...]) -> str:
    """Where the real classes part from the model, and in what."""
    return "\n  ".join([f"differs from the model at action {number}:", *told(fields)])


def expect_moments(
    compiled: Compiled, moments: Iterable[Moment]
) -> Iterator[tuple[list[Any], Expected]]:
    """The driver's operation for each moment of a replay, and what must come of it."""
    past = Past()
    for m in moments:
        operation, expected = expect(compiled, m.before, m.after, m.action, m.report, (), past)
        past = expected.past
        yield operation, expected


def replay_on_vllm(trace: Trace, client: Client) -> Replay:
    """Run a trace's actions on both sides, compare after each, and stop at the first difference.

    The guards of the rules that are off are taken out of the real classes; TraceError where that
    cannot be done.
    """
    missing = sorted(set(trace.scope.rules_off) - client.guards)
    if missing:
        raise TraceError(
            f"rules_off = {', '.join(missing)}: cannot be taken out of vLLM's classes; "
            f"kvproof/vllm/guards_out.py has those that can"
        )
    compiled = compile_scope(trace.scope)
    moments = tuple(replay(trace))
    client.run([observation.new_engine(trace.scope, trace.scope.rules_off)])
    told = expect_moments(compiled, moments)
    for moment, (operation, expected) in zip(moments, told, strict=True):
        (answer,) = client.run([operation])
        fields = compare(expected, answer)
        if fields:
            return Replay(moment.number, fields, None, moments)
        if moment.after.assertion:
            return Replay(0, (), tuple(answer[0][1:]), moments)
    return Replay(0, (), None, moments)
