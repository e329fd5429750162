"""The scheduler: schedule, preempt, take in outputs, finish, reset.

Stands for vllm/v1/core/sched/scheduler.py, for text requests with one full-attention group.
"""

from __future__ import annotations

from kvproof.model import async_scheduler, block_pool, connector, kv_cache, queues, worker
from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.model.state import Assertion, Branch, Load, Pause, Status
from kvproof.native.jit import kernel

_STOPPED = int(Status.FINISHED_STOPPED)
_LENGTH_CAPPED = int(Status.FINISHED_LENGTH_CAPPED)


@kernel
def num_unfinished_requests(s):
    """Requests that a step could serve (Scheduler.get_num_unfinished_requests)."""
    if s.pause == Pause.PAUSED_ALL:
        return 0
    if s.pause == Pause.PAUSED_NEW:
        return s.num_running
    return s.num_waiting + s.num_kv_holding + s.num_running


@kernel
def has_requests(s, c):
    """Whether the engine has a reason to take a step (Scheduler.has_requests)."""
    if num_unfinished_requests(s) > 0:
        return True
    known = 0
    for r in range(c.num_requests):
        if s.finished_note[r]:
            return True
        if s.status[r] != Status.ABSENT and s.status[r] != Status.GONE:
            known += 1
    if not c.connector or not c.rules[Rule.stay_awake_for_delayed_frees]:
        return False
    return known > s.num_running + s.num_waiting + s.num_kv_holding


@kernel
def add_request(s, c, r):
    """A request arrives (Scheduler.add_request)."""
    s.status[r] = Status.WAITING
    s.num_tokens[r] = c.prompt_len[r]
    s.asks_left[r] = c.external_ask_later[r]
    s.num_waiting = queues.add_request(c, s.waiting, s.num_waiting, r)


@kernel
def _victim(s, c):
    """Place in the running list of the request to preempt."""
    last = s.num_running - 1
    if not c.rules[Rule.preempt_policy_last]:
        return 0
    if c.priority_policy:
        # Python's max keeps the first of equal keys.
        last = 0
        for i in range(1, s.num_running):
            a = s.running[i] - 1
            b = s.running[last] - 1
            if c.priority[a] > c.priority[b] or (
                c.priority[a] == c.priority[b] and c.arrival[a] > c.arrival[b]
            ):
                last = i
    return last


@kernel
def _is_policy_last(s, c, victim, place):
    """Whether the policy ranks nobody that runs behind the victim (which stood at `place`)."""
    if not c.priority_policy:
        return place == s.num_running
    for i in range(s.num_running):
        other = s.running[i] - 1
        if c.priority[other] > c.priority[victim] or (
            c.priority[other] == c.priority[victim] and c.arrival[other] > c.arrival[victim]
        ):
            return False
    return True


@kernel
def preempt_request(s, c, e, r, drop_stale_output):
    """Take a running request back to waiting, without its blocks (Scheduler._preempt_request)."""
    if s.status[r] != Status.RUNNING:
        block_pool.fail(s, Assertion.PREEMPTED_NOT_RUNNING)
    connector.free_request_blocks(s, c, e, r)
    s.inflight_prefill[r] = 0
    s.status[r] = Status.PREEMPTED
    if c.rules[Rule.forget_victim_progress]:
        s.num_computed[r] = 0
    if c.rules[Rule.forget_victim_drafts]:
        s.num_drafts[r] = 0
    elif s.num_drafts[r] > 0:
        s.old_drafts[r] = 1
    keep_dropping = s.drop_stale[r] != 0 and s.stale[r] > 0
    s.drop_stale[r] = 1 if drop_stale_output or keep_dropping else 0
    s.stale[r] = s.in_flight[r]
    if c.rules[Rule.forget_victim_placeholders]:
        s.placeholders[r] = 0
    s.was_preempted[r] = 1
    if c.rules[Rule.requeue_victim_first]:
        s.num_waiting = queues.prepend_request(c, s.waiting, s.num_waiting, r)
    else:
        s.num_waiting = queues.append(s.waiting, s.num_waiting, r)
    s.preempted_note[r] = 1
    for d in range(s.num_steps):
        if s.step_tokens[d, r] > 0:
            s.step_stale[d, r] += 1


