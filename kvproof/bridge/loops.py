"""Lassos on the real classes: do they go round too?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Field, compare
from kvproof.bridge.vllm_replay import differs, expect_moments
from kvproof.model.compiled import compile_scope
from kvproof.spec.progress import Property
from kvproof.trace.lasso import Lasso
from kvproof.trace.trace import replay

ROUNDS = 50


@dataclass(frozen=True)
class LoopReplay:
    """What vLLM did with a lasso.

    `differs_at` is the first action that differs from the model (0: none), with its `fields`;
    `rounds` counts the rounds after which the real observation was the one before the first.
    """

    differs_at: int
    fields: tuple[Field, ...]
    rounds: int

    def __str__(self) -> str:
        if self.agrees:
            return f"each action as on the model, {self.rounds} rounds"
        return differs(self.differs_at, self.fields)

    @property
    def agrees(self) -> bool:
        """Whether vLLM did at every action what the model says."""
        return not self.fields


def go_round(found: Lasso, client: Client, rounds: int = ROUNDS) -> LoopReplay:
    """Take the stem and then the loop `rounds` times on the real classes.

    Each action is compared with the model, and after each round the real side's observation with
    its own from before the loop. Without a loop the stem alone is compared; if it ends where the
    engine would sleep, it is stepped all the same, and a round counts in which nothing moves.
    """
    compiled = compile_scope(found.scope)
    moments = list(replay(found.rounds(rounds)))
    client.run([observation.new_engine(found.scope)])
    told = list(expect_moments(compiled, moments))
    answers = client.run([operation for operation, _expected in told])
    for moment, (_operation, expected), answer in zip(moments, told, answers, strict=True):
        fields = compare(expected, answer)
        if fields:
            return LoopReplay(moment.number, fields, 0)
    seen = [answer[1] for answer in answers]
    ends = seen[len(found.stem) - 1 :: max(len(found.loop), 1)]
    if not found.loop and Property.NoDeadEnd.name in found.broken:
        steps: list[list[Any]] = [["schedule"], ["output", {}, [], [], []]] * rounds
        ends += [answer[1] for answer in client.run(steps)[1::2]]
    return LoopReplay(0, (), sum(end == ends[0] for end in ends[1:]))
