"""Numbers of the mends: changes that vLLM lacks, off unless a scope switches one on.

Made by `kvproof docs` from the table in spec/mends.py, which says what each changes.
"""

from __future__ import annotations

from enum import IntEnum


class Mend(IntEnum):
    """One change of vLLM; the value is its place in the compiled scope's `mends`."""

    withdraw_hashes_of_scheduled_victim = 0
    publish_sync_loads_when_done = 1
    drop_output_of_failed_load = 2
    forget_prefill_of_failed_load = 3
    requeue_after_failed_load = 4
    look_before_reset = 5
    reset_beside_fence = 6
    reserve_spec_step_exactly = 7
    tell_loaded_by_blocks = 8
    leave_last_token_of_sync_load = 9
    pad_within_threshold = 10
    admit_unpadded_alone = 11
    await_output_before_self_preemption = 12
    admit_with_lookahead = 13
    resume_only_whole = 14
    fence_in_every_role = 15
    compare_scheduled_budget = 16
    reserve_rest_of_own_load = 17
