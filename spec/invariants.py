"""Invariants: what must hold in every state, and in every step.

Each kernel answers VACUOUS where the state or step gives it nothing to test, HOLDS or BROKEN.
State invariants look at one state; step invariants compare the state before, the action with its
report, and the state after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from model import connector, device, engine
from model.jit import kernel
from model.state import Load, Status
from spec.rules import Rule

VACUOUS = 0
HOLDS = 1
BROKEN = 2


@kernel
def _verdict(holds):
    return HOLDS if holds else BROKEN


@kernel
def _holders(s, c, b):
    """Requests and deferred frees that hold block b."""
    holders = 0
    for r in range(c.num_requests):
        for i in range(c.table_len):
            if i < s.num_blocks[r] and s.block_table[r, i] == b:
                holders += 1
    for q in range(s.num_deferred):
        for i in range(s.deferred_len[q]):
            if s.deferred_blocks[q, i] == b:
                holders += 1
    return holders


@kernel
def block_conservation(s, c, e):
    for r in range(c.num_requests):
        if s.num_blocks[r] > c.table_len:
            return BROKEN
        for i in range(s.num_blocks[r]):
            if s.block_table[r, i] == 0:
                return BROKEN
    if s.ref_cnt[0] != 0:
        return BROKEN
    for b in range(1, c.num_blocks):
        free = 0
        for i in range(s.num_free):
            if s.free_queue[i] == b:
                free += 1
        holders = _holders(s, c, b)
        if s.ref_cnt[b] != holders or free != (1 if holders == 0 else 0):
            return BROKEN
    for i in range(s.num_free):
        if s.free_queue[i] == 0:
            return BROKEN
    return HOLDS


@kernel
def published_sound(s, c, e):
    published = False
    for b in range(1, c.num_blocks):
        if s.block_hash[b]:
            published = True
    if not published:
        return VACUOUS
    for b in range(1, c.num_blocks):
        for i in range(c.block_size):
            e.kv_later[b, i] = s.kv[b, i]
    device.run_in_flight(s, c, e, e.kv_later)
    for b in range(1, c.num_blocks):
        code = s.block_hash[b]
        if code == 0:
            continue
        length = c.prefix_len[code]
        if length % c.block_size != 0:
            return BROKEN
        for i in range(c.block_size):
            if not _is_position_of(c, e.kv_later[b, i], code, length - c.block_size + i + 1):
                return BROKEN
    return HOLDS


@kernel
def _is_position_of(c, slot, code, n):
    """Whether a slot's content is that of the first n tokens of the prefix `code`."""
    if slot == 0 or c.prefix_len[slot] != n:
        return False
    for r in range(c.num_requests):
        if c.prefix[r, c.prefix_len[code]] == code:
            return c.prefix[r, n] == slot
    return False


@kernel
def reads_correct(s, c, e):
    if s.misread:
        return BROKEN
    return VACUOUS if s.num_running == 0 else HOLDS


@kernel
def no_reuse_in_flight(s, c, e):
    tested = False
    for r in range(c.num_requests):
        moving = s.load[r] == Load.PENDING
        if not moving and s.sending[r] != 1:
            continue
        tested = True
        first = 0
        last = c.table_len - 1
        if moving:
            first = s.load_start[r] // c.block_size
            last = (s.load_start[r] + s.load_tokens[r] - 1) // c.block_size
        for i in range(first, last + 1):
            b = s.transfer_table[r, i]
            if b == 0:
                continue
            if i >= s.num_blocks[r] or s.block_table[r, i] != b:
                return BROKEN
            if moving and (s.ref_cnt[b] != 1 or s.block_hash[b] != 0):
                return BROKEN
            for d in range(s.num_steps):
                for k in range(s.step_len[d]):
                    if moving and _writes(s, c, d, s.step_order[d, k] - 1, b):
                        return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def _writes(s, c, d, r, b):
    """Whether in-flight step d writes block b for request r."""
    for j in range(s.step_tokens[d, r]):
        place = (s.step_start[d, r] + j) // c.block_size
        if 0 <= place < c.table_len and s.step_table[d, r, place] == b:
            return True
    return False


@kernel
def counters_consistent(s, c, e):
    tested = False
    for r in range(c.num_requests):
        if s.status[r] == Status.ABSENT or s.status[r] == Status.GONE:
            continue
        tested = True
        in_flight = 0
        stale = 0
        for d in range(s.num_steps):
            in_flight += s.step_tokens[d, r]
            if s.step_stale[d, r]:
                stale += s.step_tokens[d, r]
        if s.in_flight[r] != in_flight:
            return BROKEN
        if s.num_computed[r] < 0 or s.placeholders[r] < 0 or s.num_drafts[r] < 0:
            return BROKEN
        if connector.is_finished(s.status[r]):
            continue
        if s.stale[r] != stale:
            return BROKEN
        if s.num_computed[r] > s.num_tokens[r] + s.placeholders[r] + s.num_drafts[r] + (
            _drafts_in_flight(s, c, r)
        ):
            return BROKEN
        if s.num_tokens[r] > c.max_model_len:
            return BROKEN
        if s.num_tokens[r] > c.prompt_len[r] + c.max_tokens[r]:
            return BROKEN
        if s.status[r] != Status.RUNNING and s.placeholders[r] != 0:
            return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def _drafts_in_flight(s, c, r):
    """Drafts that a synchronous step counts as computed until its output is taken in."""
    if c.async_scheduling:
        return 0
    total = 0
    for d in range(s.num_steps):
        if not s.step_stale[d, r]:
            total += s.step_drafts[d, r]
    return total


