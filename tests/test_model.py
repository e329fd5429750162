from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvproof.checker.check import check
from kvproof.model.compiled import compile_scope, next_token
from kvproof.model.rules import Rule
from kvproof.model.scope import RequestSpec, Scope
from kvproof.model.state import STATE
from kvproof.native.record import Field, Schema
from kvproof.scopes.named import SCOPES
from kvproof.spec.invariants import INVARIANTS
from kvproof.trace.trace import replay, step

ROOT = Path(__file__).parent.parent
_R = RequestSpec

EQUAL_BLOCKS = Scope(
    name="equal-blocks",
    requests=(
        _R(prompt=(1, 2), max_tokens=2, may_stop=True),
        _R(prompt=(1, 2), max_tokens=2),
    ),
    num_blocks=5,
    max_num_batched_tokens=4,
    max_model_len=4,
)

OFF = {
    "drop_victim_from_step": ("priorities", "ScheduleSet"),
    "check_capacity_before_pinning": ("shared-prefix", "QueueStatusAgree"),
    "recompute_last_token": ("two-equal", "NoAssertion"),
    "evict_hash_on_reuse": ("shared-prefix", "NoAssertion"),
}


@pytest.mark.parametrize("rule", OFF)
def test_a_rule_switched_off_is_caught_with_a_trace(rule: str) -> None:
    name, invariant = OFF[rule]
    trace = check(SCOPES[name].with_rules_off(rule)).trace
    assert trace is not None
    assert invariant in trace.broken
    moments = list(replay(trace))
    assert moments[-1].broken == trace.broken


@pytest.mark.parametrize("rule", OFF)
def test_renaming_blocks_hides_no_violation(rule: str) -> None:
    scope = SCOPES[OFF[rule][0]].with_rules_off(rule)
    renamed, plain = check(scope).trace, check(scope, rename=False).trace
    assert renamed is not None
    assert plain is not None
    assert renamed.broken == plain.broken
    assert len(renamed.actions) == len(plain.actions)


def test_the_same_source_runs_as_plain_python_with_the_same_counts() -> None:
    script = (
        "from kvproof.checker.check import check; from kvproof.scopes.named import SCOPES; "
        "r = check(SCOPES['two-equal']).result; print(r.states, r.transitions, r.outcome)"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
    )
    assert done.stdout.split() == ["29", "36", "holds"]


def test_unused_space_of_a_record_is_zero() -> None:
    compiled = compile_scope(SCOPES["shared-prefix"])
    used = max(end for _start, end, _shape in compiled.state.places.values())
    state = compiled.initial()
    assert not state.cells[used:].any()


def test_two_requests_with_equal_prompts_continue_alike_and_share_prefix_codes() -> None:
    compiled = compile_scope(EQUAL_BLOCKS)
    assert compiled.tokens[0] == compiled.tokens[1]
    assert (compiled.c.prefix[0] == compiled.c.prefix[1]).all()
    assert compiled.tokens[0][2] == next_token([1, 2], 2)


def test_salts_keep_equal_prompts_apart() -> None:
    compiled = compile_scope(SCOPES["salted"])
    assert compiled.tokens[0] == compiled.tokens[1]
    assert compiled.c.prefix[0, 1] != compiled.c.prefix[1, 1]


def test_a_refused_admission_changes_nothing() -> None:
    compiled = compile_scope(SCOPES["shared-prefix"])
    state = compiled.initial()
    for code in (0, 16):
        state, _report, broken = step(compiled, state, code)
        assert not broken
    before = state.copy()
    after, report, _broken = step(compiled, state, 2)
    assert (state.row == before.row).all()
    assert report.num_scheduled == 2
    assert after.num_running == 2


def test_a_schema_refuses_a_field_named_twice() -> None:
    fields = (Field("a", (), "..", ""), Field("a", (), "..", ""))
    with pytest.raises(ValueError, match="twice"):
        Schema("twice", np.int16, fields)


def test_a_record_refuses_a_field_that_it_does_not_have() -> None:
    state = STATE.layout(dict.fromkeys("RBNSDQVW", 1)).new()
    with pytest.raises(AttributeError, match="no_such"):
        state.no_such = 1
    with pytest.raises(AttributeError, match="no_such"):
        _ = state.no_such


def test_every_rule_named_by_an_invariant_exists() -> None:
    assert all(rule in Rule for invariant in INVARIANTS for rule in invariant.broken_by)
