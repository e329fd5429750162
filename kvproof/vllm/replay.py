"""One trace on the real classes: is what the model says of it a fact about vLLM?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.actions import Action
from kvproof.trace import Moment, Trace, replay
from kvproof.vllm import observation
from kvproof.vllm.client import Client
from kvproof.vllm.lockstep import Expected, compare
from model.compiled import compile_scope


@dataclass(frozen=True)
class Difference:
    """An action after which the two sides differ: field, model's value, vLLM's value."""

    number: int
    action: Action
    fields: tuple[tuple[str, Any, Any], ...]


@dataclass(frozen=True)
class Replayed:
    """What came of a trace on vLLM: where it differs from the model, and what it raised.

    `raised` has the type of the error, its message and vLLM's "file.py:function"; the model has
    an assertion there unless the action is among the differences.
    """

    differences: tuple[Difference, ...]
    raised: tuple[str, str, str] | None

    @property
    def agrees(self) -> bool:
        """Whether vLLM did after every action what the model says."""
        return not self.differences


def replay_on_vllm(trace: Trace, client: Client) -> Replayed:
    """Run a trace's actions on both sides and compare after each, as lockstep does.

    Both stop being compared where either raises. No batch of the client may be out.
    """
    compiled = compile_scope(trace.scope)
    moments = list(replay(trace))
    batch = [["new", observation.scope_values(trace.scope)]]
    batch += [
        observation.operation(compiled, moment.before, moment.action, moment.report)
        for moment in moments
    ]
    answers = client.run(batch)[1:]
    differences = []
    for moment, answer in zip(moments, answers, strict=True):
        fields = compare(_expected(compiled, moment), answer)
        if fields:
            differences.append(Difference(moment.number, moment.action, fields))
        result = answer[0]
        if isinstance(result, list) and result and result[0] == "error":
            return Replayed(tuple(differences), (result[1], result[2], result[3]))
    return Replayed(tuple(differences), None)
