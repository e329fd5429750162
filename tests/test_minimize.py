from __future__ import annotations

import random

import msgspec
import pytest

from kvproof.checker import minimize as module
from kvproof.checker.check import check
from kvproof.checker.minimize import SoFar, follow, minimize
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.model.state import Assertion
from kvproof.scopes.cuts import cuts, measure, weight
from kvproof.scopes.named import SCOPES
from kvproof.spec.findings import FINDINGS
from kvproof.trace.codes import enabled_codes
from kvproof.trace.trace import Trace, TraceError, from_codes, names_of, replay, step

FALLS = {
    "evict_hash_on_reuse": "shared-prefix",
    "roll_back_rejected_placeholders": "async-drafts",
    "hold_blocks_until_load_done": "consumer",
    "requeue_victim_first": "priorities",
}


def broken_scope(rule: str) -> Scope:
    return SCOPES[FALLS[rule]].with_rules_off(rule)


def random_run(scope: Scope, seed: int, length: int) -> Trace:
    """A run of random actions up to the first broken invariant."""
    compiled = compile_scope(scope)
    draw = random.Random(seed)
    while True:
        state, codes = compiled.initial(), []
        for _ in range(length):
            enabled = enabled_codes(compiled, state).tolist()
            if not enabled:
                break
            codes.append(draw.choice(enabled))
            state, _report, mask = step(compiled, state, codes[-1])
            if mask:
                return from_codes(scope, tuple(codes), names_of(mask))


def is_broken_by_the_rule(scope: Scope, broken: tuple[str, ...]) -> bool:
    guarded = check(msgspec.structs.replace(scope, rules_off=())).trace
    return guarded is None or set(broken).isdisjoint(guarded.broken)


@pytest.mark.parametrize("rule", FALLS)
def test_no_cut_of_the_smallest_scope_has_a_run_as_short(rule: str) -> None:
    first = check(broken_scope(rule)).trace
    assert first is not None
    trace = minimize(broken_scope(rule))
    assert trace.scope.rules_off == (rule,)
    for smaller, _kept in cuts(trace.scope):
        found = check(smaller).trace
        if found is None or set(first.broken).isdisjoint(found.broken):
            continue
        if is_broken_by_the_rule(smaller, found.broken):
            assert weight(smaller) == weight(trace.scope)
            assert len(found.actions) > len(trace.actions)


@pytest.mark.parametrize("rule", FALLS)
def test_the_trace_breaks_an_invariant_at_its_end_and_none_is_shorter(rule: str) -> None:
    trace = minimize(broken_scope(rule))
    moments = list(replay(trace))
    assert moments[-1].broken == trace.broken
    assert not any(moment.broken for moment in moments[:-1])
    shortest = check(trace.scope).trace
    assert shortest is not None
    assert len(trace.actions) == len(shortest.actions)


def test_equal_sources_give_equal_traces_and_a_minimal_one_stays() -> None:
    scope = broken_scope("evict_hash_on_reuse")
    first = minimize(scope)
    assert minimize(scope) == first
    assert minimize(first) == first


def test_a_long_random_run_shrinks_to_a_shortest_one() -> None:
    run = random_run(broken_scope("evict_hash_on_reuse"), seed=1, length=400)
    trace = minimize(run)
    assert len(trace.actions) < len(run.actions)
    assert measure(trace.scope) < measure(run.scope)
    assert not set(run.broken).isdisjoint(trace.broken)


def test_a_scope_too_large_to_search_is_cut_along_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_search", lambda scope, wanted, past, states: "bounded")
    run = random_run(broken_scope("evict_hash_on_reuse"), seed=1, length=400)
    reports: list[SoFar] = []
    trace = minimize(run, watch=reports.append)
    assert reports[-1].stage == "short"
    assert len(trace.actions) < len(run.actions)
    assert measure(trace.scope) < measure(run.scope)
    assert list(replay(trace))[-1].broken == trace.broken


def test_an_interrupt_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROGRESS_SECONDS", 0)
    scope = broken_scope("evict_hash_on_reuse")
    reports: list[SoFar] = []

    def interrupt(so_far: SoFar) -> None:
        reports.append(so_far)
        if so_far.stage == "shrinking" and so_far.scope != scope:
            raise KeyboardInterrupt

    trace = minimize(scope, watch=interrupt)
    assert reports[-1].stage == "interrupted"
    assert measure(minimize(scope).scope) < measure(trace.scope) < measure(scope)
    assert list(replay(trace))[-1].broken == trace.broken


def test_only_a_wanted_invariant_counts() -> None:
    scope = SCOPES["block-size-1"].with_rules_off("hash_whole_prefix")
    assert "PublishedSound" in minimize(scope, ["PublishedSound"]).broken
    with pytest.raises(TraceError, match=r"breaks PublishedSound; .* first breaks Isolation"):
        minimize(scope, ["Isolation"])


def test_a_source_that_breaks_nothing_is_refused() -> None:
    scope = SCOPES["two-equal"]
    with pytest.raises(TraceError, match="two-equal: holds"):
        minimize(scope)
    with pytest.raises(TraceError, match="breaks nothing"):
        minimize(Trace(scope, ()))
    with pytest.raises(TraceError, match="NoSuch"):
        minimize(scope, ["NoSuch"])


def test_a_violation_that_no_rule_prevents_is_refused() -> None:
    finding = FINDINGS[0].scope
    assert minimize(finding).broken
    with pytest.raises(TraceError, match="broken with finish_once on too"):
        minimize(finding.with_rules_off("finish_once"))


def test_a_bug_is_not_taken_for_another_that_breaks_the_same_invariant() -> None:
    by_id = {finding.id: finding for finding in FINDINGS}
    padding, loading = by_id["padding-over-threshold"], by_id["sync-load-of-everything"]
    both = msgspec.structs.replace(
        padding.scope,
        requests=(*padding.scope.requests, *loading.scope.requests),
        kv_role="kv_consumer",
    )
    shortest = check(both).trace
    assert shortest is not None
    assert last_assertion(shortest) == Assertion.NOTHING_TO_SCHEDULE
    padded = check(padding.scope).trace
    assert padded is not None
    taken, broken = follow(both, padded.actions)
    trace = minimize(Trace(both, taken, broken))
    assert last_assertion(trace) == Assertion.PADDING_CUT
    assert len(trace.scope.requests) == 2


def last_assertion(trace: Trace) -> int:
    return int(list(replay(trace))[-1].after.assertion)


def test_every_cut_is_smaller_and_keeps_the_rules() -> None:
    for scope in SCOPES.values():
        off = scope.with_rules_off("finish_once")
        for smaller, kept in cuts(off):
            assert measure(smaller) < measure(off)
            assert len(kept) == len(smaller.requests)
            assert smaller.rules_off == ("finish_once",)
