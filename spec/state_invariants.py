"""Invariants of one state; the registry in spec/invariants.py states each in words.

Each gets the state, the compiled scope, and a workspace to write in (spec/verdicts.py).
"""

from __future__ import annotations

from kvproof.model import connector, device, engine
from kvproof.model.block_pool import find_free
from kvproof.model.state import Load, Status
from kvproof.native.jit import kernel
from kvproof.spec.verdicts import BROKEN, HOLDS, VACUOUS, count, verdict


@kernel
def _count_holders(s, c, holders):
    """Count for each block the tables and deferred frees that hold it; False if a hold is wild."""
    for b in range(c.num_blocks):
        holders[b] = 0
    for r in range(c.num_requests):
        if s.num_blocks[r] > c.table_len:
            return False
        for i in range(s.num_blocks[r]):
            holders[s.block_table[r, i]] += 1
    for q in range(s.num_deferred):
        for i in range(s.deferred_len[q]):
            holders[s.deferred_blocks[q, i]] += 1
    return holders[0] == 0


@kernel
def block_conservation(s, c, w):
    if not _count_holders(s, c, w.holders) or s.ref_cnt[0] != 0:
        return BROKEN
    free = 0
    for b in range(1, c.num_blocks):
        if s.ref_cnt[b] != w.holders[b]:
            return BROKEN
        if w.holders[b] == 0:
            free += 1
    if s.num_free != free:
        return BROKEN
    for i in range(s.num_free):
        b = s.free_queue[i]
        # A second sight of the same block finds the mark of the first.
        if b == 0 or w.holders[b] != 0:
            return BROKEN
        w.holders[b] = -1
    return HOLDS


@kernel
def published_sound(s, c, w):
    published = False
    for b in range(1, c.num_blocks):
        if s.block_hash[b]:
            published = True
    if not published:
        return VACUOUS
    if s.num_steps == 0:
        return _published_in(s, c, s.kv)
    for b in range(1, c.num_blocks):
        for i in range(c.block_size):
            w.kv_later[b, i] = s.kv[b, i]
    device.run_in_flight(s, c, w, w.kv_later)
    return _published_in(s, c, w.kv_later)


@kernel
def _published_in(s, c, kv):
    """Whether the slots of every published block hold the prefix that it is published under."""
    for b in range(1, c.num_blocks):
        code = s.block_hash[b]
        if code == 0:
            continue
        for i in range(c.block_size):
            if kv[b, c.block_size - 1 - i] != code:
                return BROKEN
            code = c.shorter[code]
    return HOLDS


@kernel
def reads_correct(s, c, w):
    if s.misread:
        return BROKEN
    return VACUOUS if s.num_running == 0 else HOLDS


@kernel
def no_reuse_in_flight(s, c, w):
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
            end = s.load_start[r] + s.load_tokens[r]
            last = (end - 1) // c.block_size
            if end > s.num_tokens[r] and engine.is_alive(s, r):
                return BROKEN
        for i in range(first, last + 1):
            b = s.transfer_table[r, i]
            if b == 0 and moving:
                return BROKEN
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
def counters_consistent(s, c, w):
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
def slots_respected(s, c, w):
    if s.num_running == 0:
        return VACUOUS
    return verdict(s.num_running <= c.max_num_seqs)


@kernel
def queue_status_agree(s, c, w):
    tested = False
    for r in range(c.num_requests):
        running = count(s.running, s.num_running, r)
        waiting = count(s.waiting, s.num_waiting, r)
        holding = count(s.kv_holding, s.num_kv_holding, r)
        status = s.status[r]
        if not engine.is_alive(s, r):
            if running + waiting + holding > 0:
                return BROKEN
            continue
        tested = True
        if status == Status.RUNNING:
            if running != 1 or waiting + holding != 0:
                return BROKEN
        elif (
            running != 0
            or waiting + holding != 1
            or (status == Status.WAITING_FOR_REMOTE_KVS and holding != 1)
            or (s.num_blocks[r] > 0 and holding != 1)
        ):
            return BROKEN
    return HOLDS if tested else VACUOUS


@kernel
def output_exact(s, c, w):
    if s.wrong_output:
        return BROKEN
    for r in range(c.num_requests):
        if engine.is_alive(s, r) and s.num_tokens[r] > c.prompt_len[r]:
            return HOLDS
    return VACUOUS


@kernel
def freed_exactly_once(s, c, w):
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
def isolation(s, c, w):
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
def eviction_order(s, c, w):
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
        parent = code
        for _ in range(c.block_size):
            parent = c.shorter[parent]
        if parent == 0:
            continue
        parent = c.hash_of[parent]
        published = False
        outlives = False
        for other in range(1, c.num_blocks):
            if s.block_hash[other] == parent:
                published = True
                if s.ref_cnt[other] > 0 or find_free(s, other) > k:
                    outlives = True
        if published:
            tested = True
            if not outlives:
                return BROKEN
    return HOLDS if tested or unpublished_over else VACUOUS


@kernel
def no_assertion(s, c, w):
    return verdict(s.assertion == 0)
