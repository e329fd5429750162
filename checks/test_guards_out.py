"""Guards taken out of the real classes: the recorded runs do the same damage there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.vllm_replay import expect_moments, replay_on_vllm
from kvproof.checker.minimize import with_rules_on
from kvproof.cli.main import main
from kvproof.evidence.counterexamples import FOLDER
from kvproof.model.compiled import compile_scope
from kvproof.model.engine import Kind
from kvproof.model.rules import Rule
from kvproof.trace.trace import Trace, TraceError, load, replay

ROOT = Path(__file__).parent.parent

UNSEEN = {"refund_victim_budget", "count_only_certain_tokens"}
"""Rules whose minimal run is the same seen from outside: what falls is inside the call."""


def recorded(name: str) -> Trace:
    return load(ROOT / FOLDER / f"{name}.json")


def test_without_its_guard_vllm_does_what_the_model_does_without_the_rule(
    vllm: Client, measured: Callable[[str], None]
) -> None:
    raised = 0
    for name in sorted(vllm.guards):
        trace = recorded(name)
        done = replay_on_vllm(trace, vllm)
        assert done.agrees, f"{name}, action {done.differs_at}: {done.fields}"
        last = done.moments[-1]
        assert len(done.moments) == len(trace.actions)
        assert set(trace.broken) <= set(last.broken)
        assert (done.error is not None) == bool(last.after.assertion)
        raised += done.error is not None
    measured(
        f"guards out {len(vllm.guards)} of {len(Rule)} rules: the real classes do "
        f"the same damage without them, observation by observation ({raised} raise)"
    )
    assert vllm.guards == set(Rule.__members__)


def test_with_its_guard_vllm_survives_the_same_actions(
    vllm: Client, measured: Callable[[str], None]
) -> None:
    for rule in Rule:
        run = with_rules_on(recorded(rule.name))
        assert run.broken == ()
        done = replay_on_vllm(run, vllm)
        assert done.agrees, f"{rule.name}, action {done.differs_at}: {done.fields}"
        assert done.error is None
    measured(
        f"guards in  {len(Rule)} of {len(Rule)} rules: vLLM as it is survives the same actions"
    )


def observations(trace: Trace) -> list[object]:
    compiled = compile_scope(trace.scope)
    seen = []
    for moment, (_, expected) in zip(
        replay(trace), expect_moments(compiled, replay(trace)), strict=True
    ):
        result = expected.result
        if moment.action.kind == Kind.SCHEDULE:
            result = {name: v for name, v in result.items() if name not in observation.WORKERS_OWN}
        seen.append((result, expected.observation[:-1], moment.after.assertion))
    return seen


def test_what_is_observed_tells_a_guard_from_none(vllm: Client) -> None:
    for name in sorted(vllm.guards):
        trace = recorded(name)
        same = observations(trace) == observations(with_rules_on(trace))
        assert same == (name in UNSEEN), name


def test_guards_are_back_in_with_the_next_run(vllm: Client) -> None:
    trace = recorded("fence_in_flight_frees")
    assert replay_on_vllm(trace, vllm).agrees
    assert replay_on_vllm(with_rules_on(trace), vllm).agrees


def test_a_rule_whose_guard_cannot_be_taken_out_is_refused(
    vllm: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "_guards", vllm.guards - {"finish_once"})
    with pytest.raises(TraceError, match="rules_off = finish_once: cannot be taken out"):
        replay_on_vllm(recorded("finish_once"), vllm)


@pytest.mark.parametrize("name", ["fence_in_flight_frees", "finish_once"])
def test_replay_tells_what_vllm_does_with_the_guard_and_without(
    name: str,
    vllm: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(ROOT / FOLDER / f"{name}.json")
    monkeypatch.setattr(sys, "argv", ["kvproof", "replay", path, "--vllm"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    kept, taken_out = capsys.readouterr().out.splitlines()[-2:]
    assert "as it is: " in kept
    assert kept.endswith("each as on the model; broken: nothing")
    assert f"without the guard of {name}: " in taken_out
    broken = f"broken: {', '.join(recorded(name).broken)}"
    assert taken_out.endswith(broken)
