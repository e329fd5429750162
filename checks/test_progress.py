"""Progress: nothing waits for ever, but for the open findings, which go round on vLLM too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.bridge.client import Client
from kvproof.bridge.loops import ROUNDS, go_round
from kvproof.checker.check_progress import check_progress
from kvproof.checker.known import known_hang
from kvproof.evidence.hang_pages import FOLDER, find_guard, find_hang
from kvproof.model.rules import Rule
from kvproof.scopes.named import SCOPES
from kvproof.spec.hangs import GUARDS, HANGS, Guard, Hang
from kvproof.sweep.progress_report import progress_sweep_page
from kvproof.sweep.progress_sweep import ProgressSweep, progress_sweep
from kvproof.trace.identify import identity_of_lasso
from kvproof.trace.lasso import load_lasso

ROOT = Path(__file__).parent.parent
each_hang = pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.id)
each_guard = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.rule.name)

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
    explained = [known_hang(identity_of_lasso(one)) for one in done.lassos]
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
    assert known_hang(identity_of_lasso(found)) == hang


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


@pytest.fixture(scope="module")
def swept() -> ProgressSweep:
    return progress_sweep(strength=3)


def test_every_lasso_in_the_sweep_is_an_open_finding(
    swept: ProgressSweep, measured: Callable[[str], None]
) -> None:
    measured(
        f"progress   sweep: {dict(swept.outcomes)}, {swept.total('transitions'):,} transitions, "
        f"{swept.total('due_states'):,} states with work due, {swept.total('cycles'):,} cycles, "
        f"{swept.total('fair_cycles'):,} fair, {len(swept.distinct)} distinct lassos"
    )
    assert swept.covered == swept.cover.possible
    assert [identity for identity in swept.distinct if known_hang(identity) is None] == []
    assert {known_hang(identity) for identity in swept.distinct} == set(HANGS)
    page = (ROOT / "docs" / "progress-sweep.md").read_text(encoding="utf-8")
    assert page == progress_sweep_page(swept), "kvproof sweep-progress --strength 3 --to"


@each_hang
def test_vllm_goes_round_where_the_sweep_found_it(
    hang: Hang, swept: ProgressSweep, vllm: Client
) -> None:
    lassos = [one for identity, one in swept.distinct.items() if known_hang(identity) == hang]
    found = min(lassos, key=lambda one: len(one.stem) + len(one.loop))
    answer = go_round(found, vllm)
    assert answer.fields == ()
    assert answer.rounds == (ROUNDS if found.loop else 0)


def test_vllm_does_not_go_round_where_its_guard_prevents_it(vllm: Client) -> None:
    guard = next(g for g in GUARDS if g.rule == Rule.reserve_for_inflight_prefills)
    found = find_guard(guard)
    answer = go_round(found, vllm)
    assert not answer.agrees
    assert answer.differs_at <= len(found.stem) + len(found.loop)
