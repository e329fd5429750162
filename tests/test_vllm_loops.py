"""Going round on the real side: what counts as a round, on a stand-in for the driver."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kvproof.bridge.client import Client
from kvproof.bridge.loops import go_round
from kvproof.bridge.vllm_replay import expect_moments
from kvproof.evidence.hang_pages import find_guard, find_hang
from kvproof.model.compiled import compile_scope
from kvproof.model.rules import Rule
from kvproof.spec.hangs import GUARDS, HANGS
from kvproof.trace.lasso import Lasso
from kvproof.trace.trace import replay


class StandIn:
    """Answers as the model does; from answer number `moves_at` on its observations differ."""

    def __init__(self, found: Lasso, rounds: int, moves_at: int | None = None) -> None:
        compiled = compile_scope(found.scope)
        said = [e for _, e in expect_moments(compiled, replay(found.rounds(rounds)))]
        self.answers = [[one.result, one.observation] for one in said]
        self.moves_at = moves_at
        self.number = 0

    def run(self, batch: list[list[Any]]) -> list[Any]:
        return [self.answer(name) for name, *_rest in batch]

    def answer(self, name: str) -> Any:
        if name == "new":
            return None
        result, seen = self.answers[min(self.number, len(self.answers) - 1)]
        moved = self.moves_at is not None and self.number >= self.moves_at
        self.number += 1
        return [result, [*seen[:-1], self.number] if moved else seen]


def stuck() -> Lasso:
    return find_hang(next(hang for hang in HANGS if hang.id == "padding-never-fits"))


def asleep() -> Lasso:
    guard = next(g for g in GUARDS if g.rule == Rule.stay_awake_for_delayed_frees)
    return find_guard(guard)


def test_a_round_counts_when_the_observation_is_back() -> None:
    found = stuck()
    answer = go_round(found, cast(Client, StandIn(found, 7)), rounds=7)
    assert answer.agrees
    assert answer.rounds == 7


@pytest.mark.parametrize("action", [1, 5, 13, 16])
def test_the_first_action_that_differs_is_named(action: int) -> None:
    found = stuck()
    stand_in = StandIn(found, 7, moves_at=action - 1)
    answer = go_round(found, cast(Client, stand_in), rounds=7)
    assert not answer.agrees
    assert answer.differs_at == action
    assert answer.rounds == 0
    assert [field for field, _model, _real in answer.fields] == ["leaks"]


def test_a_dead_end_is_stepped_and_nothing_moves() -> None:
    found = asleep()
    assert found.loop == ()
    assert go_round(found, cast(Client, StandIn(found, 0)), rounds=7).rounds == 7
    # From the third step on it moves: each step is a schedule and an output.
    moving = StandIn(found, 0, moves_at=len(found.stem) + 4)
    assert go_round(found, cast(Client, moving), rounds=7).rounds == 2
