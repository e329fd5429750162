"""Rules: with a guard switched off the checker finds what it prevents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.check import check
from kvproof.trace import replay
from spec.scopes import SCOPES

CAUGHT_IN = {
    "fence_in_flight_frees": ("consumer", "NoReuseInFlight"),
    "hold_blocks_until_load_done": ("consumer", "NoReuseInFlight"),
    "roll_back_rejected_drafts": ("drafts", "CountersConsistent"),
    "drain_stale_outputs": ("pipeline", "OutputExact"),
    "publish_committed_tokens_only": ("async", "PublishedSound"),
    "victim_must_be_freeable": ("consumer", "VictimFreeable"),
    "reserve_for_inflight_prefills": ("two-loads", "NoStall"),
    "stop_scheduling_at_max_tokens": ("async-priority", "NoWastedStep"),
}


@pytest.mark.parametrize("rule", CAUGHT_IN)
def test_a_rule_of_the_in_flight_world_is_needed(
    rule: str, measured: Callable[[str], None]
) -> None:
    name, invariant = CAUGHT_IN[rule]
    trace = check(SCOPES[name].with_rules_off(rule)).trace
    assert trace is not None
    measured(f"rule off   {rule:<32} {invariant} falls after {len(trace.actions)} actions")
    assert invariant in trace.broken
    assert list(replay(trace))[-1].broken == trace.broken
