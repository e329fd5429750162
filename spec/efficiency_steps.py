"""Efficiency properties of one step; the registry in spec/efficiency.py states each in words."""

from __future__ import annotations

from kvproof.model import engine, scheduler
from kvproof.model.kv_cache import cdiv
from kvproof.model.state import Load, Pause, Phase, Status
from kvproof.native.jit import kernel
from kvproof.spec.verdicts import HOLDS, VACUOUS, verdict


@kernel
def _budget_left(c, e):
    return e.token_budget > 0 and e.input_budget > c.draft_slots


@kernel
def _could_go_on(s, c, e, r):
    """Whether a running request that the step leaves out could compute a token in it."""
    if s.status[r] != Status.RUNNING or e.scheduled[r] > 0 or s.decode_wait[r] > 0:
        return False
    if s.placeholders[r] > 0:
        certain = s.num_computed[r] + 2 - s.placeholders[r]
        if certain >= c.prompt_len[r] + c.max_tokens[r]:
            return False
    wanted = s.num_tokens[r] + s.num_drafts[r] + s.placeholders[r] - s.num_computed[r]
    if wanted <= 0 or s.num_computed[r] + 1 >= c.max_model_len or not _budget_left(c, e):
        return False
    end = min(s.num_computed[r] + 1 + c.num_lookahead_tokens, c.max_model_len)
    return cdiv(end, c.block_size) - s.num_blocks[r] <= s.num_free


@kernel
def _could_come_in(s, c, e, r):
    """Whether a waiting request that asks no connector could be admitted to the step, whole."""
    if s.status[r] != Status.WAITING and s.status[r] != Status.PREEMPTED:
        return False
    if c.external_tokens[r] > 0 or (s.stale[r] > 0 and not s.drop_stale[r]):
        return False
    if s.num_running >= c.max_num_seqs or not _budget_left(c, e):
        return False
    rest = s.num_tokens[r] - s.num_computed[r]
    if not c.chunked_prefill and rest > min(e.token_budget, e.input_budget - c.draft_slots):
        return False
    end = min(s.num_tokens[r] + c.num_lookahead_tokens, c.max_model_len)
    spared = c.watermark_blocks if s.num_running > 0 else 0
    return cdiv(end, c.block_size) - s.num_blocks[r] + spared <= s.num_free


@kernel
def nobody_passed_over(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or e.num_victims == 0 or s.num_running == 0 or s.assertion:
        return VACUOUS
    could = False
    for r in range(c.num_requests):
        could = could or _could_go_on(s, c, e, r)
    return verdict(not could)


@kernel
def no_empty_step(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE or e.num_scheduled > 0 or s.assertion:
        return VACUOUS
    if s.pause != Pause.UNPAUSED:
        return VACUOUS
    could = False
    for r in range(c.num_requests):
        could = could or _could_go_on(s, c, e, r) or _could_come_in(s, c, e, r)
    return verdict(not could)


@kernel
def holders_within_cap(before, s, c, e, kind):
    if kind != engine.Kind.SCHEDULE:
        return VACUOUS
    loads = 0
    holders = 0
    for r in range(c.num_requests):
        loads += e.new_load[r]
        if engine.is_alive(s, r) and s.num_blocks[r] > 0:
            holders += 1
    return verdict(holders <= c.max_num_seqs) if loads > 0 else VACUOUS


@kernel
def idle_is_still(before, s, c, e, kind):
    if s.pause == Pause.UNPAUSED or s.phase != Phase.TOP or s.num_steps > 0:
        return VACUOUS
    if scheduler.has_requests(s, c):
        return VACUOUS
    writing = False
    for r in range(c.num_requests):
        writing = writing or s.load[r] == Load.PENDING
    return verdict(not writing)


@kernel
def end_published(before, s, c, e, kind):
    if kind != engine.Kind.OUTPUT or not c.prefix_caching:
        return VACUOUS
    tested = False
    for r in range(c.num_requests):
        if e.finished[r] == 0 or e.delivered[r] == 0 or before.status[r] != Status.RUNNING:
            continue
        computed = before.step_start[0, r] + before.step_tokens[0, r]
        computed -= before.step_drafts[0, r] - e.accepted[r]
        full = min(computed, before.num_tokens[r] + e.delivered[r]) // c.block_size
        for i in range(min(full, before.num_blocks[r])):
            tested = True
            if s.block_hash[before.block_table[r, i]] == 0:
                return verdict(False)
    return HOLDS if tested else VACUOUS
