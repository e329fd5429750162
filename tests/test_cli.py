from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spec.scopes import SCOPES

ROOT = Path(__file__).parent.parent


def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvproof.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_a_scope_that_holds_exits_with_0_and_says_what_was_covered() -> None:
    done = kvproof("check", "two-equal")
    assert done.returncode == 0
    assert "two-equal: holds" in done.stdout
    assert "29 states, 36 transitions" in done.stdout
    assert "fingerprint collision" in done.stdout
    assert "never put to the test here: NoReuseInFlight" in done.stderr


def test_a_violation_exits_with_1_and_writes_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("check", "shared-prefix", "--rule-off", "evict_hash_on_reuse", "--trace")
    done = kvproof(*arguments, str(trace))
    assert done.returncode == 1
    assert "shared-prefix: violated" in done.stdout
    replayed = kvproof("replay", str(trace))
    assert replayed.returncode == 1
    assert "rules off: evict_hash_on_reuse" in replayed.stdout
    again = kvproof(*arguments, str(trace))
    assert again.returncode == 2
    assert "--force" in again.stderr


def test_a_limit_exits_with_3_and_says_which() -> None:
    done = kvproof("check", "crowd", "--max-states", "1000", "--json")
    assert done.returncode == 3
    (report,) = json.loads(done.stdout)
    assert report["outcome"] == "bounded"
    assert report["reason"] == "states"
    assert report["covered_depth"] < report["depth"] + 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("check", "no-such-scope"), "'no-such-scope'"),
        (("check", "missing.toml"), "missing.toml: no such file"),
        (("check", "two-equal", "--max-states", "0"), "--max-states = 0"),
        (("check", "two-equal", "--rule-off", "no_rule"), "'no_rule'"),
        (("replay", "missing.json"), "missing.json"),
        (("check", "--no-such-option"), "--no-such-option"),
    ],
)
def test_a_mistake_exits_with_2_and_names_it(arguments: tuple[str, ...], named: str) -> None:
    done = kvproof(*arguments)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_scope_from_a_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "num_blocks = 4\nmax_num_batched_tokens = 4\nmax_model_len = 6\n"
        "[[requests]]\nprompt = [1, 2]\nmax_tokens = 2\n",
        encoding="utf-8",
    )
    done = kvproof("check", str(path), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["scope"] == "mine"


def test_scopes_and_invariants_are_listed() -> None:
    listed = {scope["name"] for scope in json.loads(kvproof("scopes", "--json").stdout)}
    assert listed == set(SCOPES)
    assert "BlockConservation (state)" in kvproof("invariants").stdout


FINDING = "counterexamples/findings/failed-load-stands-in-its-own-way.json"


def test_a_trace_is_exported_for_other_tools() -> None:
    itf = kvproof("export", FINDING, "--as", "itf")
    assert itf.returncode == 0
    assert json.loads(itf.stdout)["#meta"]["format"] == "ITF"
    assert kvproof("export", FINDING, "--as", "mermaid").stdout.startswith("sequenceDiagram")
    assert kvproof("export", FINDING, "--as", "dot").stdout.startswith("digraph")


def test_a_trace_is_minimised_into_a_new_file(tmp_path: Path) -> None:
    smaller = tmp_path / "smaller.json"
    done = kvproof("minimize", FINDING, "--to", str(smaller))
    assert done.returncode == 0
    replayed = kvproof("replay", str(smaller), "--json")
    assert replayed.returncode == 1
    assert json.loads(replayed.stdout)["broken"] == ["NoStall"]
    again = kvproof("minimize", FINDING, "--to", str(smaller))
    assert again.returncode == 2
    assert "--force" in again.stderr


def test_findings_and_rules_are_listed() -> None:
    assert "padding-never-fits (NoStall)" in kvproof("findings").stdout
    assert "evict_hash_on_reuse" in kvproof("rules").stdout
