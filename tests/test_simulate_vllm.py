"""The simulation on the real classes: what it repeats, what it writes, and that it can fail."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.bridge import environment
from kvproof.model.scope import Scope
from kvproof.simulate import scaled
from kvproof.simulate.scaled import run_episodes, scope_of
from kvproof.workload.sessions import Session
from kvproof.workload.settings import Settings

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(
    environment.find() is None,
    reason="the real vLLM is not here: `make vllm` builds its environment",
)

FALLS = {
    "nothing": None,
    "nothing, asynchronous": None,
    "free head first": "EvictionOrder",
    "free head first, checked in full": "BlockConservation",
    "keep hashes of reused blocks": "NoAssertion",
    "keep a reference": "FreedExactlyOnce",
    "hit a block less": "HitMaximal",
    "publish backwards": "PublishedSound",
    "hash positions only": "Isolation",
    "lose hashes": "PublishedSound",
    "miscount the free queue": "NoAssertion",
    "take a block that another holds": "WrittenSlotsOwned",
    "preempt the first": "ScheduleSet",
    "preempt the best ranked": "VictimIsLowest",
    "run on after preemption": "QueueStatusAgree",
    "skip a token": "ReadsCorrect",
    "give no slots": "NoStall",
    "do not stop": "OutputExact",
    "last comes first": "PolicyOrder",
    "exceed the budget": "BudgetRespected",
    "run too many": "SlotsRespected",
    "count tokens in flight twice": "CountersConsistent",
}


def test_an_invariant_falls_with_each_guard_out_and_no_invariant_never_does() -> None:
    done = subprocess.run(
        [str(environment.find()), "tests/simulate_guards_out.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    invariants, fallen = json.loads(done.stdout.splitlines()[-1])
    assert {*FALLS.values()} - {None} == set(invariants)
    assert {name: broken and broken[0] for name, broken in fallen.items()} == FALLS


def test_the_same_seed_gives_the_same_numbers_and_a_file(tmp_path: Path) -> None:
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    answers = []
    for file in files:
        command = "from kvproof.cli.main import main; main()"
        options = ["--horizon", "12", "--depth", "2", "--to", str(file), "--json"]
        done = subprocess.run(
            [sys.executable, "-c", command, "simulate", "multi-turn", *options],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(json.loads(done.stdout)["results"])
    assert answers[0] == answers[1]
    assert answers[0]["broken"] is None
    assert files[0].read_bytes() == files[1].read_bytes()
    rows = list(csv.DictReader(files[0].open(encoding="utf-8")))
    served = [row for row in rows if row["response"]]
    assert len(served) >= answers[0]["served"] > 5
    for row in rows:
        if row["hit"]:
            assert int(row["hit"]) % 16 == 0
            assert int(row["hit"]) + int(row["prefill"]) == int(row["prompt"])


def test_a_model_without_a_rule_is_found_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(settings: Settings, sessions: list[Session]) -> Scope:
        return scope_of(settings, sessions).with_rules_off("free_tail_first")

    monkeypatch.setattr(scaled, "scope_of", without)
    (only,) = run_episodes(Settings(seed=2), 1)
    assert only.difference or only.broken is not None
    assert only.trace.scope.rules_off == ("free_tail_first",)