@kernel
def slots_respected(s, c, e):
    if s.num_running == 0:
        return VACUOUS
    return _verdict(s.num_running <= c.max_num_seqs)


@kernel
def _count(queue, length, r):
    times = 0
    for i in range(length):
        if queue[i] == r + 1:
            times += 1
    return times


@kernel
def queue_status_agree(s, c, e):
    tested = False
    for r in range(c.num_requests):
        running = _count(s.running, s.num_running, r)
        waiting = _count(s.waiting, s.num_waiting, r)
        holding = _count(s.kv_holding, s.num_kv_holding, r)
        status = s.status[r]
        if not engine.is_alive(s, r):
            if running + waiting + holding > 0:
                return BROKEN
            continue
        tested = True
        if status == Status.RUNNING:
            if running != 1 or waiting + holding != 0:
                return BROKEN
        elif running != 0 or waiting + holding != 1:
            return BROKEN
        elif status == Status.WAITING_FOR_REMOTE_KVS and holding != 1:
            return BROKEN
        elif s.num_blocks[r] > 0 and holding != 1:
            return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def output_exact(s, c, e):
    if s.wrong_output:
        return BROKEN
    for r in range(c.num_requests):
        if engine.is_alive(s, r) and s.num_tokens[r] > c.prompt_len[r]:
            return HOLDS
    return VACUOUS


@kernel
def freed_exactly_once(s, c, e):
    tested = False
    for r in range(c.num_requests):
        status = s.status[r]
        if status == Status.ABSENT or engine.is_alive(s, r):
            continue
        tested = True
        if status == Status.GONE:
            if s.num_blocks[r] != 0:
                return BROKEN
        elif s.load[r] == Load.NONE and s.sending[r] == 0:
            return BROKEN
    for q in range(s.num_deferred):
        tested = True
        if not 0 < s.deferred_fence[q] <= s.seq_ahead:
            return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def isolation(s, c, e):
    tested = False
    for a in range(c.num_requests):
        if not engine.is_alive(s, a):
            continue
        for b in range(a):
            if not engine.is_alive(s, b):
                continue
            for i in range(min(s.num_blocks[a], c.table_len)):
                for j in range(min(s.num_blocks[b], c.table_len)):
                    if s.block_table[a, i] != s.block_table[b, j]:
                        continue
                    tested = True
                    end = (i + 1) * c.block_size
                    if i != j or c.prefix[a, end] != c.prefix[b, end]:
                        return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def eviction_order(s, c, e):
    tested = False
    unpublished_over = False
    for k in range(s.num_free):
        b = s.free_queue[k]
        code = s.block_hash[b]
        if code == 0:
            if unpublished_over and c.recompute_load_failures:
                return BROKEN
            continue
        unpublished_over = True
        parent_len = c.prefix_len[code] - c.block_size
        if parent_len <= 0:
            continue
        parent = _prefix_of(c, code, parent_len)
        published = False
        outlives = False
        for other in range(1, c.num_blocks):
            if s.block_hash[other] == parent:
                published = True
                if s.ref_cnt[other] > 0 or _free_place(s, other) > k:
                    outlives = True
        if published:
            tested = True
            if not outlives:
                return BROKEN
    return HOLDS if tested or unpublished_over else VACUOUS


@kernel
def _prefix_of(c, code, n):
    """Code under which the first n tokens of a prefix are published."""
    for r in range(c.num_requests):
        if c.prefix[r, c.prefix_len[code]] == code:
            return c.prefix_hash[r, n]
    return 0


@kernel
def _free_place(s, b):
    for i in range(s.num_free):
        if s.free_queue[i] == b:
            return i
    return -1


@kernel
def no_assertion(s, c, e):
    return _verdict(s.assertion == 0)


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
        if c.long_prefill_threshold > 0 and n > c.long_prefill_threshold:
            if before.num_running + before.num_waiting + before.num_kv_holding > 1:
                return BROKEN
        tokens += n
        slots += n + c.draft_slots
    if e.token_budget < 0 or e.input_budget < 0:
        return BROKEN
    if e.token_budget != c.token_budget - tokens or e.input_budget != c.input_budget - slots:
        return BROKEN
    return _verdict(tokens <= c.token_budget and slots <= c.input_budget)


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
    return _verdict(e.passed_over == 0)


@kernel
def victim_freeable(before, s, c, e, kind):
    if e.num_victims == 0:
        return VACUOUS
    return _verdict(e.victims_helped == 1)


