"""The block pool: reference counts, free queue, published hashes (vllm/v1/core/block_pool.py)."""

from __future__ import annotations

from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.model.state import Assertion, Branch
from kvproof.native.jit import kernel


@kernel
def fail(s, assertion):
    """Note that vLLM asserts or raises here; the first one is kept."""
    if s.assertion == 0:
        s.assertion = assertion


@kernel
def get_cached_block(s, c, code):
    """First published block of a hash, or 0 (BlockPool.get_cached_block)."""
    for b in range(1, c.num_blocks):
        if s.block_hash[b] == code and s.hash_rank[b] == 1:
            return b
    return 0


@kernel
def remove_cached_block_hash(s, c, b):
    """Withdraw what block b is published under (BlockPool._remove_cached_block_hashes)."""
    code = s.block_hash[b]
    if code == 0:
        return False
    rank = s.hash_rank[b]
    s.block_hash[b] = 0
    s.hash_rank[b] = 0
    for other in range(1, c.num_blocks):
        if s.block_hash[other] == code and s.hash_rank[other] > rank:
            s.hash_rank[other] -= 1
    return True


@kernel
def insert_block_hash(s, c, e, b, code):
    """Publish block b, behind other blocks of the same hash (BlockPool._insert_block_hash)."""
    rank = 1
    for other in range(1, c.num_blocks):
        if s.block_hash[other] == code:
            rank += 1
    if rank > 1:
        e.branches[Branch.duplicate_published] += 1
    s.block_hash[b] = code
    s.hash_rank[b] = rank


@kernel
def cache_full_block(s, c, e, b, code):
    """Publish one full block (BlockPool.cache_full_blocks)."""
    if s.block_hash[b] != 0:
        if c.prefix_len[s.block_hash[b]] >= c.prefix_len[code]:
            fail(s, Assertion.BLOCK_PUBLISHED_TWICE)
        remove_cached_block_hash(s, c, b)
    insert_block_hash(s, c, e, b, code)


@kernel
def get_new_block(s, c, e):
    """Take the next free block (BlockPool.get_new_blocks, for one block)."""
    if s.num_free == 0:
        fail(s, Assertion.NO_FREE_BLOCKS)
        return 0
    b = s.free_queue[0]
    remove_from_free_queue(s, 0)
    if s.block_hash[b] != 0:
        e.branches[Branch.evicted_published] += 1
        if c.rules[Rule.evict_hash_on_reuse]:
            remove_cached_block_hash(s, c, b)
    if s.ref_cnt[b] != 0:
        fail(s, Assertion.FREE_BLOCK_IN_USE)
    s.ref_cnt[b] += 1
    return b


@kernel
def remove_from_free_queue(s, place):
    """Unlink the block at a place (FreeKVCacheBlockQueue.remove, popleft)."""
    for i in range(place, s.num_free - 1):
        s.free_queue[i] = s.free_queue[i + 1]
    s.num_free -= 1
    s.free_queue[s.num_free] = 0


@kernel
def touch(s, c, e, b):
    """Pin a hit block (BlockPool.touch)."""
    if s.ref_cnt[b] == 0:
        e.branches[Branch.prefix_hit_free_block] += 1
        if c.rules[Rule.take_hit_from_free_queue]:
            place = find_free(s, b)
            if place < 0:
                fail(s, Assertion.BLOCK_NOT_IN_FREE_QUEUE)
            else:
                remove_from_free_queue(s, place)
    s.ref_cnt[b] += 1


@kernel
def find_free(s, b):
    """Place of block b in the free queue, or -1."""
    for i in range(s.num_free):
        if s.free_queue[i] == b:
            return i
    return -1


@kernel
def insert_free(s, c, place, b):
    """Link block b into the free queue; one longer than the pool (a violation) is cut."""
    if s.num_free == c.num_blocks:
        return
    for i in range(s.num_free, place, -1):
        s.free_queue[i] = s.free_queue[i - 1]
    s.free_queue[place] = b
    s.num_free += 1


@kernel
def free_blocks(s, c, e, table, row, length):
    """Release the blocks of row `row` of `table`, tail first (BlockPool.free_blocks).

    Unpublished blocks go to the front of the free queue, published ones to its end.
    """
    front = 0
    for k in range(length):
        i = length - 1 - k if c.rules[Rule.free_tail_first] else k
        b = table[row, i]
        if b == 0:
            continue
        s.ref_cnt[b] -= 1
        if s.ref_cnt[b] > 0:
            e.branches[Branch.freed_shared] += 1
            if c.rules[Rule.free_at_last_reference]:
                continue
        if s.ref_cnt[b] < 0:
            continue
        published = s.block_hash[b] != 0 and c.prefix_caching != 0
        to_front = c.rules[Rule.reuse_unpublished_first]
        if published:
            to_front = not c.rules[Rule.keep_published_longest]
        if to_front:
            insert_free(s, c, front, b)
            front += 1
        else:
            insert_free(s, c, s.num_free, b)


@kernel
def reset_prefix_cache(s, c, e):
    """Forget every published hash if no block is in use (BlockPool.reset_prefix_cache)."""
    unused = c.num_blocks - s.num_free == 1
    if c.mends[Mend.reset_beside_fence] and s.num_running == 0 and s.num_kv_holding == 0:
        unused = True
    if not unused and c.rules[Rule.reset_only_unused_pool]:
        e.branches[Branch.reset_refused] += 1
        return False
    if c.rules[Rule.clear_hashes_on_reset]:
        for b in range(c.num_blocks):
            s.block_hash[b] = 0
            s.hash_rank[b] = 0
    e.branches[Branch.reset_done] += 1
    return True
