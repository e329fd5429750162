"""KV connector: external prefixes, asynchronous loads, fences and deferred frees.

Stands for the connector's part of vllm/v1/core/sched/scheduler.py, with a scripted connector:
for each request it has a prefix of a given length and loads it with or without the engine waiting.
"""

from __future__ import annotations

from kvproof.model import block_pool, kv_cache, queues
from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.model.state import Assertion, Branch, Load, Status
from kvproof.native.jit import kernel


@kernel
def is_finished(status):
    """Whether a status is a finished one (RequestStatus.is_finished)."""
    return status > Status.PREEMPTED


@kernel
def holds_kv_blocks(s, r):
    """Whether a waiting request holds blocks (Scheduler._holds_kv_blocks)."""
    return s.num_computed[r] > 0 or s.status[r] == Status.WAITING_FOR_REMOTE_KVS


@kernel
def get_num_new_matched_tokens(s, c, r, num_local_tokens):
    """Tokens that the connector has beyond the local ones; -1 is 'ask again later'."""
    if c.external_tokens[r] == 0 or s.load_used[r]:
        return 0
    if s.asks_left[r] > 0:
        s.asks_left[r] -= 1
        return -1
    return max(min(c.external_tokens[r], s.num_tokens[r]) - num_local_tokens, 0)


@kernel
def update_state_after_alloc(s, c, e, r, num_local_tokens, num_external_tokens, is_async):
    """Start the load of a request that was given blocks for it."""
    if c.external_tokens[r] and c.external_once[r]:
        s.load_used[r] = 1
    if num_external_tokens == 0:
        return
    if is_async:
        e.branches[Branch.load_started] += 1
        e.new_load[r] = 1
        s.load[r] = Load.PENDING
        s.load_start[r] = num_local_tokens
        s.load_tokens[r] = num_external_tokens
        s.load_wait[r] = s.num_steps
        for i in range(c.table_len):
            s.transfer_table[r, i] = s.block_table[r, i]
    else:
        e.branches[Branch.sync_load] += 1
        e.sync_load_start[r] = num_local_tokens
        e.sync_load[r] = num_external_tokens


@kernel
def forget_transfer(s, c, r):
    """Clear what is known of the request's load or sending once it was reported."""
    s.load[r] = Load.NONE
    s.load_start[r] = 0
    s.load_tokens[r] = 0
    s.load_wait[r] = 0
    s.sending[r] = 0
    s.sending_wait[r] = 0
    for i in range(c.table_len):
        s.transfer_table[r, i] = 0


@kernel
def is_load_reported(s, r):
    """Whether the oldest step reports the request's load: it is over, and no later step began it.

    A worker starts a load with the step that carries it and answers its steps in their order.
    """
    return s.load[r] >= Load.LANDED and s.load_wait[r] == 0


@kernel
def step_returned(s, c):
    """The oldest step was taken in: the others come closer to what they may report."""
    for r in range(c.num_requests):
        if s.load_wait[r] > 0:
            s.load_wait[r] -= 1
        if s.sending_wait[r] > 0:
            s.sending_wait[r] -= 1


@kernel
def request_blocks_can_be_freed(s, c, r):
    """Whether no in-flight step may still write the blocks (Scheduler, same name)."""
    return not c.defer_block_free or s.last_seq[r] <= 0


@kernel
def free_request_blocks(s, c, e, r):
    """Return the request's blocks, behind a fence where needed (Scheduler, same name)."""
    if request_blocks_can_be_freed(s, c, r) or not c.rules[Rule.fence_in_flight_frees]:
        kv_cache.free(s, c, e, r)
        return
    length = s.num_blocks[r]
    if length > 0:
        q = s.num_deferred
        if c.rules[Rule.fence_at_last_scheduled_step]:
            s.deferred_fence[q] = s.seq_ahead
        else:
            s.deferred_fence[q] = s.last_seq[r] - 1
        s.deferred_len[q] = length
        for i in range(length):
            s.deferred_blocks[q, i] = s.block_table[r, i]
        s.num_deferred = q + 1
        e.branches[Branch.free_deferred] += 1
    kv_cache.forget_table(s, c, r)


@kernel
def drain_deferred_frees(s, c, e):
    """Return deferred blocks whose fence has passed (Scheduler._drain_deferred_frees)."""
    while s.num_deferred > 0 and s.deferred_fence[0] <= 0:
        block_pool.free_blocks(s, c, e, s.deferred_blocks, 0, s.deferred_len[0])
        e.branches[Branch.free_drained] += 1
        last = s.num_deferred - 1
        for q in range(last):
            s.deferred_fence[q] = s.deferred_fence[q + 1]
            s.deferred_len[q] = s.deferred_len[q + 1]
            for i in range(c.table_len):
                s.deferred_blocks[q, i] = s.deferred_blocks[q + 1, i]
        s.deferred_fence[last] = 0
        s.deferred_len[last] = 0
        for i in range(c.table_len):
            s.deferred_blocks[last, i] = 0
        s.num_deferred = last


