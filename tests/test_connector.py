"""Fences, failed loads and reservations against plain lists and sums."""

from __future__ import annotations

from random import Random

import pytest
from pool_twin import PoolTwin, pool_differs
from small_model import SmallModel, small_scope

from kvproof.model.state import Status

FENCED = small_scope(
    kv_role="kv_both",
    async_scheduling=True,
    num_blocks=8,
    num_speculative_tokens=2,
    spec_method="draft_model",
)


class Fences:
    """Steps are counted from the first; a free waits for the last step scheduled before it."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = PoolTwin(num_blocks, True, len)
        self.scheduled = 0
        self.processed = 0
        self.last = [0, 0, 0]
        self.deferred: list[tuple[int, list[int]]] = []

    def free(self, r: int, blocks: list[int]) -> None:
        if self.last[r] > self.processed:
            if blocks:
                self.deferred.append((self.scheduled, blocks))
        else:
            self.pool.release(reversed(blocks))

    def process(self) -> None:
        self.processed += 1
        while self.deferred and self.deferred[0][0] <= self.processed:
            self.pool.release(reversed(self.deferred.pop(0)[1]))


def first_difference(model: SmallModel, seed: int) -> str | None:
    """Random steps and frees of the model and the twin; the first that they differ after."""
    model.fresh()
    s, random, twin = model.s, Random(seed), Fences(model.c.num_blocks)
    tables: list[list[int]] = [[], [], []]
    for _ in range(40):
        name = random.choice(["schedule", "schedule", "process", "free"])
        r = random.randrange(3)
        if name == "schedule" and twin.scheduled - twin.processed < 2:
            twin.scheduled += 1
            s.seq_ahead += 1
            twin.last[r] = twin.scheduled
            s.last_seq[r] = s.seq_ahead
            while twin.pool.free and len(tables[r]) < 4 and random.random() < 0.6:
                block = model.call("block_pool.get_new_block")
                s.block_table[r, len(tables[r])] = block
                tables[r].append(twin.pool.take())
                s.num_blocks[r] = len(tables[r])
        elif name == "process" and twin.scheduled > twin.processed:
            twin.process()
            model.call("connector.step_processed")
        elif name == "free":
            twin.free(r, tables[r])
            tables[r] = []
            model.call("connector.free_request_blocks", r)
        ahead = [max(last - twin.processed, 0) for last in twin.last]
        deferred = [
            (s.deferred_fence[q], s.deferred_blocks.row(q)[: s.deferred_len[q]])
            for q in range(s.num_deferred)
        ]
        if (
            pool_differs(s, twin.pool, int)
            or deferred != [(fence - twin.processed, blocks) for fence, blocks in twin.deferred]
            or any(s.deferred_len[s.num_deferred :] + s.deferred_fence[s.num_deferred :])
            or s.last_seq != ahead
            or s.seq_ahead != twin.scheduled - twin.processed
            or s.num_blocks != [len(table) for table in tables]
        ):
            return name
    return None


def test_blocks_wait_behind_the_last_step_that_was_scheduled_before_their_free() -> None:
    model = SmallModel(FENCED)
    assert [found for seed in range(150) if (found := first_difference(model, seed))] == []


@pytest.mark.parametrize("rule", ["fence_in_flight_frees", "fence_at_last_scheduled_step"])
def test_the_twin_tells_fences_without_a_rule(rule: str) -> None:
    model = SmallModel(FENCED, off=(rule,))
    assert any(first_difference(model, seed) for seed in range(150))


def test_without_deferral_blocks_are_free_at_once() -> None:
    model = SmallModel(small_scope(kv_role="kv_both"))
    s = model.s
    s.seq_ahead = s.last_seq[0] = 1
    s.block_table[0, 0] = model.call("block_pool.get_new_block")
    s.num_blocks[0] = 1
    model.call("connector.free_request_blocks", 0)
    assert (s.num_deferred, s.num_free, s.num_blocks[0]) == (0, 5, 0)


@pytest.mark.parametrize("truncates", [True, False])
def test_a_failed_load_is_computed_up_to_its_first_block_that_nobody_else_recomputes(
    truncates: bool,
) -> None:
    model = SmallModel(FENCED, off=() if truncates else ("truncate_at_invalid_block",))
    size, affected = model.c.block_size, 0
    for seed in range(300):
        random = Random(seed)
        model.fresh()
        s, e = model.s, model.model.report()
        model.e = e
        table = random.sample(range(1, model.c.num_blocks), random.randint(1, 4))
        for i, block in enumerate(table):
            s.block_table[1, i] = block
        scheduled = random.randrange(3)
        computed = random.randint(0, len(table) * size)
        s.num_blocks[1], s.num_computed[1] = len(table), computed + scheduled
        invalid = {block for block in range(1, model.c.num_blocks) if random.random() < 0.3}
        marked = {block for block in invalid if random.random() < 0.3}
        for block in invalid:
            e.invalid[block] = 1
        for block in marked:
            e.marked[block] = 1

        hit = [i for i in range(len(table)) if i * size < computed and table[i] in invalid]
        own = [i for i in hit if table[i] not in marked]
        wanted = computed + scheduled
        if own and truncates:
            wanted = own[0] * size
        elif hit and not own:
            wanted = computed
        found = model.call("connector.update_requests_with_invalid_blocks", 1, scheduled)
        assert (bool(found), s.num_computed[1]) == (bool(hit), wanted)
        again = set(table[own[0] :]) if own else set()
        assert {b for b in range(model.c.num_blocks) if e.downstream[b]} == again
        assert {b for b in range(model.c.num_blocks) if e.marked[b]} == marked | {
            table[i] for i in own
        }
        affected += bool(own)
    assert affected


@pytest.mark.parametrize(
    "rule", [None, "reserve_for_inflight_prefills", "reserve_spec_step_for_loads"]
)
def test_what_prefills_and_loads_in_flight_still_need_is_a_sum(rule: str | None) -> None:
    model = SmallModel(FENCED, off=(rule,) if rule else ())
    for seed in range(100):
        random = Random(seed)
        s, size, wanted = model.s, model.c.block_size, 0
        for r in range(3):
            s.num_tokens[r] = random.randint(1, 10)
            s.num_blocks[r] = random.randint(0, 4)
            s.inflight_prefill[r] = random.randrange(2)
            if s.inflight_prefill[r] and rule != "reserve_for_inflight_prefills":
                tokens = min(s.num_tokens[r], 8)
                wanted += max(-(-tokens // size) - s.num_blocks[r], 0)
                if rule != "reserve_spec_step_for_loads":
                    # One token, two drafts and two slots for the drafter's own.
                    wanted += -(-(1 + 2 + 2) // size)
        assert model.call("connector.inflight_prefill_reserved_blocks") == wanted


def test_the_connector_has_what_lies_beyond_the_local_tokens_once_it_was_asked_often_enough() -> (
    None
):
    model = SmallModel(FENCED)
    s, c = model.s, model.c
    ask = "connector.get_num_new_matched_tokens"
    s.num_tokens[0] = 5
    assert model.call(ask, 0, 0) == 0
    c.external_tokens[0] = 6
    s.asks_left[0] = 2
    assert [model.call(ask, 0, 2) for _ in range(4)] == [-1, -1, 3, 3]
    assert model.call(ask, 0, 6) == 0
    s.load_used[0] = 1
    assert model.call(ask, 0, 2) == 0


def test_only_a_request_that_ended_by_itself_and_computed_something_is_sent() -> None:
    model = SmallModel(FENCED)
    s, c = model.s, model.c
    c.delay_free[2] = 1
    s.num_blocks[2] = s.num_computed[2] = 1
    s.block_table[2, 0] = 3
    sent = []
    for status in Status:
        s.status[2] = status
        if model.call("connector.request_finished", 2):
            sent.append(status)
    assert sent == [Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED]
    assert (s.sending[2], s.transfer_table.row(2)[0]) == (1, 3)
    s.num_computed[2], s.status[2] = 0, Status.FINISHED_STOPPED
    assert not model.call("connector.request_finished", 2)
