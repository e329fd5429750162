from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvproof.checker.check import check
from kvproof.errors import KvproofError
from kvproof.scopes.named import SCOPES
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, TraceError, dumps, load, loads, replay, save


@pytest.fixture(scope="module")
def counterexample() -> Trace:
    trace = check(SCOPES["shared-prefix"].with_rules_off("evict_hash_on_reuse")).trace
    assert trace is not None
    return trace


def changed(trace: Trace, **changes: Any) -> bytes:
    return json.dumps({**json.loads(dumps(trace)), **changes}).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        list(replay(loads(data, "x.json")))
    return str(caught.value)


def test_a_trace_survives_a_file(counterexample: Trace, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    save(counterexample, path)
    assert load(path) == counterexample


def test_a_replay_breaks_what_the_trace_names_at_its_last_action(counterexample: Trace) -> None:
    moments = list(replay(counterexample))
    assert moments[-1].broken == counterexample.broken
    assert not any(moment.broken for moment in moments[:-1])


def test_an_existing_file_is_kept(counterexample: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(KvproofError, match="--force"):
        save(counterexample, path)
    assert path.read_text(encoding="utf-8") == "mine"
    save(counterexample, path, force=True)
    assert load(path) == counterexample


def test_a_removed_action_names_the_first_that_is_not_enabled(counterexample: Trace) -> None:
    actions = json.loads(dumps(counterexample))["actions"]
    without = [action for i, action in enumerate(actions) if i != 3]
    message = refusal(changed(counterexample, actions=without))
    assert "action 4 (output" in message
    assert "is not enabled; enabled there: add R3; abort R0" in message


def test_a_request_out_of_range_is_refused(counterexample: Trace) -> None:
    actions = [{"do": "add", "request": 9}]
    assert "request 9: allowed is 0..3" in refusal(changed(counterexample, actions=actions))


def test_a_wrong_rule_name_is_refused(counterexample: Trace) -> None:
    scope = {**json.loads(dumps(counterexample))["scope"], "rules_off": ["no_rule"]}
    assert "rules_off = 'no_rule'" in refusal(changed(counterexample, scope=scope))


def test_a_wrong_invariant_name_is_refused(counterexample: Trace) -> None:
    assert "'NoSuch'" in refusal(changed(counterexample, broken=["NoSuch"]))


def test_a_newer_version_is_refused(counterexample: Trace) -> None:
    assert "a newer kvproof wrote it" in refusal(changed(counterexample, version=2))


def test_a_foreign_file_is_refused() -> None:
    assert "format is ''" in refusal(b"{}")
    assert "not JSON, or damaged" in refusal(b'{"format": "kvp')
    assert "not JSON, or damaged" in refusal(b"\xff\xfe")


def test_an_unknown_key_is_refused(counterexample: Trace) -> None:
    assert "`colour`" in refusal(changed(counterexample, colour="red"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        load(tmp_path / "none.json")


def test_the_text_has_a_line_an_action_and_the_blocks_as_a_table(counterexample: Trace) -> None:
    text = render(counterexample)
    for number, action in enumerate(counterexample.actions, 1):
        assert f"{number:3}  {action}" in text
    assert "rules off: evict_hash_on_reuse" in text
    assert f"broken: {counterexample.broken[0]}" in text
    assert "published" in text
    assert "free #1" in text
