"""Progress: nothing waits for ever, but for the open findings, which go round on vLLM too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.hangs import FOLDER, find_guard, find_hang
from kvproof.lasso import load_lasso
from kvproof.progress import check_progress
from kvproof.progress_report import progress_sweep_page
from kvproof.progress_sweep import explanation, place_of, progress_sweep
from kvproof.sweep import FULL, QUICK
from kvproof.vllm.client import Client
from kvproof.vllm.loops import ROUNDS, go_round
from spec.hangs import GUARDS, HANGS, Guard, Hang
from spec.rules import Rule
from spec.scopes import SCOPES

ROOT = Path(__file__).parent.parent
each_hang = pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.id)
each_guard = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.rule.name)
whole_sweep = pytest.mark.skipif(
    os.environ.get("KVPROOF_FULL_SWEEP") != "1", reason="takes minutes: KVPROOF_FULL_SWEEP=1"
)

# The named scopes in which a finding shows.
FOUND_IN = {"producer": ["producer-drops-what-it-computes"]}


@pytest.mark.parametrize("name", SCOPES)
def test_nothing_waits_for_ever_but_for_the_open_findings(
    name: str, measured: Callable[[str], None]
) -> None:
    done = check_progress(SCOPES[name])
    measured(
        f"progress   {name:<15} {done.outcome}: {done.due_states:>9,} states with work due, "
        f"{done.cycles:>3} cycles, {done.fair_cycles} fair, {done.passes} passes, "
        f"{done.bytes_per_edge:5.1f} bytes an edge, search {done.result.seconds:.2f} s, graph "
        f"{done.graph_seconds:.2f} s"
    )
    explained = [explanation(place_of(one)) for one in done.lassos]
    assert [hang and hang.id for hang in explained] == FOUND_IN.get(name, [])
    assert done.outcome == ("violated" if name in FOUND_IN else "holds")
    assert done.due_states > 0


@each_hang
def test_a_finding_is_still_made_by_its_recorded_lasso(
    hang: Hang, measured: Callable[[str], None]
) -> None:
    found = find_hang(hang)
    measured(
        f"hang       {hang.id}: {', '.join(found.broken)}, stem {len(found.stem)}, "
        f"loop {len(found.loop)}"
    )
    assert found == load_lasso(ROOT / FOLDER / f"{hang.id}.json"), "run `kvproof docs`"
    assert explanation(place_of(found)) == hang


@each_hang
def test_vllm_goes_round_fifty_times(hang: Hang, vllm: Client) -> None:
    found = load_lasso(ROOT / FOLDER / f"{hang.id}.json")
    answer = go_round(found, vllm)
    assert answer.fields == ()
    assert answer.rounds == (ROUNDS if found.loop else 0)


@each_guard
def test_without_its_guard_the_property_falls_and_with_it_nothing_does(
    guard: Guard, measured: Callable[[str], None]
) -> None:
    found = find_guard(guard)
    measured(
        f"guard off  {guard.rule.name:<33} {', '.join(found.broken)}: stem {len(found.stem)}, "
        f"loop {len(found.loop)}"
    )
    assert found == load_lasso(ROOT / FOLDER / f"{guard.rule.name}.json"), "run `kvproof docs`"
    assert check_progress(guard.scope).outcome == "holds"


def test_every_recorded_lasso_is_registered() -> None:
    recorded = {path.stem for path in (ROOT / FOLDER).glob("*.json")}
    assert recorded == {hang.id for hang in HANGS} | {guard.rule.name for guard in GUARDS}


def test_every_lasso_in_the_sweep_is_an_open_finding_and_goes_round_on_vllm(
    vllm: Client, measured: Callable[[str], None]
) -> None:
    done = progress_sweep(QUICK)
    measured(
        f"progress   sweep: {dict(done.outcomes)}, {done.transitions:,} transitions, "
        f"{done.due_states:,} states with work due, {done.cycles:,} cycles, {done.fair_cycles:,} "
        f"fair, {len(done.distinct)} distinct lassos"
    )
    assert [place for place in done.distinct if explanation(place) is None] == []
    for place, found in done.distinct.items():
        answer = go_round(found, vllm)
        assert answer.agrees, place
        assert answer.rounds == (ROUNDS if found.loop else 0), place


@whole_sweep
def test_the_page_of_the_whole_sweep_is_fresh() -> None:
    done = progress_sweep(FULL)
    assert (ROOT / "docs" / "progress-sweep.md").read_text() == progress_sweep_page(done)
    assert {explanation(place) for place in done.distinct} == set(HANGS)


def test_vllm_does_not_go_round_where_its_guard_prevents_it(vllm: Client) -> None:
    guard = next(g for g in GUARDS if g.rule == Rule.reserve_for_inflight_prefills)
    found = find_guard(guard)
    answer = go_round(found, vllm)
    assert not answer.agrees
    assert answer.differs_at <= len(found.stem) + len(found.loop)
