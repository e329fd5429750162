"""The driver's loop and the real EngineCore make the same calls of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.engine_tie import MODULE, difference, tie_runs
from kvproof.scopes.named import SCOPES

RUNS = 300


@pytest.fixture(scope="module")
def engine(vllm: Client) -> Iterator[Client]:
    with Client(vllm.version, module=MODULE) as client:
        yield client


def test_the_real_loop_makes_the_same_calls_in_the_same_order(
    engine: Client, measured: Callable[[str], None]
) -> None:
    tied = tie_runs(engine, RUNS)
    assert tied.differences == []
    assert tied.runs == RUNS
    assert tied.raised < RUNS // 20
    assert min(tied.calls.values()) > 20
    assert set(tied.calls) == {
        "add_request",
        "finish_requests",
        "schedule",
        "update_from_output",
        "update_draft_token_ids",
        "reset_prefix_cache",
        "set_pause_state",
    }
    assert tied.repeated_aborts > 0
    measured(f"engine     {tied.runs} runs, {tied.calls.total():,} calls as EngineCore makes them")


ADD, SCHEDULE, OUTPUT = ["add", 0], ["schedule"], ["output", {0: [1]}, [], [], []]


@pytest.mark.parametrize(
    ("scope", "right", "wrong", "says"),
    [
        ("two-equal", [ADD, SCHEDULE, OUTPUT], [ADD, SCHEDULE, SCHEDULE], "with schedule"),
        ("two-equal", [ADD, SCHEDULE, OUTPUT], [SCHEDULE, ADD], "does nothing"),
        ("async", [ADD, SCHEDULE, SCHEDULE, OUTPUT], [ADD, SCHEDULE, OUTPUT], "with output"),
        ("async", [ADD, SCHEDULE, SCHEDULE, OUTPUT], [ADD, *[SCHEDULE] * 3], "with schedule"),
    ],
)
def test_a_run_that_no_engine_takes_is_told_from_the_others(
    engine: Client, scope: str, right: list[object], wrong: list[object], says: str
) -> None:
    values = observation.scope_values(SCOPES[scope])
    one, other = engine.run([["tie", values, right], ["tie", values, wrong]])
    assert difference(one) is None
    assert says in str(difference(other))


RUNNING = [ADD, ["add", 1], SCHEDULE, ["output", {0: [1], 1: [1]}, [], [], []]]
EMPTY = [SCHEDULE, ["output", {}, [], [], []]]
END = [SCHEDULE, ["output", {0: [3], 1: [3]}, [], [], []]]
RESET = ["reset_prefix_cache", True, True]


def state(name: str) -> list[str]:
    return ["set_pause_state", name]


@pytest.mark.parametrize(
    ("mode", "clears", "now", "then", "idle"),
    [
        ("abort", True, [["abort", 0], ["abort", 1], state("PAUSED_NEW")], EMPTY, [RESET]),
        ("abort", False, [["abort", 0], ["abort", 1], state("PAUSED_NEW")], EMPTY, []),
        ("wait", True, [state("PAUSED_NEW")], [*END, *EMPTY], [RESET]),
        ("wait", False, [state("PAUSED_NEW")], [*END, *EMPTY], []),
        ("keep", True, [state("PAUSED_ALL"), RESET], [], []),
        ("keep", False, [state("PAUSED_ALL")], [], []),
    ],
)
def test_a_pause_is_heard_of_as_the_calls_that_stand_for_it(
    engine: Client,
    mode: str,
    clears: bool,
    now: list[object],
    then: list[object],
    idle: list[object],
) -> None:
    values = observation.scope_values(SCOPES["two-equal"])
    resume = state("UNPAUSED")
    calls = [*RUNNING, *now, *then, *idle, resume]
    script = [*RUNNING, ["pause", mode, clears], *then, resume]
    other = [*RUNNING, ["pause", mode, not clears], *then, resume]
    same, differs = engine.run([["tie", values, calls, script], ["tie", values, calls, other]])
    assert difference(same) is None
    assert "reset_prefix_cache" in str(difference(differs)) or "calls" in str(difference(differs))
