"""Placeholders and the output of overlapping steps (vllm/v1/core/sched/async_scheduler.py)."""

from __future__ import annotations

from kvproof.model import block_pool, kv_cache
from kvproof.model.rules import Rule
from kvproof.model.state import Assertion, Status
from kvproof.native.jit import kernel


@kernel
def update_after_schedule(s, c, r, num_drafts):
    """Plan the output of a request that this step samples for (AsyncScheduler, same name)."""
    s.placeholders[r] += 1 + num_drafts
    s.num_drafts[r] = c.num_speculative_tokens
    s.old_drafts[r] = 0
    if c.v2_model_runner:
        s.decode_wait[r] = c.pipeline_parallel_size


@kernel
def update_request_with_output(s, c, e, r, status_before, num_delivered, is_stale):
    """Settle placeholders and publish what the output made known (AsyncScheduler, same name)."""
    if not is_stale or not c.rules[Rule.keep_stale_output_off_counters]:
        s.placeholders[r] -= num_delivered
        if s.placeholders[r] < 0:
            block_pool.fail(s, Assertion.PLACEHOLDERS_BELOW_ZERO)
    if status_before == Status.RUNNING:
        kv_cache.cache_blocks(s, c, e, r, s.num_computed[r] - s.placeholders[r])
