"""Efficiency: what vLLM does not promise is measured beside the search, and is no fault."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvproof.checker.check import Check, check
from kvproof.model import engine
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.scopes.named import SCOPES
from kvproof.spec import efficiency_steps
from kvproof.spec.efficiency import EFFICIENCY
from kvproof.spec.masks import Efficiency
from kvproof.spec.verdicts import BROKEN
from kvproof.trace.trace import replay

_R = RequestSpec

PASSED_OVER = Scope(
    name="passed-over",
    policy="priority",
    requests=(
        _R(prompt=(1, 2), max_tokens=4, priority=1),
        _R(prompt=(2, 1, 1), max_tokens=4, priority=0),
    ),
    num_blocks=5,
    max_num_batched_tokens=8,
    max_model_len=8,
)
PAUSED = Scope(
    name="paused-while-loading",
    kv_role="kv_consumer",
    async_scheduling=True,
    may_pause=True,
    requests=(
        _R(prompt=(1, 2, 1), max_tokens=2, external=External(2)),
        _R(prompt=(2, 1), max_tokens=2, may_abort=True),
    ),
    num_blocks=5,
    max_num_batched_tokens=8,
    max_model_len=6,
)
LOADS_BEYOND_THE_CAP = Scope(
    name="loads-beyond-the-cap",
    kv_role="kv_consumer",
    max_num_seqs=1,
    requests=(
        _R(prompt=(1, 2, 1), max_tokens=2, external=External(2)),
        _R(prompt=(2, 1, 2), max_tokens=2, external=External(2)),
    ),
    num_blocks=7,
    max_num_batched_tokens=8,
    max_model_len=6,
)
ENDS_WITH_DRAFTS = Scope(
    name="ends-with-drafts",
    num_speculative_tokens=1,
    requests=(_R(prompt=(1, 2), max_tokens=3),),
    num_blocks=9,
    block_size=1,
    max_num_batched_tokens=8,
    max_model_len=8,
)
MISSED = {
    "NobodyPassedOver": PASSED_OVER,
    "NoEmptyStep": PASSED_OVER,
    "HoldersWithinCap": LOADS_BEYOND_THE_CAP,
    "IdleIsStill": PAUSED,
    "EndPublished": ENDS_WITH_DRAFTS,
}


def measured(scope: Scope) -> Check:
    return check(scope, efficiency=True)


def test_every_property_has_its_number_its_kernel_and_a_scope_that_misses_it() -> None:
    assert [one.id for one in EFFICIENCY] == list(Efficiency)
    assert all(hasattr(efficiency_steps, one.kernel_name) for one in EFFICIENCY)
    assert set(MISSED) == {one.name for one in EFFICIENCY}


@pytest.mark.parametrize("name", MISSED)
def test_vllm_misses_it_and_every_invariant_holds(name: str) -> None:
    done = measured(MISSED[name])
    assert done.outcome == "holds"
    (one,) = [one for one in done.efficiency if one.name == name]
    assert 0 < one.missed <= one.tested
    assert one.trace is not None
    *_, last = replay(one.trace)
    assert last.broken == ()


@pytest.mark.parametrize("name", MISSED)
def test_a_shortest_run_is_shown(name: str) -> None:
    done = measured(MISSED[name])
    (one,) = [one for one in done.efficiency if one.name == name]
    assert one.trace is not None
    kernel = getattr(efficiency_steps, EFFICIENCY[Efficiency[name]].kernel_name)
    c = compile_scope(done.scope).c
    verdicts = [
        kernel(moment.before, moment.after, c, moment.report, engine.kind_of(moment.code))
        for moment in replay(one.trace)
    ]
    assert verdicts.index(BROKEN) == len(verdicts) - 1


def test_the_better_ranked_request_is_passed_over_by_a_self_preemption() -> None:
    done = measured(PASSED_OVER)
    (one,) = [one for one in done.efficiency if one.name == "NobodyPassedOver"]
    assert one.trace is not None
    *_, last = replay(one.trace)
    report = last.report
    assert report.num_scheduled == 0
    assert report.victims[: report.num_victims].tolist() == [1]
    assert last.before.running[:2].tolist() == [1, 2]


def test_nobody_is_passed_over_where_the_first_come_are_served_first() -> None:
    done = measured(SCOPES["shared-prefix"])
    (one,) = [one for one in done.efficiency if one.name == "NobodyPassedOver"]
    assert one.tested > 0
    assert one.missed == 0


def test_asynchronous_scheduling_publishes_what_the_last_output_accepts() -> None:
    scope = SCOPES["async-drafts"]
    (one,) = [one for one in measured(scope).efficiency if one.name == "EndPublished"]
    assert one.tested > one.missed


def test_to_measure_changes_no_verdict_and_no_count() -> None:
    plain, beside = check(PAUSED), measured(PAUSED)
    assert plain.efficiency == ()
    assert beside.result.states == plain.result.states
    assert (beside.actions, beside.branches) == (plain.actions, plain.branches)
    assert beside.tested == plain.tested


def test_the_command_line_reports_it_apart_and_exits_with_0() -> None:
    command = [sys.executable, "-m", "kvproof", "check", "priorities", "--efficiency"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    (result,) = json.loads(done.stdout)["results"]
    assert result["outcome"] == "holds"
    assert result["broken"] == []
    assert set(result["efficiency"]) == {one.name for one in EFFICIENCY}
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0
    assert "efficiency, NobodyPassedOver: " in told.stdout
