"""Invariants of one step: the state before, the report of the action, and the state after."""

from __future__ import annotations

from kvproof.model import connector, engine, scheduler
from kvproof.model.block_pool import find_free
from kvproof.model.kv_cache import cdiv
from kvproof.model.mends import Mend
from kvproof.model.queues import find
from kvproof.model.state import Load, Pause, Phase, Status
from kvproof.native.jit import kernel
from kvproof.spec.verdicts import BROKEN, HOLDS, VACUOUS, count, verdict


@kernel
def budget_respected(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or e.num_scheduled == 0:
        return VACUOUS
    tokens = 0
    slots = 0
    for k in range(e.num_scheduled):
        r = e.order[k] - 1
        n = e.scheduled[r]
        if n <= 0 or e.start[r] + n > c.max_model_len:
            return BROKEN
        if c.long_prefill_token_threshold > 0 and n > c.long_prefill_token_threshold:
            if before.num_running + before.num_waiting + before.num_kv_holding > 1:
                return BROKEN
        tokens += n
        slots += n + c.draft_slots
    if e.token_budget < 0 or e.input_budget < 0:
        return BROKEN
    if e.token_budget != c.token_budget - tokens or e.input_budget != c.input_budget - slots:
        return BROKEN
    return verdict(tokens <= c.token_budget and slots <= c.input_budget)


@kernel
def schedule_set(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or (e.num_scheduled == 0 and e.num_victims == 0):
        return VACUOUS
    for r in range(c.num_requests):
        if e.scheduled[r] > 0 and s.status[r] != Status.RUNNING:
            return BROKEN
    for k in range(e.num_victims):
        if e.scheduled[e.victims[k] - 1] > 0:
            return BROKEN
    return verdict(e.passed_over == 0 and e.old_drafts == 0)


@kernel
def victim_freeable(before, s, c, e, kind):
    if e.num_victims == 0:
        return VACUOUS
    return verdict(e.victim_in_vain == 0)


@kernel
def victim_is_lowest(before, s, c, e, kind):
    if e.num_victims == 0:
        return VACUOUS
    return verdict(e.victim_misranked == 0)


@kernel
def policy_order(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE:
        return VACUOUS
    tested = False
    if c.priority_policy:
        for i in range(1, s.num_waiting):
            tested = True
            if not _ranks_before(c, s.waiting[i - 1] - 1, s.waiting[i] - 1):
                return BROKEN
    for k in range(e.num_victims):
        victim = e.victims[k] - 1
        place = find(s.waiting, s.num_waiting, victim)
        for i in range(before.num_waiting):
            other = before.waiting[i] - 1
            where = find(s.waiting, s.num_waiting, other)
            if where < 0 or where > place:
                continue
            tested = True
            if not c.priority_policy or not _ranks_before(c, other, victim):
                return BROKEN
    for i in range(before.num_waiting):
        admitted = before.waiting[i] - 1
        if e.admitted[admitted] == 0:
            continue
        for j in range(i):
            passed = before.waiting[j] - 1
            tested = True
            if e.admitted[passed] == 0 and count(e.skipped, e.num_skipped, passed) == 0:
                if e.new_load[passed] == 0:
                    return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def _ranks_before(c, a, b):
    if c.priority[a] != c.priority[b]:
        return c.priority[a] < c.priority[b]
    return c.arrival[a] <= c.arrival[b]


@kernel
def written_slots_owned(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or e.num_scheduled == 0:
        return VACUOUS
    d = s.num_steps - 1
    for k in range(e.num_scheduled):
        r = e.order[k] - 1
        end = e.start[r] + e.scheduled[r]
        if s.step_samples[d, r]:
            end += c.num_lookahead_tokens
        for position in range(e.start[r], min(end, c.max_model_len)):
            place = position // c.block_size
            if place >= s.num_blocks[r] or s.block_table[r, place] == 0:
                return BROKEN
            b = s.block_table[r, place]
            if s.ref_cnt[b] == 1:
                continue
            for other in range(c.num_requests):
                if other == r or place >= s.num_blocks[other]:
                    continue
                if s.block_table[other, place] != b:
                    continue
                if position >= s.num_tokens[r] or position >= s.num_tokens[other]:
                    return BROKEN
                if c.prefix[r, position + 1] != c.prefix[other, position + 1]:
                    return BROKEN
    return HOLDS


@kernel
def hit_maximal(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE:
        return VACUOUS
    tested = False
    for r in range(c.num_requests):
        if e.admitted[r] or e.new_load[r]:
            if e.adopted[r] > 0 or e.adoptable[r] > 0:
                tested = True
                if e.adopted[r] != e.adoptable[r]:
                    return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def least_recently_freed(before, s, c, e, kind):
    tested = False
    for i in range(before.num_free):
        x = before.free_queue[i]
        place = find_free(s, x)
        same = before.block_hash[x] != 0 and s.block_hash[x] == before.block_hash[x]
        if place < 0 and not same and e.num_victims == 0:
            # x was handed out anew: whatever stood before it must have left the queue too.
            for j in range(i):
                y = before.free_queue[j]
                tested = True
                if find_free(s, y) >= 0 and s.block_hash[y] == before.block_hash[y]:
                    return BROKEN
        if place >= 0 and same:
            # x stayed: what was freed and published since stands behind it.
            for k in range(place):
                y = s.free_queue[k]
                if s.block_hash[y] != 0 and find_free(before, y) < 0:
                    return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def reset_sound(before, s, c, e, kind):
    if kind != engine.Kind.RESET_PREFIX_CACHE or e.reset_ok == 0:
        return VACUOUS
    if e.reset_ok < 0:
        return BROKEN
    for b in range(1, c.num_blocks):
        if s.block_hash[b]:
            return BROKEN
    for r in range(c.num_requests):
        if engine.is_alive(s, r) and s.num_blocks[r] > 0:
            return BROKEN
    return HOLDS


@kernel
def no_wasted_step(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or not c.async_scheduling:
        return VACUOUS
    tested = False
    for r in range(c.num_requests):
        if before.status[r] != Status.RUNNING or before.placeholders[r] == 0:
            continue
        certain = before.num_tokens[r]
        for d in range(before.num_steps):
            if before.step_samples[d, r] and not before.step_stale[d, r]:
                certain += 1
        at_limit = certain >= c.prompt_len[r] + c.max_tokens[r]
        if e.held_back[r] or (e.scheduled[r] > 0 and e.admitted[r] == 0):
            tested = True
            if at_limit != (e.held_back[r] == 1):
                return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def no_stall(before, s, c, e, kind):
    if s.assertion or s.pause != Pause.UNPAUSED or s.num_steps > 1:
        return VACUOUS
    moving = False
    pending = False
    for r in range(c.num_requests):
        if s.load[r] or s.sending[r]:
            moving = True
        if s.status[r] != Status.ABSENT and s.status[r] != Status.GONE:
            pending = True
    if s.phase == Phase.TOP and s.num_steps == 0:
        return verdict(scheduler.has_requests(s, c)) if pending else VACUOUS
    idle_before = before.num_running == 0 and before.num_steps == 0
    waits = before.num_waiting + before.num_kv_holding > 0
    if kind != engine.Kind.SCHEDULE or not idle_before or not waits or moving:
        return VACUOUS
    for r in range(c.num_requests):
        asked = s.asks_left[r] != before.asks_left[r]
        if e.scheduled[r] > 0 or asked or before.load[r] == Load.PENDING:
            return HOLDS
    return BROKEN


@kernel
def hand_over(before, s, c, e, kind):
    tested = False
    if not c.requires_kv_delivery:
        return VACUOUS
    for r in range(c.num_requests):
        by_itself = (
            e.finished[r] == Status.FINISHED_STOPPED
            or e.finished[r] == Status.FINISHED_LENGTH_CAPPED
        )
        if by_itself and c.delay_free[r]:
            tested = True
            if s.sending[r] != 1 or s.num_blocks[r] == 0:
                return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def admission_fits(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or not c.reserve_full_isl:
        return VACUOUS
    tested = False
    for r in range(c.num_requests):
        if (e.admitted[r] or e.new_load[r]) and before.num_computed[r] == 0:
            holds_blocks = before.num_blocks[r] > 0 and not before.load_failed[r]
            if c.mends[Mend.tell_loaded_by_blocks] and holds_blocks:
                continue
            tested = True
            if not e.fits[r]:
                return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def worker_agrees(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE:
        return VACUOUS
    d = s.num_steps - 1
    for k in range(e.num_scheduled):
        r = e.order[k] - 1
        end = min(cdiv(e.start[r] + e.scheduled[r], c.block_size), c.table_len)
        for i in range(end):
            if s.step_table[d, r, i] != s.block_table[r, i]:
                return BROKEN
    if c.worker_room:
        for r in range(c.num_requests):
            if s.worker_len[r] == 0:
                continue
            if not engine.is_alive(s, r):
                return BROKEN
            if c.v2_model_runner and s.status[r] != Status.RUNNING:
                return BROKEN
    return HOLDS if e.num_scheduled > 0 else VACUOUS


@kernel
def publication_complete(before, s, c, e, kind):
    if not c.prefix_caching or s.assertion:
        return VACUOUS
    tested = False
    for r in range(c.num_requests):
        full = _promised_by(before, s, c, e, kind, r) // c.block_size
        # An output may end its request; the blocks that it had are those of the state before.
        held = before if kind == engine.Kind.OUTPUT else s
        for i in range(min(full, held.num_blocks[r])):
            tested = True
            if s.block_hash[held.block_table[r, i]] == 0:
                return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def _promised_by(before, s, c, e, kind, r):
    """Tokens of request r whose full blocks the action leaves published."""
    if kind == engine.Kind.OUTPUT:
        if c.async_scheduling and e.delivered[r] > 0:
            if before.status[r] == Status.RUNNING and before.stale[r] == 0:
                return before.num_computed[r] - before.placeholders[r] + e.delivered[r]
        return 0
    if kind != engine.Kind.SCHEDULE:
        return 0
    if e.scheduled[r] > 0:
        if c.mends[Mend.publish_sync_loads_when_done] and connector.awaits_sync_load(s, c, r):
            return 0
        return min(e.start[r] + e.scheduled[r], s.num_tokens[r])
    taken_in = before.status[r] == Status.WAITING_FOR_REMOTE_KVS
    if taken_in and (s.status[r] == Status.WAITING or s.status[r] == Status.PREEMPTED):
        return s.num_computed[r]
    return 0
