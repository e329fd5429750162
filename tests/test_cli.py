from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof import __version__
from kvproof.cli.main import main
from kvproof.scopes.named import SCOPES

ROOT = Path(__file__).parent.parent
FINDING = "counterexamples/findings/failed-load-stands-in-its-own-way.json"


def kvproof(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvproof.cli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def results(text: str) -> Any:
    envelope = json.loads(text)
    assert envelope["kvproof"] == __version__
    assert envelope["format"] == 1
    return envelope["results"]


def test_a_scope_that_holds_exits_with_0_and_says_what_was_covered() -> None:
    done = kvproof("check", "two-equal")
    assert done.returncode == 0
    assert "two-equal: holds" in done.stdout
    assert "29 states, 36 transitions" in done.stdout
    assert "fingerprint collision" in done.stdout
    assert "never put to the test here: NoReuseInFlight" in done.stderr


def test_a_violation_exits_with_1_and_writes_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("check", "shared-prefix", "--rule-off", "evict_hash_on_reuse", "--to")
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
    (report,) = results(done.stdout)
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
        (("random", "--steps", "1000000000"), "equal to 1000000"),
        (("lockstep", "--version", "0.1.0"), "vLLM 0.1.0"),
        (("sweep", "--scopes", "1", "--vllm", "--version", "0.1.0"), "vLLM 0.1.0"),
        (
            ("replay", FINDING, "--vllm", "--version", "0.1.0"),
            "vLLM 0.1.0",
        ),
        (("random", "--on", "vllm", "--version", "0.1.0"), "vLLM 0.1.0"),
        (("simulate", "multi-turn", "--version", "0.1.0"), "vLLM 0.1.0"),
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
    assert results(done.stdout)[0]["scope"] == "mine"


def test_scopes_and_invariants_are_listed() -> None:
    listed = {scope["name"] for scope in results(kvproof("scopes", "--json").stdout)}
    assert listed == set(SCOPES)
    assert "BlockConservation (state)" in kvproof("invariants").stdout


def test_a_trace_is_exported_for_other_tools() -> None:
    itf = kvproof("export", FINDING, "--as", "itf")
    assert itf.returncode == 0
    assert json.loads(itf.stdout)["#meta"]["format"] == "ITF"
    assert kvproof("export", FINDING, "--as", "mermaid").stdout.startswith("sequenceDiagram")
    assert kvproof("export", FINDING, "--as", "dot").stdout.startswith("digraph")
    assert kvproof("export", "two-equal", "--as", "dot").stdout.startswith("digraph")
    test = kvproof("export", FINDING, "--as", "pytest").stdout
    assert "def test_failed_load_stands_in_its_own_way" in test
    wrong = kvproof("export", FINDING, "--as", "pdf")
    assert wrong.returncode == 2
    assert all(form in wrong.stderr for form in ("'pytest'", "'itf'", "'mermaid'", "'dot'"))


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
COMMANDS = (("replay",), ("minimize", "--to", "smaller.json"), ("export", "--as", "itf"))


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
    assert results(replayed.stdout)["broken"] == ["NoStall"]
    again = kvproof("minimize", FINDING, "--to", str(smaller))
    assert again.returncode == 2
    assert "--force" in again.stderr


def test_findings_and_rules_are_listed() -> None:
    assert "padding-never-fits (NoStall)" in kvproof("findings").stdout
    assert "evict_hash_on_reuse" in kvproof("rules").stdout


def test_a_closed_pipe_is_no_violation() -> None:
    done = subprocess.run(
        f"{sys.executable} -m kvproof rules | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.splitlines()[-1] in ("0", "141")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "check shared-prefix --rule-off evict_hash_on_reuse --to {}",
        "check-progress two-loads --rule-off drain_block_holders_first --to {}",
        f"minimize {FINDING} --to {{}}",
    ],
)
def test_a_closed_pipe_loses_no_trace(command: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kvproof", *command.format(trace).split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert kvproof("replay", str(trace)).returncode == 1


@pytest.mark.parametrize("command", [("--version",), ("-h",), ("rules",), ("check", "two-equal")])
def test_output_that_cannot_be_written_is_no_violation(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvproof", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 2
    assert "kvproof: output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_run_without_anybody_to_print_to() -> None:
    command = f"{sys.executable} -m kvproof rules >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_with_130_and_says_what_was_covered(number: int) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "kvproof", "sweep", "--scopes", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    time.sleep(8)
    started.send_signal(number)
    said, _errors = started.communicate(timeout=60)
    assert started.returncode in (1, 130), "1 if something fell by then"
    assert "of 100000 scopes" in said


def test_the_version_and_the_scopes_are_there_at_once() -> None:
    assert kvproof("--version").stdout.startswith("kvproof ")
    assert kvproof("-V").stdout == kvproof("--version").stdout
    assert kvproof("check", "-h").stdout == kvproof("check", "--help").stdout != ""
    loaded = (
        "import sys; from kvproof.cli.main import build; build(['scopes']); "
        "print(sorted({'numba', 'z3', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == "[]\n"


def test_a_template_of_a_scope_can_be_checked_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert kvproof("scope", "--to", str(path)).returncode == 0
    assert kvproof("check", str(path), "--quiet").stdout.count("\n") == 1
    assert kvproof("scope", "--to", str(path)).returncode == 2


def test_a_limit_of_memory_is_of_the_whole_process() -> None:
    done = kvproof("check", "crowd", "--max-memory", "10")
    assert done.returncode == 3
    assert "crowd: bounded (memory)" in done.stdout
    assert "MB before the first step" in done.stdout
    assert (
        "MB before the first step"
        in kvproof("check-progress", "two-equal", "--max-memory", "10").stdout
    )
    measured = (
        "import sys; from kvproof.cli.main import main\n"
        "try: main()\n"
        "finally: print(open('/proc/self/status').read(), file=sys.stderr)"
    )
    command = [sys.executable, "-c", measured, "check", "crowd", "--max-memory", "330", "--json"]
    limited = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    (report,) = results(limited.stdout)
    assert report["reason"] == "memory"
    assert report["states"] > 1000
    # The peak since this program began; getrusage counts that of whoever started it too.
    _, _, peak = limited.stderr.partition("VmHWM:")
    assert 200_000_000 < int(peak.split()[0]) * 1024 <= 340_000_000


@pytest.mark.parametrize("command", ["check", "check-progress"])
def test_a_step_that_no_memory_has_room_for_is_said_with_its_need(
    tmp_path: Path, command: str
) -> None:
    path = tmp_path / "wide.toml"
    request = "[[requests]]\nprompt = [1, 2]\nmax_tokens = 4\nmay_stop = true\n"
    options = "max_num_seqs = 16\nmax_num_batched_tokens = 64\nnum_speculative_tokens = 3\n"
    head = 'name = "wide"\nnum_blocks = 64\nmax_model_len = 16\n'
    path.write_text(head + options + 16 * request, encoding="utf-8")
    done = kvproof(command, str(path))
    assert done.returncode == 2
    assert "wide: a state may have 2,177,953,337,809,371," in done.stderr
    assert "GB: more than there is" in done.stderr


def test_a_shell_can_complete_commands_and_options() -> None:
    asked = {"_KVPROOF_COMPLETE": "complete_bash", "COMP_CWORD": "1", "COMP_WORDS": "kvproof che"}
    command = "import sys; sys.argv[0] = 'kvproof'; from kvproof.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout.split() == ["check", "check-progress"]


@pytest.mark.parametrize(
    ("arguments", "code", "fields"),
    [
        (("random", "--runs", "3", "--size", "tiny"), 0, {"runs", "actions", "findings"}),
        (("configure", "reserve_lookahead"), 1, {"configuration", "broken", "trace"}),
        (("minimize", FINDING, "--to", "smaller.json"), 0, {"stage", "seconds", "trace"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_results_are_there_for_machines(
    arguments: tuple[str, ...], code: int, fields: set[str], tmp_path: Path
) -> None:
    words = [str(tmp_path / word) if word == "smaller.json" else word for word in arguments]
    done = kvproof(*words, "--json")
    assert done.returncode == code
    assert json.loads(done.stdout)["command"] == arguments[0]
    assert fields <= results(done.stdout).keys()


def test_a_name_with_brackets_is_printed_as_it_is_and_one_with_escapes_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.toml"
    assert kvproof("scope", "--to", str(path)).returncode == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"two-equal"', '"v1 [/wip]"'), encoding="utf-8")
    done = kvproof("check", str(path))
    assert (done.returncode, done.stdout.splitlines()[0][:17]) == (0, "v1 [/wip]: holds ")
    path.write_text(text.replace('"two-equal"', r'"a\u001b[31m\nb"'), encoding="utf-8")
    done = kvproof("check", str(path))
    assert done.returncode == 2
    assert "allowed is text in one line" in done.stderr
    assert "\x1b" not in done.stderr