@kernel
def _withdraw_unwritten(s, c, r):
    """Withdraw the hashes of the blocks that only the step under way would fill."""
    for i in range(s.num_computed[r] // c.block_size, min(s.num_blocks[r], c.table_len)):
        block_pool.remove_cached_block_hash(s, c, s.block_table[r, i])


@kernel
def _unschedule(s, c, e, r):
    """Take a victim out of this step again; returns the tokens it gives back."""
    tokens = e.scheduled[r]
    e.scheduled[r] = 0
    e.start[r] = 0
    e.drafts[r] = 0
    e.num_scheduled = queues.remove_request(e.order, e.num_scheduled, r)
    return tokens


@kernel
def _schedule_running(s, c, e, long_prefill_threshold):
    """Serve the running requests; returns whether a prefill chunk is among them."""
    prefill_scheduled = False
    place = 0
    while place < s.num_running and (e.token_budget > 0 or not c.rules[Rule.respect_token_budget]):
        r = s.running[place] - 1
        e.visited[r] = 1
        if e.input_budget <= c.draft_slots and c.rules[Rule.respect_input_budget]:
            break
        if s.placeholders[r] > 0 and c.rules[Rule.stop_scheduling_at_max_tokens]:
            certain = s.num_computed[r] + 1
            if c.rules[Rule.count_only_certain_tokens]:
                certain -= s.placeholders[r] - 1
            if certain >= c.prompt_len[r] + c.max_tokens[r]:
                e.branches[Branch.running_certain_to_finish] += 1
                e.held_back[r] = 1
                place += 1
                continue
        if s.decode_wait[r] > 0:
            e.branches[Branch.running_decode_cadence] += 1
            place += 1
            continue

        wanted = s.num_tokens[r] + s.num_drafts[r] + s.placeholders[r] - s.num_computed[r]
        tokens = wanted
        if 0 < long_prefill_threshold < tokens:
            tokens = long_prefill_threshold
            e.branches[Branch.running_long_prefill_cut] += 1
        if tokens > e.token_budget and c.rules[Rule.respect_token_budget]:
            tokens = e.token_budget
            e.branches[Branch.running_budget_cut] += 1
        if tokens > e.input_budget - c.draft_slots and c.rules[Rule.respect_input_budget]:
            tokens = e.input_budget - c.draft_slots
            e.branches[Branch.running_budget_cut] += 1
        if c.rules[Rule.cap_positions_at_model_length]:
            room = c.max_model_len - s.num_computed[r] - 1
            if tokens > room:
                tokens = room
                e.branches[Branch.running_length_cut] += 1
        if tokens == 0:
            e.branches[Branch.running_no_tokens] += 1
            place += 1
            continue

        fits = False
        while True:
            lookahead = c.num_lookahead_tokens if c.rules[Rule.reserve_lookahead] else 0
            unsure = c.mends[Mend.publish_sync_loads_when_done] and connector.awaits_sync_load(
                s, c, r
            )
            fits = kv_cache.allocate_slots(
                s, c, e, r, tokens, 0, lookahead, 0, unsure, False, 0, True
            )
            if fits or s.num_running == 0 or s.assertion:
                break
            where = _victim(s, c)
            victim = s.running[where] - 1
            can_free = connector.request_blocks_can_be_freed(s, c, victim)
            if not can_free and c.rules[Rule.victim_must_be_freeable]:
                e.branches[Branch.victim_not_freeable] += 1
                break
            if c.mends[Mend.await_output_before_self_preemption] and victim == r:
                if c.requires_kv_delivery and s.in_flight[r] > 0:
                    break
            free_before = s.num_free
            shared = _frees_nothing(s, c, victim)
            s.num_running = queues.delete(s.running, s.num_running, where)
            if c.priority_policy:
                if where < place and c.rules[Rule.step_back_cursor_after_victim]:
                    place -= 1
                    e.branches[Branch.preempted_before_cursor] += 1
                if e.scheduled[victim] > 0 and c.rules[Rule.drop_victim_from_step]:
                    if c.mends[Mend.withdraw_hashes_of_scheduled_victim]:
                        _withdraw_unwritten(s, c, victim)
                    given_back = _unschedule(s, c, e, victim)
                    e.branches[Branch.preempted_scheduled] += 1
                    if c.rules[Rule.refund_victim_budget]:
                        e.token_budget += given_back
                        e.input_budget += given_back + c.draft_slots
            preempt_request(
                s,
                c,
                e,
                victim,
                c.requires_kv_delivery != 0 and c.rules[Rule.drop_stale_output_of_producers] != 0,
            )
            if not _is_policy_last(s, c, victim, where):
                e.victim_misranked = 1
            if not can_free or (s.num_free <= free_before and not shared):
                e.victim_in_vain = 1
            if e.num_victims < c.num_requests:
                e.victims[e.num_victims] = victim + 1
                e.num_victims += 1
            if victim == r:
                e.branches[Branch.preempted_self] += 1
                break
            e.branches[Branch.preempted_other] += 1
        if not fits:
            break

        e.branches[Branch.running_scheduled] += 1
        if s.prefill_chunk[r]:
            prefill_scheduled = True
        _put_in_step(s, c, e, r, tokens, 0)
        place += 1
        if s.num_drafts[r] > 0:
            drafts = tokens + s.num_computed[r] - s.num_tokens[r] - s.placeholders[r]
            if drafts > 0:
                e.drafts[r] = min(drafts, s.num_drafts[r])
                if s.old_drafts[r]:
                    e.old_drafts = r + 1
                e.branches[Branch.running_drafts_scheduled] += 1
            s.num_drafts[r] = 0
            s.old_drafts[r] = 0
    for i in range(min(place, s.num_running)):
        if not e.visited[s.running[i] - 1]:
            e.passed_over = s.running[i]
    return prefill_scheduled


@kernel
def _frees_nothing(s, c, r):
    """Whether every block of a request is shared, so that its preemption can free none."""
    for i in range(min(s.num_blocks[r], c.table_len)):
        if s.ref_cnt[s.block_table[r, i]] <= 1:
            return False
    return True


@kernel
def _put_in_step(s, c, e, r, tokens, admitted):
    e.scheduled[r] = tokens
    e.start[r] = s.num_computed[r]
    e.admitted[r] = admitted
    if queues.find(e.order, e.num_scheduled, r) < 0:
        e.num_scheduled = queues.append(e.order, e.num_scheduled, r)
    e.token_budget -= tokens
    e.input_budget -= tokens + c.draft_slots


@kernel
def _skip(s, c, e, r):
    """Set a waiting request aside for the rest of this scan (skip_request in schedule)."""
    connector.remove_from_queues(s, r)
    if connector.holds_kv_blocks(s, r):
        e.num_skipped_holding = queues.append(e.skipped_holding, e.num_skipped_holding, r)
    else:
        e.num_skipped = queues.append(e.skipped, e.num_skipped, r)


@kernel
def _requeue_skipped(s, c, e):
    """Put the requests set aside back in front, in their order."""
    for k in range(e.num_skipped_holding):
        r = e.skipped_holding[e.num_skipped_holding - 1 - k] - 1
        s.num_kv_holding = queues.prepend_request(c, s.kv_holding, s.num_kv_holding, r)
    for k in range(e.num_skipped):
        r = e.skipped[e.num_skipped - 1 - k] - 1
        s.num_waiting = queues.prepend_request(c, s.waiting, s.num_waiting, r)


@kernel
def _schedule_waiting(s, c, e, long_prefill_threshold, prefill_scheduled):
    """Admit waiting requests until something does not fit."""
    num_running_scheduled = e.num_scheduled
    while e.token_budget > 0 or not c.rules[Rule.respect_token_budget]:
        holding = s.num_kv_holding > 0
        if not c.rules[Rule.drain_block_holders_first]:
            holding = holding and s.num_waiting == 0
        if not holding and s.num_waiting == 0:
            break
        if e.input_budget <= c.draft_slots and c.rules[Rule.respect_input_budget]:
            break
        if s.num_running >= c.max_num_seqs and c.rules[Rule.respect_request_cap]:
            e.branches[Branch.waiting_request_cap] += 1
            break
        r = (s.kv_holding[0] if holding else s.waiting[0]) - 1
        if not connector.handle_blocked_waiting_request(s, c, e, r):
            e.branches[Branch.waiting_skipped_blocked] += 1
            _skip(s, c, e, r)
            continue
        if c.mends[Mend.requeue_after_failed_load] and holding:
            if s.num_computed[r] == 0 and s.num_blocks[r] == 0:
                s.num_kv_holding = queues.remove_request(s.kv_holding, s.num_kv_holding, r)
                s.num_waiting = queues.prepend_request(c, s.waiting, s.num_waiting, r)
                continue
        if s.stale[r] > 0 and not s.drop_stale[r] and c.rules[Rule.drain_stale_outputs]:
            e.branches[Branch.waiting_skipped_stale] += 1
            _skip(s, c, e, r)
            continue

        num_hits = 0
        num_external = 0
        load_async = False
        num_computed = s.num_computed[r]
        num_local = 0
        fresh = num_computed == 0
        if c.mends[Mend.tell_loaded_by_blocks] and s.num_blocks[r] > 0:
            fresh = False
        if fresh:
            num_hits = kv_cache.get_computed_blocks(s, c, e, r)
            num_local = num_hits * c.block_size
            if c.connector:
                num_external = connector.get_num_new_matched_tokens(s, c, r, num_local)
                if num_external < 0:
                    e.branches[Branch.waiting_skipped_ask_later] += 1
                    _skip(s, c, e, r)
                    continue
                load_async = num_external > 0 and c.external_is_async[r] != 0
                if c.mends[Mend.leave_last_token_of_sync_load] and not load_async:
                    num_external = min(num_external, s.num_tokens[r] - 1 - num_local)
            num_computed = num_local + num_external
            if num_computed > s.num_tokens[r]:
                block_pool.fail(s, Assertion.HIT_LONGER_THAN_REQUEST)
        elif holding:
            e.branches[Branch.waiting_block_holder] += 1

        tokens = 0
        padded = False
        if not load_async:
            request_budget = c.max_model_len
            if c.rules[Rule.respect_token_budget]:
                request_budget = min(request_budget, e.token_budget)
            if c.rules[Rule.respect_input_budget]:
                request_budget = min(request_budget, e.input_budget - c.draft_slots)
            tokens = s.num_tokens[r] - num_computed
            if (
                c.num_speculative_tokens > 0
                and tokens == 1
                and not prefill_scheduled
                and (num_running_scheduled > 0 or num_computed > 0)
            ):
                whole = 1 + c.num_speculative_tokens
                pads = num_computed + whole + 1 <= c.max_model_len
                if c.mends[Mend.pad_within_threshold] and 0 < long_prefill_threshold < whole:
                    pads = False
                if c.mends[Mend.admit_unpadded_alone] and e.num_scheduled == 0:
                    pads = pads and whole <= request_budget
                if pads:
                    if whole > request_budget:
                        e.branches[Branch.waiting_pad_does_not_fit] += 1
                        break
                    tokens = whole
                    padded = True
                    e.branches[Branch.waiting_padded] += 1
            if 0 < long_prefill_threshold < tokens:
                tokens = long_prefill_threshold
                # vLLM asserts that the padding is whole only after it has taken the request in.
            if not c.chunked_prefill and tokens > request_budget:
                e.branches[Branch.waiting_not_chunkable] += 1
                break
            if tokens > request_budget:
                tokens = request_budget
                e.branches[Branch.waiting_chunk] += 1
            if tokens <= 0:
                block_pool.fail(s, Assertion.NOTHING_TO_SCHEDULE)
                break

        lookahead = c.num_lookahead_tokens if c.rules[Rule.reserve_lookahead] else 0
        reserved = 0
        if load_async:
            lookahead = 0
            reserved = connector.inflight_prefill_reserved_blocks(s, c, e)
            reserved += connector.own_spec_step_blocks(s, c, r)
            if c.mends[Mend.reserve_rest_of_own_load]:
                whole = kv_cache.cdiv(min(s.num_tokens[r], c.max_model_len), c.block_size)
                reserved += whole - kv_cache.cdiv(num_computed, c.block_size)
        adoptable = longest_published_run(s, c, r) if fresh else 0
        delay = load_async
        if c.mends[Mend.publish_sync_loads_when_done] and num_external > 0:
            delay = True
        whole_only = c.reserve_full_isl
        if c.mends[Mend.resume_only_whole] and s.status[r] == Status.PREEMPTED:
            whole_only = 1
        if not kv_cache.allocate_slots(
            s,
            c,
            e,
            r,
            tokens,
            num_hits,
            lookahead,
            num_external,
            delay,
            whole_only,
            reserved,
            s.num_running > 0,
        ):
            e.branches[Branch.waiting_no_blocks] += 1
            break
        if c.connector:
            connector.update_state_after_alloc(s, c, e, r, num_local, num_external, load_async)
        if fresh:
            rest = kv_cache.cdiv(min(s.num_tokens[r], c.max_model_len), c.block_size)
            e.fits[r] = 1 if rest - s.num_blocks[r] <= s.num_free else 0
            e.adopted[r] = num_hits
            e.adoptable[r] = adoptable
            if num_hits > 0:
                e.branches[Branch.prefix_hit] += 1
        if load_async:
            s.status[r] = Status.WAITING_FOR_REMOTE_KVS
            s.num_computed[r] = num_computed
            s.inflight_prefill[r] = 1
            _skip(s, c, e, r)
            continue

        connector.remove_from_queues(s, r)
        s.num_running = queues.append(s.running, s.num_running, r)
        admitted = 1
        if s.status[r] == Status.PREEMPTED:
            admitted = 2
            e.branches[Branch.waiting_resumed] += 1
        elif s.status[r] != Status.WAITING:
            block_pool.fail(s, Assertion.BAD_STATUS_AT_ADMISSION)
        e.branches[Branch.waiting_admitted] += 1
        s.status[r] = Status.RUNNING
        s.num_computed[r] = num_computed
        _put_in_step(s, c, e, r, tokens, admitted)
        if padded:
            if tokens != 1 + c.num_speculative_tokens:
                block_pool.fail(s, Assertion.PADDING_CUT)
            e.drafts[r] = c.num_speculative_tokens
            e.padded[r] = 1
        if num_computed + tokens < s.num_tokens[r]:
            s.inflight_prefill[r] = 1
    _requeue_skipped(s, c, e)


@kernel
def longest_published_run(s, c, r):
    """Blocks that an admission of r could adopt, read off the published hashes one by one."""
    run = 0
    if not c.prefix_caching:
        return 0
    while (run + 1) * c.block_size < s.num_tokens[r]:
        code = c.prefix[r, (run + 1) * c.block_size]
        published = False
        for b in range(1, c.num_blocks):
            if s.block_hash[b] == code:
                published = True
        if not published:
            break
        run += 1
    if run > 0 and c.drop_last_hit:
        run -= 1
    return run


@kernel
def schedule(s, c, e):
    """Decide what the next step computes (Scheduler.schedule); the step goes in flight."""
    for r in range(c.num_requests):
        if s.decode_wait[r] > 0:
            s.decode_wait[r] -= 1
    e.token_budget = c.token_budget
    e.input_budget = c.input_budget
    if s.pause == Pause.PAUSED_ALL:
        e.token_budget = 0
    threshold = 0
    if s.num_running + s.num_waiting + s.num_kv_holding > 1:
        threshold = c.long_prefill_token_threshold
    prefill_scheduled = False
    if e.token_budget > 0:
        prefill_scheduled = _schedule_running(s, c, e, threshold)
    unpaused = s.pause == Pause.UNPAUSED
    may_admit = e.num_victims == 0 or not c.rules[Rule.admit_nobody_after_preemption]
    if may_admit and unpaused and not s.assertion:
        _schedule_waiting(s, c, e, threshold, prefill_scheduled)

    total = 0
    scheduled = 0
    for r in range(c.num_requests):
        total += e.scheduled[r]
        if e.scheduled[r] > 0:
            scheduled += 1
    if total > c.token_budget:
        block_pool.fail(s, Assertion.TOO_MANY_SCHEDULED_TOKENS)
    if e.token_budget < 0:
        block_pool.fail(s, Assertion.TOKEN_BUDGET_NEGATIVE)
    if e.input_budget < 0:
        block_pool.fail(s, Assertion.INPUT_BUDGET_NEGATIVE)
    if s.num_running > c.max_num_seqs:
        block_pool.fail(s, Assertion.TOO_MANY_RUNNING)
    if scheduled > s.num_running:
        block_pool.fail(s, Assertion.MORE_SCHEDULED_THAN_RUNNING)
    if c.defer_block_free and total > 0:
        s.seq_ahead += 1
    if total == 0:
        e.branches[Branch.empty_step] += 1
    _push_step(s, c, e)
    _update_after_schedule(s, c, e)


@kernel
def _push_step(s, c, e):
    """Put the step in flight, with what its device run needs."""
    if c.worker_room:
        worker.take(s, c, e)
    d = s.num_steps
    s.num_steps = d + 1
    s.step_len[d] = e.num_scheduled
    for k in range(e.num_scheduled):
        r = e.order[k] - 1
        s.step_order[d, k] = r + 1
        s.step_tokens[d, r] = e.scheduled[r]
        s.step_start[d, r] = e.start[r]
        s.step_drafts[d, r] = e.drafts[r]
        s.step_acceptable[d, r] = 0 if e.padded[r] else e.drafts[r]
        s.step_known[d, r] = s.num_tokens[r]
        s.step_load_start[d, r] = e.sync_load_start[r]
        s.step_load_tokens[d, r] = e.sync_load[r]
        if c.worker_room:
            for i in range(min(s.worker_len[r] - 1, c.table_len)):
                s.step_table[d, r, i] = s.worker_table[r, i]
        else:
            for i in range(min(s.num_blocks[r], c.table_len)):
                s.step_table[d, r, i] = s.block_table[r, i]


@kernel
def _update_after_schedule(s, c, e):
    """Count the scheduled tokens as computed (Scheduler._update_after_schedule)."""
    d = s.num_steps - 1
    for k in range(e.num_scheduled):
        r = e.order[k] - 1
        s.num_computed[r] += e.scheduled[r]
        s.in_flight[r] += e.scheduled[r]
        if c.defer_block_free:
            s.last_seq[r] = s.seq_ahead
        chunk = s.num_computed[r] < s.num_tokens[r] + s.placeholders[r]
        s.prefill_chunk[r] = 1 if chunk else 0
        if not chunk:
            s.inflight_prefill[r] = 0
            s.step_samples[d, r] = 1
            if c.async_scheduling:
                async_scheduler.update_after_schedule(s, c, r, e.drafts[r])
    for r in range(c.num_requests):
        s.finished_note[r] = 0
        s.preempted_note[r] = 0


@kernel
def check_stop(s, c, r, is_stop):
    """Status that the request finishes with now, or 0 (vllm/v1/core/sched/utils.py)."""
    if is_stop:
        return _STOPPED
    output_tokens = s.num_tokens[r] - c.prompt_len[r]
    if s.num_tokens[r] >= c.max_model_len or output_tokens >= c.max_tokens[r]:
        return _LENGTH_CAPPED
    return 0


@kernel
def free_request(s, c, e, r, delay_free_blocks):
    """A request is finished: tell the connector, free its blocks or hold them (Scheduler)."""
    s.inflight_prefill[r] = 0
    held_for_sending = connector.request_finished(s, c, r)
    s.finished_note[r] = 1
    if held_for_sending:
        e.branches[Branch.free_delayed_until_sent] += 1
        if c.rules[Rule.hold_blocks_until_sent]:
            delay_free_blocks = True
    if not delay_free_blocks:
        connector.free_finished_blocks(s, c, e, r)


@kernel
def finish_request(s, c, e, r, status):
    """Finish one request from outside a step's output (Scheduler.finish_requests)."""
    if s.status[r] == Status.ABSENT or s.status[r] == Status.GONE:
        return
    if connector.is_finished(s.status[r]) and c.rules[Rule.finish_once]:
        return
    if s.status[r] == Status.RUNNING:
        e.branches[Branch.aborted_running] += 1
    else:
        e.branches[Branch.aborted_waiting] += 1
    if c.rules[Rule.remove_aborted_from_queues]:
        s.num_running = queues.remove_request(s.running, s.num_running, r)
        connector.remove_from_queues(s, r)
    delay = False
    if s.status[r] == Status.WAITING_FOR_REMOTE_KVS:
        e.branches[Branch.aborted_loading] += 1
        delay = not s.load_done[r] or not c.rules[Rule.release_hold_if_load_already_done]
        s.load_done[r] = 0
        s.load_failed[r] = 0
    s.status[r] = status
    free_request(s, c, e, r, delay and c.rules[Rule.hold_blocks_until_load_done] != 0)


@kernel
def _update_request_with_output(s, c, e, r, sampled):
    """Append sampled tokens until one stops the request; returns how many were appended."""
    for k in range(sampled):
        out_of_place = e.position[r] + k != s.num_tokens[r]
        if (out_of_place or connector.is_finished(s.status[r])) and s.wrong_output == 0:
            s.wrong_output = r + 1
        s.num_tokens[r] += 1
        stopped = check_stop(s, c, r, e.stop_at[r] == k + 1)
        if stopped:
            s.status[r] = stopped
            if stopped == Status.FINISHED_STOPPED:
                e.branches[Branch.stopped_by_token] += 1
            else:
                e.branches[Branch.stopped_by_length] += 1
            if k + 1 < sampled:
                e.branches[Branch.trimmed_after_stop] += 1
            if c.rules[Rule.trim_output_after_stop]:
                return k + 1
    return sampled


@kernel
def update_from_output(s, c, e):
    """Take in the output of the oldest step (Scheduler.update_from_output).

    The choices of the device are in e.accepted and e.stop_at; e.position is set by the device.
    """
    d = 0
    if c.defer_block_free and s.step_len[d] > 0:
        connector.step_processed(s, c, e)
    any_invalid = False
    for r in range(c.num_requests):
        if s.load[r] >= Load.FAILED and connector.is_load_reported(s, r):
            any_invalid = True
            e.invalid[s.transfer_table[r, s.load[r] - Load.FAILED]] = 1
        if e.load_fails[r]:
            any_invalid = True
            e.invalid[s.step_table[d, r, e.load_fails[r] - 1]] = 1
    if any_invalid:
        connector.handle_invalid_blocks(s, c, e, d)
        for b in range(c.num_blocks):
            e.invalid[b] = 0

    for k in range(s.step_len[d]):
        r = s.step_order[d, k] - 1
        tokens = s.step_tokens[d, r]
        gone = s.status[r] == Status.GONE or s.status[r] == Status.ABSENT
        is_stale = False
        if not gone:
            s.in_flight[r] -= tokens
            if s.stale[r] > 0:
                is_stale = True
                s.stale[r] -= tokens
                if s.stale[r] < 0:
                    block_pool.fail(s, Assertion.STALE_BELOW_ZERO)
        if e.failed[r]:
            continue
        if gone or connector.is_finished(s.status[r]):
            if gone or c.rules[Rule.ignore_output_of_finished]:
                e.branches[Branch.output_of_finished] += 1
                continue
        if c.mends[Mend.publish_sync_loads_when_done] and not is_stale:
            if s.step_load_tokens[d, r] > 0:
                known = min(s.num_computed[r], s.num_tokens[r])
                kv_cache.cache_blocks(s, c, e, r, known)
        if is_stale and s.drop_stale[r] and c.rules[Rule.drop_stale_output_on_reset]:
            e.branches[Branch.output_stale_dropped] += 1
            continue
        if not s.step_samples[d, r]:
            continue
        sampled = 1 + e.accepted[r]
        drafts = s.step_drafts[d, r]
        if drafts > 0:
            rejected = drafts - e.accepted[r]
            if rejected > 0:
                e.branches[Branch.drafts_rejected] += 1
            if e.accepted[r] > 0:
                e.branches[Branch.drafts_accepted] += 1
            if not is_stale or not c.rules[Rule.keep_stale_output_off_counters]:
                if s.num_computed[r] > 0 and c.rules[Rule.roll_back_rejected_drafts]:
                    s.num_computed[r] -= rejected
                if s.placeholders[r] > 0 and c.rules[Rule.roll_back_rejected_placeholders]:
                    s.placeholders[r] -= rejected
        status_before = s.status[r]
        delivered = _update_request_with_output(s, c, e, r, sampled)
        e.delivered[r] = delivered
        e.branches[Branch.output_delivered] += 1
        if is_stale:
            e.branches[Branch.output_stale_delivered] += 1
        if c.async_scheduling:
            async_scheduler.update_request_with_output(
                s, c, e, r, status_before, delivered, is_stale
            )
        if connector.is_finished(s.status[r]) and not connector.is_finished(status_before):
            e.finished[r] = s.status[r]
            free_request(s, c, e, r, False)
            if status_before == Status.RUNNING:
                s.num_running = queues.remove_request(s.running, s.num_running, r)
            else:
                e.branches[Branch.stopped_while_waiting] += 1
                connector.remove_from_queues(s, r)

    if not c.recompute_load_failures:
        for r in range(c.num_requests):
            if e.failed[r]:
                e.finished[r] = Status.FINISHED_ERROR
                finish_request(s, c, e, r, Status.FINISHED_ERROR)
    if c.connector:
        connector.update_from_kv_xfer_finished(s, c, e)


@kernel
def reset_prefix_cache(s, c, e, reset_running_requests):
    """Forget the published prefixes (Scheduler.reset_prefix_cache).

    Returns 1 if it was done, 0 if it was refused, and -1 if it raised, after the preemptions: the
    engine goes on, only the call fails (vllm/v1/engine/core.py, _invoke_utility_method).
    """
    if reset_running_requests:
        if c.mends[Mend.look_before_reset] and s.num_kv_holding > 0:
            return 0
        while s.num_running > 0:
            r = s.running[s.num_running - 1] - 1
            s.num_running = queues.delete(s.running, s.num_running, s.num_running - 1)
            e.branches[Branch.reset_preempted] += 1
            preempt_request(s, c, e, r, True)
    done = block_pool.reset_prefix_cache(s, c, e)
    if done:
        return 1
    return -1 if reset_running_requests else 0
