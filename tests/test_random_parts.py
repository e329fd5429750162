from __future__ import annotations

import numpy as np
import pytest

from kvproof.model.bounds import output_choices
from kvproof.model.compiled import compile_scope
from kvproof.model.rules import Rule
from kvproof.scopes.draw import MAX_ANSWERS, RandomChooser, Size, draw_scope
from kvproof.scopes.named import SCOPES
from kvproof.trace.codes import code_of, enabled_codes, name_action
from kvproof.trace.trace import from_codes, step
from kvproof.walks.coverage import rules_reached
from kvproof.walks.walk import Walker


@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_every_drawn_scope_is_one_that_start_up_accepts(size: Size) -> None:
    features = set()
    for seed in range(2000):
        scope = draw_scope(RandomChooser(seed), size)  # Scope refuses what start-up refuses
        assert output_choices(scope) <= MAX_ANSWERS
        features |= {
            (scope.policy, scope.kv_role, scope.depth),
            ("drafts", scope.num_speculative_tokens, scope.spec_method),
            ("may", scope.may_fail_loads, scope.may_reset_running, scope.may_pause),
        }
    modes = {(p, r, d) for p in ("fcfs", "priority") for r in (None, "kv_both") for d in (1, 2, 3)}
    assert modes <= features
    assert {("drafts", 3, m) for m in ("ngram", "eagle", "draft_model")} <= features
    assert ("may", True, True, True) in features


@pytest.mark.parametrize("name", ["async-drafts", "drafts", "sync-loads", "failing-loads"])
def test_a_named_action_has_the_code_that_the_list_of_all_gives_it(name: str) -> None:
    compiled = compile_scope(SCOPES[name])
    state, codes = compiled.initial(), RandomChooser(0)
    for _ in range(60):
        enabled = enabled_codes(compiled, state).tolist()
        if not enabled:
            break
        for code in enabled:
            assert code_of(compiled, state, name_action(compiled, state, code)) == code
        state = step(compiled, state, codes.pick(enabled))[0]


def test_an_action_that_is_not_enabled_has_no_code() -> None:
    compiled = compile_scope(SCOPES["drafts"])
    state = compiled.initial()
    schedule = name_action(compiled, state, 2)
    assert schedule.do == "schedule"
    assert code_of(compiled, state, schedule) is None


@pytest.mark.parametrize("guided", [False, True])
def test_a_walk_is_a_run_of_the_model(guided: bool) -> None:
    for seed in range(30):
        compiled = compile_scope(draw_scope(RandomChooser(seed), "small"))
        walker = Walker(compiled)
        walked = walker.walk(50, seed, guided=guided)
        assert walked == Walker(compiled).walk(50, seed, guided=guided)
        state = compiled.initial()
        for number, code in enumerate(walked.codes, 1):
            assert code_of(compiled, state, name_action(compiled, state, code)) == code
            state, _report, broken = step(compiled, state, code)
            assert bool(broken) == (bool(walked.broken) and number == len(walked.codes))
        assert np.array_equal(state.row, walker.state.row)


def test_a_rule_is_reached_where_it_makes_a_difference() -> None:
    scope = SCOPES["two-equal"]
    walked = Walker(compile_scope(scope)).walk(40, 1, guided=True)
    reached = rules_reached(scope, walked.codes)
    assert Rule.free_tail_first in reached
    assert Rule.fence_in_flight_frees not in reached
    assert from_codes(scope, walked.codes).actions
