"""The block pool against a naive twin, operation by operation."""

from __future__ import annotations

from random import Random

import pytest
from pool_twin import Asserted, PoolTwin, pool_differs
from small_model import SmallModel, small_scope

from kvproof.model.state import Assertion, Branch

RULES = (
    "evict_hash_on_reuse",
    "take_hit_from_free_queue",
    "free_at_last_reference",
    "free_tail_first",
    "reuse_unpublished_first",
    "keep_published_longest",
    "reset_only_unused_pool",
    "clear_hashes_on_reset",
)


class Walk:
    """Random operations on the model's pool and on the twin's; tables are held by nobody else."""

    def __init__(self, model: SmallModel, seed: int) -> None:
        model.fresh()
        self.model = model
        self.random = Random(seed)
        lengths = list(model.c.prefix_len)
        self.twin = PoolTwin(model.c.num_blocks, bool(model.c.prefix_caching), lengths.__getitem__)
        self.codes = [code for code in range(1, len(lengths)) if 0 < lengths[code] <= 4]
        self.tables: list[list[int]] = [[], [], []]

    def first_difference(self, steps: int) -> str | None:
        """The first operation after which the two differ or answer differently."""
        names = ("take", "take", "hit", "hit", "release", "publish", "publish", "withdraw", "reset")
        for step in range(steps):
            name = self.random.choice(names)
            if self.operation(name):
                return f"{name} at {step}"
            if self.model.s.assertion:
                return None
            if pool_differs(self.model.s, self.twin, int):
                return f"{name} at {step}"
        return None

    def operation(self, name: str) -> bool:
        """Do one on both; whether they answer differently."""
        asserted = Assertion.NONE
        wanted = answer = None
        try:
            wanted, answer = getattr(self, name)()
        except Asserted as error:
            asserted = error.args[0]
        return wanted != answer or self.model.s.assertion != asserted

    def table(self) -> list[int]:
        return self.random.choice([table for table in self.tables if len(table) < 4])

    def take(self) -> tuple[int, int]:
        if not any(len(table) < 4 for table in self.tables):
            return 0, 0
        table = self.table()
        block = self.model.call("block_pool.get_new_block")
        wanted = self.twin.take()
        table.append(wanted)
        return wanted, block

    def hit(self) -> tuple[int, int]:
        code = self.random.choice(self.codes)
        block = self.model.call("block_pool.get_cached_block", code)
        wanted = self.twin.look_up(code)
        free = [table for table in self.tables if len(table) < 4 and wanted not in table]
        if wanted and free:
            self.model.call("block_pool.touch", wanted)
            self.twin.touch(wanted)
            self.random.choice(free).append(wanted)
        return wanted, block

    def release(self) -> tuple[None, None]:
        table = self.random.choice(self.tables)
        places = self.model.s.block_table
        for i, block in enumerate(table):
            places[1, i] = block
        self.model.call("block_pool.free_blocks", places, 1, len(table))
        self.twin.release(reversed(table))
        table.clear()
        return None, None

    def publish(self) -> tuple[None, None]:
        held = [block for table in self.tables for block in table]
        if held:
            block, code = self.random.choice(held), self.random.choice(self.codes)
            if self.twin.hash_of(block) and self.random.random() < 0.9:
                return None, None
            self.model.call("block_pool.cache_full_block", block, code)
            self.twin.publish(block, code)
        return None, None

    def withdraw(self) -> tuple[bool, bool]:
        block = self.random.randrange(1, self.twin.num_blocks)
        removed = self.model.call("block_pool.remove_cached_block_hash", block)
        return self.twin.withdraw(block), removed

    def reset(self) -> tuple[bool, bool]:
        return self.twin.reset(), self.model.call("block_pool.reset_prefix_cache")


def first_difference(model: SmallModel, walks: int) -> str | None:
    seeds = range(walks)
    return next(filter(None, (Walk(model, seed).first_difference(60) for seed in seeds)), None)


@pytest.mark.parametrize("caching", [True, False])
def test_the_pool_is_a_list_of_free_blocks_and_lists_of_published_ones(caching: bool) -> None:
    assert first_difference(SmallModel(small_scope(prefix_caching=caching)), 150) is None


@pytest.mark.parametrize("rule", RULES)
def test_the_twin_tells_a_pool_without_a_rule(rule: str) -> None:
    assert first_difference(SmallModel(small_scope(), off=(rule,)), 150) is not None


def test_the_walks_reach_every_branch_and_assertion_of_a_sound_pool() -> None:
    model = SmallModel(small_scope())
    taken, asserted = [0] * len(Branch), set()
    for seed in range(150):
        Walk(model, seed).first_difference(60)
        taken = [a + b for a, b in zip(taken, model.e.branches, strict=True)]
        asserted.add(model.s.assertion)
    assert asserted == {
        Assertion.NONE,
        Assertion.NO_FREE_BLOCKS,
        Assertion.BLOCK_PUBLISHED_TWICE,
    }
    reached = {branch for branch in Branch if taken[branch]}
    assert reached == {
        Branch.prefix_hit_free_block,
        Branch.duplicate_published,
        Branch.evicted_published,
        Branch.freed_shared,
        Branch.reset_done,
        Branch.reset_refused,
    }


def test_only_the_first_assertion_is_kept() -> None:
    model = SmallModel(small_scope())
    model.call("block_pool.fail", Assertion.NO_FREE_BLOCKS)
    model.call("block_pool.fail", Assertion.TOO_MANY_RUNNING)
    assert model.s.assertion == Assertion.NO_FREE_BLOCKS


def test_a_block_that_is_free_and_held_cannot_be_handed_out() -> None:
    model = SmallModel(small_scope())
    model.s.ref_cnt[1] = 1
    assert model.call("block_pool.get_new_block") == 1
    assert model.s.assertion == Assertion.FREE_BLOCK_IN_USE


def test_a_hit_that_nobody_holds_must_be_free() -> None:
    model = SmallModel(small_scope())
    model.call("block_pool.remove_from_free_queue", 2)
    assert model.s.free_queue == [1, 2, 4, 5, 0, 0]
    model.call("block_pool.touch", 3)
    assert model.s.assertion == Assertion.BLOCK_NOT_IN_FREE_QUEUE
    assert model.call("block_pool.find_free", 3) == -1
    assert model.call("block_pool.find_free", 4) == 2


def test_a_free_queue_longer_than_the_pool_is_cut() -> None:
    model = SmallModel(small_scope())
    model.call("block_pool.insert_free", 1, 5)
    assert (model.s.free_queue, model.s.num_free) == ([1, 5, 2, 3, 4, 5], 6)
    model.call("block_pool.insert_free", 0, 4)
    assert (model.s.free_queue, model.s.num_free) == ([1, 5, 2, 3, 4, 5], 6)


def test_a_block_freed_once_too_often_does_not_become_free_twice() -> None:
    model = SmallModel(small_scope())
    model.s.block_table[0, 0] = 3
    model.call("block_pool.free_blocks", model.s.block_table, 0, 2)
    assert model.s.ref_cnt[3] == -1
    assert model.s.free_queue == [1, 2, 3, 4, 5, 0]
