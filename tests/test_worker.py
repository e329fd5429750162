"""The model's workers are held against those of the real side, fed with what the model sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.bridge import observation
from kvproof.checker.check import check
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.model.rules import Rule
from kvproof.model.scope import Scope
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id
from kvproof.spec.rules import INFO
from kvproof.trace.codes import enabled_codes, name_action
from kvproof.trace.trace import step
from kvproof.vllm.worker import Worker

OF_WHAT_IS_SENT = (
    "replace_resumed_table",
    "send_resumed_as_new",
    "send_table_growth",
    "send_adopted_blocks",
    "tell_finished_requests",
    "tell_preempted_requests",
)
ON_V1, ON_V2 = SCOPES["shared-prefix"], INFO["send_resumed_as_new"].seed
assert ON_V2 is not None
FOLLOWED = {
    "shared-prefix": "send_resumed_as_new",
    "reset-running": "tell_preempted_requests",
    "pause": "send_resumed_as_new",
    "pipeline": "tell_preempted_requests",
    "async-reset": "send_resumed_as_new",
    "depth-3": "replace_resumed_table",
    "drafts": "send_resumed_as_new",
    "consumer": "tell_preempted_requests",
    "failing-loads": "send_resumed_as_new",
}
"""Scopes, each with a rule of the model runner that it does not have."""


def as_sent(compiled: Compiled, result: dict[str, Any]) -> Any:
    """What the model sends with a step, in the form of a SchedulerOutput."""
    cached = result["sent_cached"]
    return SimpleNamespace(
        finished_req_ids=set(result["finished"]),
        preempted_req_ids=set(result["preempted"]),
        num_scheduled_tokens=dict(result["scheduled"]),
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=r,
                prompt_token_ids=prompt,
                prefill_token_ids=tokens,
                block_ids=(blocks,),
                num_computed_tokens=start,
            )
            for r, prompt, tokens, blocks, start in result["sent_new"]
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[row[0] for row in cached],
            resumed_req_ids=set(result["resumed"]),
            new_block_ids=[None if row[1] is None else (row[1],) for row in cached],
            num_computed_tokens=[row[2] for row in cached],
            num_output_tokens=[row[3] for row in cached],
            new_token_ids=[],
            all_token_ids={row[0]: row[5] for row in cached if row[5] is not None},
        ),
        scheduled_spec_decode_tokens=result["drafts"],
        block_table_updates=None,
    )


def tables_of(state: Record) -> dict[int, tuple[int, ...]]:
    """The workers' tables of a state."""
    return {
        r: tuple(state.worker_table[r, : length - 1].tolist())
        for r, length in enumerate(state.worker_len.tolist())
        if length
    }


@pytest.mark.parametrize("rule", OF_WHAT_IS_SENT)
@pytest.mark.parametrize("scope", [ON_V2, *map(SCOPES.__getitem__, FOLLOWED)])
def test_the_workers_make_of_a_step_what_a_model_runner_makes_of_it(
    scope: Scope, rule: str
) -> None:
    compiled = compile_scope(scope.with_rules_off(rule))
    taken = 0
    for seed in range(4):
        choose = RandomChooser(seed)
        runner = Worker(v2=scope.v2_model_runner, is_async=scope.async_scheduling, is_last=True)
        state, past = compiled.initial(), observation.Past()
        for _ in range(60):
            codes = enabled_codes(compiled, state).tolist()
            if not codes:
                break
            code = choose.pick(codes)
            action = name_action(compiled, state, code)
            before = state
            state, report, _broken = step(compiled, before, code)
            if state.assertion:
                break
            told = (compiled, before, state, action, report, past)
            if action.kind == Kind.SCHEDULE:
                runner.take(as_sent(compiled, observation.expected_result(*told)))
                room = compiled.c.worker_room
                assert tables_of(state) == {
                    r: kept.table[:room] for r, kept in runner.requests.items()
                }
                taken += 1
            past = observation.passed(*told)
    assert taken > 5


@pytest.mark.parametrize("name", FOLLOWED)
def test_with_all_that_is_sent_the_workers_have_the_schedulers_own_tables(name: str) -> None:
    scope = SCOPES[name]
    assert compile_scope(scope).c.worker_room == 0
    followed = scope.with_rules_off(FOLLOWED[name])
    assert compile_scope(followed).c.worker_room > 0
    report = check(followed)
    assert report.result.outcome == "holds"
    assert report.result.states > 1000


@pytest.mark.parametrize("rule", OF_WHAT_IS_SENT)
def test_without_a_rule_of_what_is_sent_the_workers_disagree_before_anything_is_misread(
    rule: str,
) -> None:
    scope = (INFO[rule].seed or ON_V1).with_rules_off(rule)
    first = check(scope).trace
    assert first is not None
    assert Id.WorkerAgrees.name in first.broken
    later = check(scope, ignore=frozenset({Id.WorkerAgrees, Id.PublishedSound})).trace
    if rule.startswith("tell_"):
        # Whoever comes again is sent whole, so that nobody reads what was kept.
        assert later is None
    else:
        assert later is not None
        assert Id.ReadsCorrect.name in later.broken
        assert len(later.actions) > len(first.actions)


def test_these_are_the_rules_without_which_the_workers_are_followed() -> None:
    followed = {
        rule.name for rule in Rule if compile_scope(ON_V1.with_rules_off(rule.name)).c.worker_room
    }
    assert followed == set(OF_WHAT_IS_SENT)
