"""Open findings on vLLM 0.31.0: expected to fail, with their traces, on the real classes too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.bridge.client import Client
from kvproof.bridge.lockstep import lockstep
from kvproof.bridge.vllm_replay import replay_on_vllm
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.evidence.finding_pages import FOLDER, find
from kvproof.search.explore import explore
from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.masks import Id
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent
each = pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)


@each
def test_a_finding_is_still_made_by_its_recorded_shortest_run(
    finding: Finding, measured: Callable[[str], None]
) -> None:
    trace = find(finding)
    measured(f"finding    {finding.id}: {finding.broken.name}, {len(trace.actions)} actions")
    assert trace == load(ROOT / FOLDER / f"{finding.id}.json"), "run `kvproof docs`"


@each
def test_vllm_does_what_the_finding_says(finding: Finding, vllm: Client) -> None:
    answer = replay_on_vllm(load(ROOT / FOLDER / f"{finding.id}.json"), vllm)
    assert answer.fields == ()
    assert (answer.error is not None) == (finding.broken is Id.NoAssertion)


@each
def test_the_model_goes_on_like_vllm_past_a_finding(finding: Finding, vllm: Client) -> None:
    result = explore(SchedulerSystem(finding.scope, ignore=frozenset(Id)))
    assert result.outcome == "holds"
    report = lockstep(finding.scope, result, vllm)
    assert report.difference is None, report.difference
    assert report.transitions == result.transitions


def test_every_recorded_finding_is_registered() -> None:
    recorded = {path.stem for path in (ROOT / FOLDER).glob("*.json")}
    assert recorded == {finding.id for finding in FINDINGS}
