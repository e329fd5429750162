"""Each change of what vLLM sends is caught: by lockstep, and by observation alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from msgspec.structs import replace

from kvproof.bridge import environment
from kvproof.bridge.client import Client
from kvproof.bridge.lockstep import Comparison, lockstep
from kvproof.bridge.observed import ObservedWorld, RealClasses
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.scope import RequestSpec, Scope
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Result, explore
from kvproof.walks.worlds import Tally, Violation

PLAIN, V2, PIPELINE = "priorities", "depth-3", "two-stages"
ASYNC, DRAFTS, LOADS = "async-priority", "drafts", "sync-loads"


def to_the_end(scope: Scope) -> tuple[RequestSpec, ...]:
    """Its first two requests, which nobody stops."""
    return tuple(replace(q, may_abort=False, may_stop=False) for q in scope.requests[:2])


CAUGHT_ON = {
    "reset-running": """
        known_tokens_are_shifted resumed_are_appended known_tokens_are_sent_to_nobody
        preemptions_are_not_told preemptions_are_told_late
        """,
    "async-reset": """
        known_tokens_are_one_place_on last_known_token_is_missing last_known_token_is_wrong
        known_tokens_are_the_prompt_alone
        """,
    "v2-reset": "prefill_is_the_prompt_alone",
    "two-drafted": "drafts_are_another_requests",
    PLAIN: """
        new_blocks_are_zero last_block_of_new_is_missing last_block_of_new_is_twice_there
        last_block_of_new_is_wrong blocks_of_new_are_backwards more_blocks_are_zero
        more_blocks_are_never_sent more_blocks_are_others more_blocks_are_sent_twice
        last_of_more_blocks_is_missing more_blocks_are_another_requests prompt_is_shifted
        first_prompt_token_is_wrong last_prompt_token_is_missing last_prompt_token_is_wrong
        sampling_is_another computed_of_new_is_one_more features_are_sent computed_is_one_more
        computed_is_one_less computed_is_another_requests outputs_are_99 outputs_are_one_less
        outputs_are_another_requests ids_are_backwards
        total_is_one_more a_block_is_zeroed a_block_is_copied one_draft_more_is_wanted
        an_encoder_input_is_scheduled whole_table_is_sent_again
        running_are_resumed tables_are_swapped
        known_tokens_are_sent_to_all last_cached_request_is_not_sent computed_is_one_row_short
        new_are_sent_twice last_new_request_is_not_sent ends_are_told_late ends_are_told_twice
        ends_are_not_told an_end_is_told_that_is_none
        a_preemption_is_told_that_is_none tables_are_sent_anew
        """,
    "shared-prefix": """
        computed_of_new_is_zero hit_blocks_are_missing common_prefix_is_one_more
        """,
    V2: """
        prefill_is_shifted last_prefill_token_is_missing last_prefill_token_is_wrong
        prefill_is_not_sent
        """,
    PIPELINE: """
        new_tokens_are_wrong new_tokens_are_not_sent
        new_tokens_are_one_place_on
        """,
    ASYNC: """

        outputs_are_without_placeholders
        """,
    DRAFTS: """
        drafts_are_shifted drafts_are_backwards drafts_are_not_sent
        """,
    LOADS: """
        synchronous_loads_are_denied loads_go_elsewhere loads_start_later loads_are_short
        loads_are_of_the_other_kind
        """,
}
SCOPES_HERE = SCOPES | {
    "v2-reset": replace(SCOPES["async-reset"], v2_model_runner=True),
    PIPELINE: replace(SCOPES["pipeline"], requests=to_the_end(SCOPES["pipeline"])),
    "two-drafted": replace(SCOPES["drafts"], requests=to_the_end(SCOPES["drafts"])),
}
CASES = [(name, change) for name, changes in CAUGHT_ON.items() for change in changes.split()]
RUNS = 100


@pytest.fixture(scope="module")
def changed() -> Iterator[Client]:
    if environment.find() is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    with Client(module="kvproof.vllm.changed_output") as driver:
        yield driver


@cache
def searched(name: str) -> Result:
    return explore(SchedulerSystem(SCOPES_HERE[name])).finished()


@pytest.mark.parametrize(("scope", "change"), CASES)
def test_lockstep_catches_what_is_sent_wrong(changed: Client, scope: str, change: str) -> None:
    changed.run([["change", change]])
    found = Comparison(SCOPES_HERE[scope], searched(scope), changed).differences()
    first = next(found)
    found.close()
    assert any(field.startswith("result, ") for field, _, _ in first.fields)


@pytest.mark.parametrize(("scope", "change"), CASES)
def test_observation_alone_catches_what_is_sent_wrong(
    changed: Client, scope: str, change: str
) -> None:
    changed.run([["change", change]])
    for seed in range(RUNS):
        world = ObservedWorld(SCOPES_HERE[scope], Tally(), RealClasses(changed))
        try:
            world.burst(60, seed, guided=False)
        except Violation as violation:
            # A load of other tokens is what its step means; the ghost device sees what comes of it.
            invariant = "" if scope == LOADS else "WorkerAgrees"
            assert str(violation).startswith(invariant)
            assert "by the model nothing" in str(violation)
            return
    raise AssertionError(f"{change} is not seen in {RUNS} runs")


def test_every_change_is_tried() -> None:
    assert len(CASES) == len(set(CASES)) >= 40


def test_garbage_is_caught_in_the_first_step_that_sends_a_block(changed: Client) -> None:
    changed.run([["change", "new_blocks_are_zero"]])
    report = lockstep(SCOPES["two-equal"], searched("two-equal"), changed)
    assert report.difference is not None
    first, *_ = report.difference.fields
    assert first == ("result, disagreements", [], [[0, "table", [0, 0], [1, 2]]])
    assert [action.do for action in report.difference.trace.actions] == ["add", "schedule"]


def test_without_a_change_the_driver_is_the_driver(changed: Client) -> None:
    changed.run([["change", None]])
    assert lockstep(SCOPES["two-equal"], searched("two-equal"), changed).agrees
