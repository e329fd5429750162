"""One trace on the real classes: is what the model shows a fact about vLLM?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.trace import Moment, Trace, TraceError, replay
from kvproof.vllm import observation
from kvproof.vllm.client import Client
from kvproof.vllm.lockstep import compare, expect
from model.compiled import compile_scope


@dataclass(frozen=True)
class Replay:
    """What vLLM did: the first action that differs (0: none) with its fields, and what it raised.

    `error` is [exception, message, place] where the last action raised, as the model says.
    """

    differs_at: int
    fields: tuple[tuple[str, Any, Any], ...]
    error: tuple[str, ...] | None
    moments: tuple[Moment, ...]

    @property
    def agrees(self) -> bool:
        """Whether vLLM did at every action what the model says."""
        return not self.fields


def replay_on_vllm(trace: Trace, client: Client) -> Replay:
    """Run a trace's actions on both sides, compare after each, and stop at the first difference.

    The guards of the rules that are off are taken out of the real classes; TraceError where that
    cannot be done.
    """
    missing = sorted(set(trace.scope.rules_off) - client.guards)
    if missing:
        raise TraceError(
            f"rules_off = {', '.join(missing)}: cannot be taken out of vLLM's classes by replacing "
            f"one function; kvproof/vllm/guards_out.py has those that can"
        )
    compiled = compile_scope(trace.scope)
    moments = tuple(replay(trace))
    client.run([["new", observation.scope_values(trace.scope), trace.scope.rules_off]])
    for moment in moments:
        before, after, report = moment.before, moment.after, moment.report
        action = moment.action
        operation, expected = expect(compiled, before, after, action, report, ())
        (answer,) = client.run([operation])
        fields = compare(expected, answer)
        if fields:
            return Replay(moment.number, fields, None, moments)
        if expected.asserts:
            return Replay(0, (), tuple(answer[0][1:]), moments)
    return Replay(0, (), None, moments)
