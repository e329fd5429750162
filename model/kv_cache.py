"""The KV cache manager: prefix hits, slots, publication, release.

Stands for vllm/v1/core/kv_cache_manager.py and, for one full-attention group,
vllm/v1/core/single_type_kv_cache_manager.py.
"""

from __future__ import annotations

from kvproof.model import block_pool
from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.model.state import Assertion, Branch, Status
from kvproof.native.jit import kernel


@kernel
def cdiv(a, b):
    """Division that rounds up."""
    return (a + b - 1) // b


@kernel
def get_computed_blocks(s, c, e, r):
    """Find the longest published run of full blocks (KVCacheManager.get_computed_blocks).

    The blocks are left in e.hits; returns their number. The last token is never hit, since its
    logits are needed; a drafting head also needs the last hit block recomputed.
    """
    e.num_hits = 0
    if not c.prefix_caching:
        return 0
    longest = s.num_tokens[r]
    if c.rules[Rule.recompute_last_token]:
        longest -= 1
    for i in range(longest // c.block_size):
        b = block_pool.get_cached_block(s, c, c.prefix_hash[r, (i + 1) * c.block_size])
        if b == 0:
            break
        e.hits[i] = b
        e.num_hits = i + 1
    if e.num_hits > 0 and c.drop_last_hit and c.rules[Rule.drop_hit_before_drafting_head]:
        e.num_hits -= 1
    return e.num_hits


@kernel
def get_num_blocks_to_allocate(s, c, e, r, num_tokens, num_hits):
    """Free blocks a request takes to hold num_tokens (SingleTypeKVCacheManager, same name).

    A hit that sits in the free queue leaves it when pinned, so it counts as taken.
    """
    if s.num_published[r] > 0 and num_hits > 0:
        block_pool.fail(s, Assertion.HIT_FOR_RUNNING_REQUEST)
    needed = max(cdiv(num_tokens, c.block_size) - num_hits - s.num_blocks[r], 0)
    if c.rules[Rule.count_evictable_hits]:
        for i in range(num_hits):
            if s.ref_cnt[e.hits[i]] == 0:
                needed += 1
    return needed


@kernel
def _pin_hits(s, c, e, r, num_hits):
    for i in range(num_hits):
        block_pool.touch(s, c, e, e.hits[i])
        s.block_table[r, i] = e.hits[i]
    s.num_blocks[r] = num_hits
    s.num_published[r] = num_hits


@kernel
def _grow(s, c, e, r, num_blocks):
    while s.num_blocks[r] < num_blocks:
        b = block_pool.get_new_block(s, c, e)
        if s.num_blocks[r] < c.table_room:
            s.block_table[r, s.num_blocks[r]] = b
        s.num_blocks[r] += 1


@kernel
def allocate_slots(
    s,
    c,
    e,
    r,
    num_new_tokens,
    num_hits,
    num_lookahead,
    num_external,
    delay_publishing,
    full_sequence_must_fit,
    reserved_blocks,
    has_scheduled_reqs,
):
    """Give request r slots for new tokens, or refuse (KVCacheManager.allocate_slots).

    num_hits counts the blocks in e.hits that it adopts. Returns whether it has the slots; a
    refusal changes nothing.
    """
    num_local = s.num_computed[r] + num_hits * c.block_size
    if num_new_tokens == 0 and num_external == 0 and num_hits == 0:
        block_pool.fail(s, Assertion.NO_SLOTS_ASKED)
        return False
    total_computed = min(num_local + num_external, c.max_model_len)
    watermark = 0
    if has_scheduled_reqs and (s.status[r] == Status.WAITING or s.status[r] == Status.PREEMPTED):
        watermark = c.watermark_blocks

    if full_sequence_must_fit and c.rules[Rule.reserve_full_sequence]:
        whole = min(s.num_tokens[r], c.max_model_len)
        if c.mends[Mend.admit_with_lookahead]:
            whole = min(s.num_tokens[r] + num_lookahead, c.max_model_len)
        if get_num_blocks_to_allocate(s, c, e, r, whole, num_hits) + watermark > s.num_free:
            e.branches[Branch.waiting_full_sequence_refused] += 1
            return False

    need_slot = total_computed + num_new_tokens + num_lookahead
    if c.rules[Rule.cap_slots_at_model_length]:
        need_slot = min(need_slot, c.max_model_len)
    taken = get_num_blocks_to_allocate(s, c, e, r, need_slot, num_hits)
    # A request that holds blocks already (its load left nothing computed) adopts no others.
    adopts = (num_hits > 0 or num_external > 0) and s.num_blocks[r] == 0
    if not c.rules[Rule.check_capacity_before_pinning] and adopts:
        _pin_hits(s, c, e, r, num_hits)
    if taken + watermark > s.num_free - reserved_blocks:
        if taken <= s.num_free - reserved_blocks:
            e.branches[Branch.waiting_watermark_refused] += 1
        elif taken <= s.num_free:
            e.branches[Branch.waiting_reservation_refused] += 1
        return False

    whole_blocks = cdiv(need_slot, c.block_size)
    if adopts and c.rules[Rule.check_capacity_before_pinning]:
        if c.rules[Rule.pin_hits_before_allocating]:
            _pin_hits(s, c, e, r, num_hits)
        else:
            s.num_blocks[r] = num_hits
            _grow(s, c, e, r, whole_blocks)
            for i in range(num_hits):
                block_pool.touch(s, c, e, e.hits[i])
                s.block_table[r, i] = e.hits[i]
            s.num_published[r] = num_hits
    if num_external > 0:
        _grow(s, c, e, r, cdiv(num_local + num_external, c.block_size))
    e.first_new[r] = s.num_blocks[r]
    _grow(s, c, e, r, whole_blocks)
    if delay_publishing and c.rules[Rule.publish_loads_when_done]:
        return True
    known = total_computed + num_new_tokens
    if c.rules[Rule.publish_committed_tokens_only]:
        known = min(known, s.num_tokens[r])
    if c.rules[Rule.publish_full_blocks]:
        cache_blocks(s, c, e, r, known)
    return True


@kernel
def cache_blocks(s, c, e, r, num_tokens):
    """Publish the full blocks of the first num_tokens tokens (KVCacheManager.cache_blocks)."""
    if not c.prefix_caching:
        return
    full = num_tokens // c.block_size
    if s.num_published[r] >= full:
        return
    if full * c.block_size > s.num_tokens[r] and c.rules[Rule.publish_committed_tokens_only]:
        block_pool.fail(s, Assertion.HASH_OF_UNKNOWN_TOKENS)
        return
    for i in range(s.num_published[r], min(full, s.num_blocks[r])):
        b = s.block_table[r, i]
        if b != 0:
            block_pool.cache_full_block(s, c, e, b, c.prefix_hash[r, (i + 1) * c.block_size])
    s.num_published[r] = full


@kernel
def forget_table(s, c, r):
    """Drop the request's bookkeeping (SingleTypeKVCacheManager.pop_blocks_for_free)."""
    for i in range(c.table_len):
        s.block_table[r, i] = 0
    s.num_blocks[r] = 0
    s.num_published[r] = 0


@kernel
def free(s, c, e, r):
    """Release the request's blocks to the pool (KVCacheManager.free)."""
    block_pool.free_blocks(s, c, e, s.block_table, r, min(s.num_blocks[r], c.table_len))
    forget_table(s, c, r)
