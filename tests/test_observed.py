from __future__ import annotations

import pytest

from kvproof.bridge.observed import ObservedWorld
from kvproof.scopes.draw import RandomChooser, draw_scope
from kvproof.walks.worlds import Tally, Violation, draw_code
from tests.model_twin import ModelTwin

# What no observation shows and no invariant that is checked here reads.
UNSEEN = {"old_drafts", "load_used", "asks_left"}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_observed_of_the_model_is_the_models_own_state(seed: int) -> None:
    choose = RandomChooser(seed)
    twin = ModelTwin()
    world = ObservedWorld(draw_scope(choose, "small"), Tally(), twin)
    for _ in range(80):
        code = draw_code(world.compiled, world.state, choose)
        if code is None or world.over:
            break
        world.take(code)
        if world.over:
            break
        for name in twin.compiled.state.places:
            if name not in UNSEEN:
                ours, theirs = getattr(world.state, name), getattr(twin.state, name)
                assert (ours == theirs) if isinstance(ours, int) else (ours == theirs).all(), name


@pytest.mark.parametrize(
    "rule",
    [
        "free_at_last_reference",
        "hash_whole_prefix",
        "take_hit_from_free_queue",
        "publish_committed_tokens_only",
        "hold_blocks_until_load_done",
        "trim_output_after_stop",
        "reserve_lookahead",
        "keep_published_longest",
        "clear_hashes_on_reset",
        "hold_blocks_until_sent",
        "respect_token_budget",
        "wait_for_remote_load",
        "replace_resumed_table",
        "send_table_growth",
        "send_adopted_blocks",
    ],
)
def test_what_goes_wrong_without_a_rule_is_seen_from_outside(rule: str) -> None:
    def until_it_falls() -> Violation:
        for seed in range(3000):
            choose = RandomChooser(seed)
            world = ObservedWorld(draw_scope(choose, "small"), Tally(), ModelTwin((rule,)))
            try:
                world.burst(60, choose.integer(0, 1 << 30), guided=False)
            except Violation as violation:
                return violation
        raise AssertionError(f"nothing falls without {rule}")

    violation = until_it_falls()
    assert "the model" in str(violation)
