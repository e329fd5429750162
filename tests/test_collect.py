"""Collecting every distinct violation is held against a plain search that stops at each."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest

from kvproof.checker.collect import collect
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.checker.symmetry import rename_blocks
from kvproof.model.compiled import compile_scope
from kvproof.model.engine import KINDS, Kind
from kvproof.model.scope import Scope
from kvproof.scopes.named import SCOPES
from kvproof.trace.codes import enabled_codes
from kvproof.trace.trace import load, names_of, replay, step

COUNTEREXAMPLES = Path(__file__).parent.parent / "counterexamples"
RULES = (
    "evict_hash_on_reuse",
    "forget_victim_drafts",
    "preempt_policy_last",
    "drop_stale_output_of_producers",
    "free_at_last_reference",
    "respect_request_cap",
)
Way = tuple[tuple[str, ...], Kind, int]
"""What tells one violation from another: what falls, the kind of action, the assertion."""


def plainly(scope: Scope) -> dict[Way, int]:
    """The actions of a shortest run to each violation, which no run goes past."""
    compiled = compile_scope(scope)
    names = np.zeros(scope.num_blocks, np.int32)
    ways: dict[Way, int] = {}
    waiting = deque([(compiled.initial(), 0)])
    seen = {compiled.initial().row.tobytes()}
    while waiting:
        state, actions = waiting.popleft()
        for code in enabled_codes(compiled, state).tolist():
            after, _report, broken = step(compiled, state, code)
            if broken:
                way = names_of(broken), Kind(code % KINDS), int(after.assertion)
                ways.setdefault(way, actions + 1)
                continue
            canonical = after.copy()
            rename_blocks(after, canonical, compiled.c, names)
            if canonical.row.tobytes() not in seen:
                seen.add(canonical.row.tobytes())
                waiting.append((canonical, actions + 1))
    return ways


@pytest.fixture(scope="module", params=RULES)
def scope(request: pytest.FixtureRequest) -> Scope:
    return load(COUNTEREXAMPLES / f"{request.param}.json").scope


def test_every_violation_is_found_once_with_a_shortest_run(scope: Scope) -> None:
    result, traces = collect(SchedulerSystem(scope))
    assert result.outcome == "holds"
    found: dict[Way, int] = {}
    for trace in traces:
        *_, last = replay(trace)
        way = trace.broken, Kind(last.code % KINDS), int(last.after.assertion)
        assert way not in found
        found[way] = len(trace.actions)
    assert found == plainly(scope)
    assert found


def test_where_nothing_falls_nothing_is_collected() -> None:
    result, traces = collect(SchedulerSystem(SCOPES["two-equal"]))
    assert (result.outcome, traces) == ("holds", ())
