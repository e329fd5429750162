"""What comes of a vLLM that does something else: named, shortest, and never the driver's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace as changed

from kvproof.bridge import environment
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Expected, compare, told
from kvproof.bridge.follow import Difference, LockstepWorld
from kvproof.bridge.lockstep import Comparison, lockstep
from kvproof.bridge.observation import Past, scope_values
from kvproof.bridge.observed import ObservedWorld, RealClasses, moments_on
from kvproof.bridge.vllm_replay import expect_moments, replay_on_vllm
from kvproof.checker.minimize import with_rules_on
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.search.explore import Result, explore
from kvproof.trace.actions import Action
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, TraceError, from_codes, load, replay, save
from kvproof.vllm import protocol
from kvproof.walks.worlds import Tally, Violation
from tests.test_vllm_driver import ROOT

_R = RequestSpec
TIGHT = Scope(
    name="tight",
    about="two requests grow in a pool for one",
    requests=(_R(prompt=(1, 2), max_tokens=4), _R(prompt=(2, 1), max_tokens=4)),
    num_blocks=5,
    max_num_batched_tokens=6,
    max_model_len=6,
)
EDITED = ("preempt_policy_last", "step_back_cursor_after_victim", "admit_nobody_after_preemption")


class Edited(Client):
    """The driver over real classes without a guard, whatever the scope says."""

    guard_out = ""

    def submit(self, batch: list[list[Any]]) -> None:
        super().submit([self._edited(operation) for operation in batch])

    def _edited(self, operation: list[Any]) -> list[Any]:
        guards = [self.guard_out] if self.guard_out else []
        return [*operation[:2], guards] if operation[0] == "new" else operation


def needs_vllm() -> None:
    if environment.find() is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")


@pytest.fixture(scope="module")
def edited() -> Iterator[Edited]:
    needs_vllm()
    with Edited() as client:
        yield client


@pytest.fixture(scope="module")
def wrong() -> Iterator[Client]:
    needs_vllm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        with Client(module="tests.gone_wrong") as client:
            yield client


@pytest.fixture(scope="module")
def searched() -> Result:
    return explore(SchedulerSystem(TIGHT)).finished()


def every_run(result: Result) -> Iterator[tuple[int, ...]]:
    """The first path to each state."""
    store = result.store
    for state in range(result.initial_states, result.states):
        codes: list[int] = []
        at = state
        while at >= result.initial_states:
            codes.append(int(store.actions[at]))
            at = int(store.parents[at])
        yield tuple(reversed(codes))


def differs_at(scope: Scope, codes: tuple[int, ...], client: Client) -> int:
    """The first action of a run that differs; 0 for none."""
    moments = list(replay(from_codes(scope, codes)))
    operations, expected = zip(*expect_moments(compile_scope(scope), moments), strict=True)
    answers = client.run([["new", scope_values(scope)], *operations])[1:]
    pairs = zip(expected, answers, strict=True)
    return next((k for k, (one, answer) in enumerate(pairs, 1) if compare(one, answer)), 0)


@pytest.mark.parametrize("guard", EDITED)
def test_the_shortest_difference_is_found_and_named(edited: Edited, guard: str) -> None:
    scope = with_rules_on(load(ROOT / "counterexamples" / f"{guard}.json")).scope
    result = explore(SchedulerSystem(scope)).finished()
    edited.guard_out = guard
    found = lockstep(scope, result, edited).difference
    assert found is not None
    runs = [codes for codes in every_run(result) if len(codes) < len(found.codes)]
    assert runs
    assert not any(differs_at(scope, codes, edited) for codes in runs)
    again = replay_on_vllm(found.trace, edited)
    assert (again.differs_at, again.fields) == (len(found.codes), found.fields)
    assert found.lines == [f"  {line}" for line in told(found.fields)]
    for name, model, real in found.fields:
        assert model != real
        assert "requests" not in name


@pytest.mark.parametrize("guard", EDITED)
def test_random_lockstep_tells_an_edited_vllm_by_named_fields(edited: Edited, guard: str) -> None:
    scope = with_rules_on(load(ROOT / "counterexamples" / f"{guard}.json")).scope
    edited.guard_out = guard
    with pytest.raises(Difference) as caught:
        for seed in range(200):
            LockstepWorld(scope, Tally(), edited).burst(60, seed, guided=False)
    assert str(caught.value).splitlines() == told(caught.value.fields)
    assert all(": model " in line and ", vLLM " in line for line in told(caught.value.fields))


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("a preemption is endless", "does not return (scheduler.py:_preempt_request)"),
        ("a handler takes what stops a call", "does not return (scheduler.py:_preempt_request)"),
        (
            "a preemption loses an attribute",
            "AttributeError: 'Request' object has no attribute 'is_prefill_chunk'",
        ),
        (
            "a preemption loses what snapshots copy",
            "AttributeError: 'BlockPool' object has no attribute 'cached_block_hashes_by_block'",
        ),
    ],
)
def test_what_goes_wrong_below_the_driver_is_a_difference(
    wrong: Client, searched: Result, name: str, outcome: str
) -> None:
    wrong.run([["wrong", name]])
    report = lockstep(TIGHT, searched, wrong)
    assert report.difference is not None
    said = {field: (model, real) for field, model, real in report.difference.fields}
    assert said["outcome"][0] == "no error"
    assert said["outcome"][1].startswith(outcome)
    wrong.run([["wrong", None]])
    assert lockstep(TIGHT, searched, wrong).agrees


def test_a_free_list_that_goes_round_is_walked_to_its_length(
    wrong: Client, searched: Result
) -> None:
    wrong.run([["wrong", "the free list goes round"]])
    found = Comparison(TIGHT, searched, wrong).differences()
    first = next(found)
    found.close()
    wrong.run([["wrong", None]])
    assert ("free", [1, 2, 3, 4], [1] * 6) in first.fields


def test_after_a_call_that_did_not_return_everything_is_skipped_up_to_a_new_scope(
    wrong: Client, searched: Result
) -> None:
    wrong.run([["wrong", "a preemption is endless"]])
    endless = lockstep(TIGHT, searched, wrong).difference
    assert endless is not None
    done = replay_on_vllm(endless.trace, wrong)
    assert done.differs_at == len(endless.codes)
    moves = [["push"], ["observe"], ["pop"], ["observe"]]
    assert wrong.run(moves)[1::2] == [[["skipped"], None]] * 2


def many_loads(requests: int) -> Scope:
    """Loads that fail end their requests, several at once."""
    load = External(2, is_async=False)
    return Scope(
        name=f"many-loads-{requests}",
        requests=(_R(prompt=(1, 1, 2), max_tokens=1, external=load),) * requests,
        kv_role="kv_consumer",
        kv_load_failure_policy="fail",
        may_fail_loads=True,
        num_blocks=3 * requests,
        max_num_seqs=requests,
        max_num_batched_tokens=4 * requests,
        max_model_len=4,
    )


@pytest.mark.parametrize("requests", [9, 12])
def test_many_requests_that_fail_together_are_freed_in_their_order(
    edited: Edited, requests: int
) -> None:
    edited.guard_out = ""
    tally = Tally()
    for seed in range(10):
        LockstepWorld(many_loads(requests), tally, edited).burst(40, seed, guided=False)
    assert tally.actions > 100


@pytest.mark.parametrize("guard", ["preempt_policy_last", "take_hit_from_free_queue"])
def test_what_falls_on_an_edited_vllm_is_kept_and_shown_as_it_was_seen_there(
    edited: Edited, guard: str, tmp_path: Path
) -> None:
    edited.guard_out = guard
    scope = with_rules_on(load(ROOT / "counterexamples" / f"{guard}.json")).scope
    with pytest.raises(Violation) as caught:
        for seed in range(300):
            ObservedWorld(scope, Tally(), RealClasses(edited)).burst(60, seed, guided=False)
    kept = caught.value.trace
    assert kept.recorded_on == edited.version
    save(kept, tmp_path / "seen.json")
    assert load(tmp_path / "seen.json") == kept
    moments = list(moments_on(RealClasses(edited), kept))
    assert set(kept.broken) <= set(moments[-1].broken)
    text = render(kept, moments)
    assert f"{len(kept.actions):3}  {kept.actions[-1]}" in text
    assert f"broken: {', '.join(moments[-1].broken)}" in text
    assert f"recorded on vLLM {edited.version}" in text


def test_a_run_that_the_model_does_not_follow_is_shown_as_far_as_it_does() -> None:
    again = Action(do="add", request=0)
    run = Trace(TIGHT, (again, again), recorded_on="0.31.0")
    text = render(run)
    assert "the model does not follow from action 2: action 2 (add R0) is not enabled" in text
    with pytest.raises(TraceError, match="action 2"):
        render(changed(run, recorded_on=UNSET))


OBSERVED: dict[str, Any] = {name: [] for name in protocol.OBSERVATION}


def seen(**changed: Any) -> list[Any]:
    return list((OBSERVED | changed).values())


def fields_of(model: Any, real: Any, of_model: list[Any], of_vllm: list[Any]) -> list[Any]:
    expected = Expected((), Past(), model, of_model, asserts=False)
    return [list(field) for field in compare(expected, [real, of_vllm])]


def row(**changed: Any) -> list[Any]:
    values = dict.fromkeys(protocol.REQUEST, 0) | changed
    return [values[name] for name in protocol.REQUEST]


def test_only_the_fields_of_requests_that_differ_are_named() -> None:
    ours, theirs = row(num_computed_tokens=4), row(num_computed_tokens=3)
    other = row(request=1)
    assert fields_of(None, None, seen(requests=[ours, other]), seen(requests=[theirs, other])) == [
        ["R0 num_computed_tokens", 4, 3]
    ]


def test_a_request_that_one_side_does_not_have_is_named() -> None:
    assert fields_of(
        None, None, seen(requests=[row(), row(request=1)]), seen(requests=[row()])
    ) == [["requests", [0, 1], [0]]]


def test_blocks_that_differ_are_named() -> None:
    assert fields_of(None, None, seen(ref_cnt=[0, 1, 2]), seen(ref_cnt=[0, 1, 3])) == [
        ["block 2 ref_cnt", 2, 3]
    ]


def test_a_step_and_an_output_are_compared_by_request() -> None:
    model = {"tables": {0: [1], 1: [2]}, "sent_new": [[0, [1], None, [1], 0]], "total": 3}
    real = {"tables": {0: [1], 1: [3]}, "sent_new": [[0, [1], None, [2], 0]], "total": 3}
    assert fields_of(model, real, seen(), seen()) == [
        ["result, R1 tables", [2], [3]],
        ["result, R0 sent block_ids", [1], [2]],
    ]
    told_to = [[7], None, None, None, None, {}]
    assert fields_of({0: told_to}, {0: [[8], *told_to[1:]]}, seen(), seen()) == [
        ["result, R0 new_token_ids", [7], [8]]
    ]
    assert fields_of({0: told_to}, {}, seen(), seen()) == [["result, R0", told_to, "not there"]]


def test_rows_that_are_sent_twice_or_backwards_are_a_difference() -> None:
    ours = {"sent_new": [[0, [1], None, [1], 0], [1, [1], None, [2], 0]]}
    twice = {"sent_new": [ours["sent_new"][0], *ours["sent_new"]]}
    backwards = {"sent_new": ours["sent_new"][::-1]}
    assert fields_of(ours, twice, seen(), seen()) == [["result, sent_new", [0, 1], [0, 0, 1]]]
    assert fields_of(ours, backwards, seen(), seen()) == [["result, sent_new", [0, 1], [1, 0]]]


def test_an_assertion_that_the_model_says_is_no_difference_and_an_endless_call_is() -> None:
    expected = Expected((), Past(), None, seen(), asserts=True)
    assert compare(expected, [["error", "AssertionError", "", "scheduler.py:schedule"], None]) == ()
    endless = [["error", "DoesNotReturn", "", "scheduler.py:schedule"], None]
    assert compare(expected, endless) == (
        ("outcome", "an assertion of vLLM", "does not return (scheduler.py:schedule)"),
    )
    assert compare(expected, [None, seen()]) == (("outcome", "an assertion of vLLM", "no error"),)
