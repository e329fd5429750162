from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.cli.main import main
from kvproof.scopes.named import SCOPES

ROOT = Path(__file__).parent.parent


def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvproof.cli.main import main; main()", *arguments]
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
    itf = kvproof("export", FINDING, "--itf")
    assert itf.returncode == 0
    assert json.loads(itf.stdout)["#meta"]["format"] == "ITF"
    assert kvproof("export", FINDING, "--mermaid").stdout.startswith("sequenceDiagram")
    assert kvproof("export", FINDING, "--dot").stdout.startswith("digraph")
    assert kvproof("export", "two-equal", "--dot").stdout.startswith("digraph")
    test = kvproof("export", FINDING, "--vllm-test").stdout
    assert "def test_failed_load_stands_in_its_own_way" in test
    for flags in ((), ("--itf", "--dot")):
        wrong = kvproof("export", FINDING, *flags)
        assert wrong.returncode == 2
        assert "give one of --vllm-test, --itf, --mermaid, --dot" in wrong.stderr


COUNTEREXAMPLE = ROOT / "counterexamples" / "fence_in_flight_frees.json"


def without_an_action(trace: dict[str, Any]) -> None:
    del trace["actions"][0]


def without_the_step(trace: dict[str, Any]) -> None:
    del trace["actions"][2]


def without_the_last_action(trace: dict[str, Any]) -> None:
    del trace["actions"][-1]


def with_an_action_after_the_last(trace: dict[str, Any]) -> None:
    trace["actions"].append({"do": "transfer_lands", "request": 1})


def with_a_request_out_of_range(trace: dict[str, Any]) -> None:
    trace["actions"][1]["request"] = 7


def with_an_unknown_rule(trace: dict[str, Any]) -> None:
    trace["scope"]["rules_off"] = ["fence_frees"]


def of_a_newer_version(trace: dict[str, Any]) -> None:
    trace["version"] += 1


BAD_TRACES: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (without_an_action, "action 3 (abort R0) is not enabled; enabled there: "),
    (without_the_step, "broken = NoReuseInFlight: does not fall at the trace's end"),
    (without_the_last_action, "broken = NoReuseInFlight: does not fall at the trace's end"),
    (with_an_action_after_the_last, "NoReuseInFlight falls at action 5: the trace must end there"),
    (with_a_request_out_of_range, "action 2 (add R7): request 7: allowed is 0..1"),
    (with_an_unknown_rule, "rules_off = 'fence_frees'"),
    (of_a_newer_version, "a newer kvproof wrote it"),
]
COMMANDS = (("replay",), ("minimize", "--to", "smaller.json"), ("export", "--vllm-test"))


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize(
    ("damage", "says"), BAD_TRACES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_trace_edited_by_hand_is_refused_with_the_reason(
    damage: Callable[[dict[str, Any]], None],
    says: str,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = json.loads(COUNTEREXAMPLE.read_text(encoding="utf-8"))
    damage(trace)
    (tmp_path / "edited.json").write_text(json.dumps(trace), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command, *options = arguments
    monkeypatch.setattr(sys, "argv", ["kvproof", command, "edited.json", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert not (tmp_path / "smaller.json").exists()


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
