"""Mends: with its mend a finding is gone, and the mended real classes do what the model does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.bridge import observation
from kvproof.bridge.client import Client, DriverError
from kvproof.bridge.follow import opener
from kvproof.bridge.lockstep import lockstep
from kvproof.bridge.vllm_replay import replay_on_vllm
from kvproof.checker.check import check
from kvproof.checker.check_progress import check_progress
from kvproof.checker.minimize import follow_in
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.evidence.finding_pages import find
from kvproof.model.mends import Mend
from kvproof.model.options import ScopeError
from kvproof.model.scope import Scope
from kvproof.search.explore import explore
from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.hangs import HANGS, Hang
from kvproof.spec.masks import Id
from kvproof.spec.mends import MENDED_BY, mended
from kvproof.walks.runs import random_runs

ALL = tuple(Mend.__members__)
REFUSED = "prompt-above-the-scheduled-budget"
"""Its mend refuses the scope."""

MENDED = [one for one in FINDINGS if one.id in MENDED_BY and one.id != REFUSED]
MENDED_HANGS = [one for one in HANGS if one.id in MENDED_BY and one.id != REFUSED]
SCOPES = {one.id: one.scope for one in (*MENDED, *MENDED_HANGS)}

each = pytest.mark.parametrize("finding", MENDED, ids=lambda finding: finding.id)
each_hang = pytest.mark.parametrize("hang", MENDED_HANGS, ids=lambda hang: hang.id)
each_scope = pytest.mark.parametrize(("name", "scope"), SCOPES.items(), ids=SCOPES)


@each
def test_a_finding_is_gone_with_its_mend(finding: Finding, measured: Callable[[str], None]) -> None:
    scope = finding.scope.with_mends(MENDED_BY[finding.id])
    done = check(scope, ignore=frozenset(finding.past))
    measured(
        f"mended     {finding.id}: {done.result.outcome}, {done.result.transitions} transitions"
    )
    assert done.result.outcome == "holds", done.trace


@each
def test_with_all_mends_nothing_falls_where_a_finding_was(finding: Finding) -> None:
    done = check(finding.scope.with_mends(*ALL))
    assert done.result.outcome == "holds", done.trace


@each_hang
def test_nothing_waits_for_ever_with_the_mend_of_a_hang(hang: Hang) -> None:
    for mends in ((MENDED_BY[hang.id],), ALL):
        done = check_progress(hang.scope.with_mends(*mends))
        assert done.outcome == "holds", done.lassos


@each
def test_the_run_of_a_finding_is_equal_on_both_sides_with_its_mend(
    finding: Finding, vllm: Client
) -> None:
    changed = finding.scope.with_mends(MENDED_BY[finding.id])
    run = follow_in(changed, find(finding), frozenset(finding.past))
    assert finding.broken.name not in run.broken
    done = replay_on_vllm(run, vllm)
    assert done.agrees, f"action {done.differs_at}: {done.fields}"
    assert done.error is None


@each_scope
def test_the_mended_classes_go_with_the_mended_model(name: str, scope: Scope, vllm: Client) -> None:
    for mends in ((MENDED_BY[name],), ALL):
        changed = scope.with_mends(*mends)
        result = explore(SchedulerSystem(changed, ignore=frozenset(Id)))
        assert result.outcome == "holds"
        report = lockstep(changed, result, vllm)
        assert report.difference is None, report.difference
        assert report.transitions == result.transitions


def test_random_runs_of_the_mended_classes_meet_nothing_but_what_start_up_would_refuse(
    vllm: Client, measured: Callable[[str], None]
) -> None:
    # More of them meet a failed synchronous load under the V2 runner, where a mend falls short.
    done = random_runs(opener("lockstep", vllm), 50, prepare=mended)
    measured(f"mended     {done}")
    assert set(done.findings) <= {REFUSED}


@each_scope
def test_a_mend_of_the_model_alone_is_seen(
    name: str, scope: Scope, vllm: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = observation.new_engine(scope)
    monkeypatch.setattr(observation, "new_engine", lambda scope: as_it_is)
    changed = scope.with_mends(MENDED_BY[name])
    result = explore(SchedulerSystem(changed, ignore=frozenset(Id)))
    assert lockstep(changed, result, vllm).difference is not None


def test_a_mend_of_start_up_refuses_the_scope_on_both_sides(vllm: Client) -> None:
    finding = next(one for one in FINDINGS if one.id == REFUSED)
    values = observation.scope_values(finding.scope)
    with (
        Client(vllm.version) as driver,
        pytest.raises(DriverError, match=r"max_num_scheduled_tokens \(2\) is smaller"),
    ):
        driver.run([["new", values, [], [MENDED_BY[REFUSED]]]])
    with pytest.raises(ScopeError, match="max_num_scheduled_tokens = 2: allowed is >= max_model_"):
        finding.scope.with_mends(MENDED_BY[REFUSED])


def test_without_a_mend_the_model_is_vllm_as_it_is() -> None:
    assert all(not one.scope.mends for one in (*FINDINGS, *HANGS))