@kernel
def step_processed(s, c, e):
    """One more non-empty step was processed: move the fences and drain."""
    s.seq_ahead -= 1
    for r in range(c.num_requests):
        if s.last_seq[r] > 0:
            s.last_seq[r] -= 1
    for q in range(s.num_deferred):
        s.deferred_fence[q] -= 1
    drain_deferred_frees(s, c, e)


@kernel
def spec_decode_step_blocks(c):
    """Blocks that one speculative decode step needs (Scheduler._spec_decode_step_blocks)."""
    if c.num_speculative_tokens == 0 or not c.rules[Rule.reserve_spec_step_for_loads]:
        return 0
    return kv_cache.cdiv(1 + c.num_speculative_tokens + c.num_lookahead_tokens, c.block_size)


@kernel
def _tokens_with_spec_step(s, c, r):
    """Tokens of a request with those of one speculative decode step, up to the model length."""
    step = 0
    if c.num_speculative_tokens > 0 and c.rules[Rule.reserve_spec_step_for_loads]:
        step = 1 + c.num_speculative_tokens + c.num_lookahead_tokens
    return min(s.num_tokens[r] + step, c.max_model_len)


@kernel
def own_spec_step_blocks(s, c, r):
    """Blocks of one speculative decode step that the load of a request leaves free for itself."""
    if not c.mends[Mend.reserve_spec_step_exactly]:
        return spec_decode_step_blocks(c)
    whole = kv_cache.cdiv(min(s.num_tokens[r], c.max_model_len), c.block_size)
    return kv_cache.cdiv(_tokens_with_spec_step(s, c, r), c.block_size) - whole


@kernel
def inflight_prefill_reserved_blocks(s, c, e):
    """Blocks that prefills and loads in flight still need (Scheduler, same name)."""
    total = 0
    if c.rules[Rule.reserve_for_inflight_prefills]:
        for r in range(c.num_requests):
            if s.inflight_prefill[r]:
                if c.mends[Mend.reserve_spec_step_exactly]:
                    whole = _tokens_with_spec_step(s, c, r)
                    total += kv_cache.get_num_blocks_to_allocate(s, c, e, r, whole, 0)
                    continue
                whole = min(s.num_tokens[r], c.max_model_len)
                total += kv_cache.get_num_blocks_to_allocate(s, c, e, r, whole, 0)
                total += spec_decode_step_blocks(c)
    return total


@kernel
def update_waiting_for_remote_kv(s, c, e, r):
    """Take in a finished load (Scheduler._update_waiting_for_remote_kv)."""
    if s.load_failed[r]:
        if s.num_computed[r] > 0:
            kv_cache.cache_blocks(s, c, e, r, s.num_computed[r])
            e.branches[Branch.load_failed_keeps_prefix] += 1
        else:
            kv_cache.free(s, c, e, r)
            if c.mends[Mend.forget_prefill_of_failed_load]:
                s.inflight_prefill[r] = 0
            e.branches[Branch.load_failed_frees] += 1
        s.load_failed[r] = 0
    else:
        if not c.rules[Rule.count_loaded_tokens_exactly]:
            s.num_computed[r] = min(s.num_blocks[r] * c.block_size, s.num_tokens[r])
        kv_cache.cache_blocks(s, c, e, r, s.num_computed[r])
        e.branches[Branch.load_finished] += 1
    if s.num_computed[r] == s.num_tokens[r] and c.rules[Rule.recompute_last_loaded_token]:
        s.num_computed[r] = s.num_tokens[r] - 1
    s.load_done[r] = 0


@kernel
def handle_blocked_waiting_request(s, c, e, r):
    """Whether a waiting request may be scheduled now (Scheduler, same name)."""
    if s.status[r] != Status.WAITING_FOR_REMOTE_KVS:
        return True
    if not s.load_done[r] and c.rules[Rule.wait_for_remote_load]:
        return False
    update_waiting_for_remote_kv(s, c, e, r)
    s.status[r] = Status.PREEMPTED if s.was_preempted[r] else Status.WAITING
    return True


@kernel
def request_finished(s, c, r):
    """Whether the connector keeps the finished request's blocks until they are sent.

    Workers hear of the end with the next step, behind those in flight.
    """
    if not c.connector or not c.delay_free[r]:
        return False
    if s.status[r] != Status.FINISHED_STOPPED and s.status[r] != Status.FINISHED_LENGTH_CAPPED:
        return False
    if s.num_blocks[r] == 0 or s.num_computed[r] == 0:
        return False
    s.sending[r] = 1
    s.sending_wait[r] = s.num_steps
    for i in range(c.table_len):
        s.transfer_table[r, i] = s.block_table[r, i]
    return True