@kernel
def victim_is_lowest(before, s, c, e, kind):
    if e.num_victims == 0:
        return VACUOUS
    return _verdict(e.victim_rank_ok == 1)


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
        place = _queue_place(s.waiting, s.num_waiting, victim)
        for i in range(before.num_waiting):
            other = before.waiting[i] - 1
            where = _queue_place(s.waiting, s.num_waiting, other)
            if where < 0 or where > place:
                continue
            tested = True
            if not c.priority_policy or _ranks_before(c, victim, other):
                return BROKEN
    for i in range(before.num_waiting):
        admitted = before.waiting[i] - 1
        if e.admitted[admitted] == 0:
            continue
        for j in range(i):
            passed = before.waiting[j] - 1
            tested = True
            if e.admitted[passed] == 0 and _count(e.skipped, e.num_skipped, passed) == 0:
                if e.new_load[passed] == 0:
                    return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def _queue_place(queue, length, r):
    for i in range(length):
        if queue[i] == r + 1:
            return i
    return -1


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
            end += c.num_lookahead
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
        place = _free_place(s, x)
        same = before.block_hash[x] != 0 and s.block_hash[x] == before.block_hash[x]
        if place < 0 and not same and e.num_victims == 0:
            # x was handed out anew: whatever stood before it must have left the queue too.
            for j in range(i):
                y = before.free_queue[j]
                tested = True
                if _free_place(s, y) >= 0 and s.block_hash[y] == before.block_hash[y]:
                    return BROKEN
        if place >= 0 and same:
            # x stayed: what was freed and published since stands behind it.
            for k in range(place):
                y = s.free_queue[k]
                if s.block_hash[y] != 0 and _free_place(before, y) < 0:
                    return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def reset_sound(before, s, c, e, kind):
    if kind != engine.Kind.RESET_PREFIX_CACHE or not e.reset_ok:
        return VACUOUS
    for b in range(1, c.num_blocks):
        if s.block_hash[b] or s.ref_cnt[b]:
            return BROKEN
    return HOLDS


class Id(IntEnum):
    """The invariants by name; the value is the invariant's bit in a mask of broken ones."""

    BlockConservation = 0
    PublishedSound = 1
    ReadsCorrect = 2
    NoReuseInFlight = 3
    CountersConsistent = 4
    SlotsRespected = 5
    QueueStatusAgree = 6
    OutputExact = 7
    FreedExactlyOnce = 8
    Isolation = 9
    EvictionOrder = 10
    NoAssertion = 11
    BudgetRespected = 12
    ScheduleSet = 13
    VictimFreeable = 14
    VictimIsLowest = 15
    PolicyOrder = 16
    WrittenSlotsOwned = 17
    HitMaximal = 18
    LeastRecentlyFreed = 19
    ResetSound = 20


@kernel
def _note(e, which, verdict):
    """Count the test and give the invariant's bit if it is broken."""
    if verdict != VACUOUS:
        e.tested[which] += 1
    return (1 << which) if verdict == BROKEN else 0


@kernel
def check_state(s, c, e):
    """Mask of the state invariants that the state breaks; bit i is Id(i)."""
    broken = _note(e, Id.BlockConservation, block_conservation(s, c, e))
    broken |= _note(e, Id.PublishedSound, published_sound(s, c, e))
    broken |= _note(e, Id.ReadsCorrect, reads_correct(s, c, e))
    broken |= _note(e, Id.NoReuseInFlight, no_reuse_in_flight(s, c, e))
    broken |= _note(e, Id.CountersConsistent, counters_consistent(s, c, e))
    broken |= _note(e, Id.SlotsRespected, slots_respected(s, c, e))
    broken |= _note(e, Id.QueueStatusAgree, queue_status_agree(s, c, e))
    broken |= _note(e, Id.OutputExact, output_exact(s, c, e))
    broken |= _note(e, Id.FreedExactlyOnce, freed_exactly_once(s, c, e))
    broken |= _note(e, Id.Isolation, isolation(s, c, e))
    broken |= _note(e, Id.EvictionOrder, eviction_order(s, c, e))
    broken |= _note(e, Id.NoAssertion, no_assertion(s, c, e))
    return broken


@kernel
def check_step(before, s, c, e, action):
    """Mask of the step invariants that an action breaks; bit i is Id(i)."""
    kind = engine.kind_of(action)
    broken = _note(e, Id.BudgetRespected, budget_respected(before, s, c, e, kind))
    broken |= _note(e, Id.ScheduleSet, schedule_set(before, s, c, e, kind))
    broken |= _note(e, Id.VictimFreeable, victim_freeable(before, s, c, e, kind))
    broken |= _note(e, Id.VictimIsLowest, victim_is_lowest(before, s, c, e, kind))
    broken |= _note(e, Id.PolicyOrder, policy_order(before, s, c, e, kind))
    broken |= _note(e, Id.WrittenSlotsOwned, written_slots_owned(before, s, c, e, kind))
    broken |= _note(e, Id.HitMaximal, hit_maximal(before, s, c, e, kind))
    broken |= _note(e, Id.LeastRecentlyFreed, least_recently_freed(before, s, c, e, kind))
    broken |= _note(e, Id.ResetSound, reset_sound(before, s, c, e, kind))
    return broken