@kernel
def update_requests_with_invalid_blocks(s, c, e, r, num_scheduled):
    """Truncate a request at its first invalid block (Scheduler, same name).

    A block that a request before it has marked is recomputed by that one and counts as computed.
    Returns whether the request is affected; what it recomputes is set in e.downstream.
    """
    computed = s.num_computed[r] - num_scheduled
    affected = False
    truncated = False
    for i in range(min(kv_cache.cdiv(computed, c.block_size), s.num_blocks[r])):
        b = s.block_table[r, i]
        if not e.invalid[b]:
            continue
        affected = True
        if e.marked[b]:
            continue
        e.marked[b] = 1
        if truncated:
            continue
        truncated = True
        if c.rules[Rule.truncate_at_invalid_block]:
            s.num_computed[r] = i * c.block_size
        for k in range(i, min(s.num_blocks[r], c.table_len)):
            e.downstream[s.block_table[r, k]] = 1
    if affected and not truncated:
        s.num_computed[r] = computed
    return affected


@kernel
def _forget_marks(c, e):
    for b in range(c.num_blocks):
        e.marked[b] = 0
        e.downstream[b] = 0


@kernel
def awaits_sync_load(s, c, r):
    """Whether a step in flight carries a synchronous load of the request."""
    for d in range(s.num_steps):
        if s.step_load_tokens[d, r] > 0 and not s.step_stale[d, r]:
            return True
    return False


@kernel
def _drop_in_flight(s, r):
    """Mark what is in flight of a request as stale and to be dropped, as its preemption would."""
    s.drop_stale[r] = 1
    s.stale[r] = s.in_flight[r]
    s.placeholders[r] = 0
    s.num_drafts[r] = 0
    s.old_drafts[r] = 0
    for d in range(s.num_steps):
        if s.step_tokens[d, r] > 0:
            s.step_stale[d, r] += 1


@kernel
def handle_invalid_blocks(s, c, e, d):
    """React to the blocks in e.invalid (Scheduler._handle_invalid_blocks).

    Sets e.failed for each request whose output of step d is to be skipped.
    """
    _forget_marks(c, e)
    for i in range(s.num_kv_holding):
        r = s.kv_holding[i] - 1
        if s.status[r] != Status.WAITING_FOR_REMOTE_KVS:
            continue
        if update_requests_with_invalid_blocks(s, c, e, r, s.step_tokens[d, r]):
            if c.recompute_load_failures:
                s.load_failed[r] = 1
            else:
                e.failed[r] = 1
    _forget_marks(c, e)
    for i in range(s.num_running):
        r = s.running[i] - 1
        if update_requests_with_invalid_blocks(s, c, e, r, s.step_tokens[d, r]):
            e.failed[r] = 1
            e.branches[Branch.sync_load_failed] += 1
            if c.mends[Mend.drop_output_of_failed_load] and c.recompute_load_failures:
                _drop_in_flight(s, r)
    if not c.recompute_load_failures:
        for b in range(1, c.num_blocks):
            if e.downstream[b]:
                block_pool.remove_cached_block_hash(s, c, b)


@kernel
def update_from_kv_xfer_finished(s, c, e):
    """Take in the transfers that the worker reports (Scheduler, same name)."""
    for r in range(c.num_requests):
        if not is_load_reported(s, r):
            continue
        if s.status[r] == Status.ABSENT or s.status[r] == Status.GONE:
            block_pool.fail(s, Assertion.LOAD_OF_UNKNOWN_REQUEST)
        elif s.status[r] == Status.WAITING_FOR_REMOTE_KVS:
            s.load_done[r] = 1
        elif is_finished(s.status[r]):
            free_finished_blocks(s, c, e, r)
        else:
            block_pool.fail(s, Assertion.LOAD_OF_RUNNING_REQUEST)
        forget_transfer(s, c, r)
    for r in range(c.num_requests):
        if s.sending[r] == 2:
            if s.status[r] == Status.ABSENT or s.status[r] == Status.GONE:
                block_pool.fail(s, Assertion.SENT_OF_UNKNOWN_REQUEST)
            else:
                free_finished_blocks(s, c, e, r)
            forget_transfer(s, c, r)


@kernel
def free_finished_blocks(s, c, e, r):
    """Release a finished request for good (Scheduler._free_blocks)."""
    free_request_blocks(s, c, e, r)
    forget_request(s, c, r)


@kernel
def forget_request(s, c, r):
    """Clear what the state keeps of a request that is gone; transfers and notes stay."""
    s.status[r] = Status.GONE
    s.num_tokens[r] = 0
    s.num_computed[r] = 0
    s.placeholders[r] = 0
    s.in_flight[r] = 0
    s.stale[r] = 0
    s.drop_stale[r] = 0
    s.num_drafts[r] = 0
    s.old_drafts[r] = 0
    s.prefill_chunk[r] = 0
    s.was_preempted[r] = 0
    s.last_seq[r] = 0
    s.decode_wait[r] = 0
    s.inflight_prefill[r] = 0
    s.drafting[r] = 0
    s.load_done[r] = 0
    s.load_failed[r] = 0
    s.load_used[r] = 0
    s.asks_left[r] = 0


@kernel
def remove_from_queues(s, r):
    """Take a request out of the waiting queues."""
    s.num_waiting = queues.remove_request(s.waiting, s.num_waiting, r)
    s.num_kv_holding = queues.remove_request(s.kv_holding, s.num_kv_holding, r)
