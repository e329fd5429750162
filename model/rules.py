"""Numbers of the rules: the guards that vLLM has, on unless a scope switches it off.

Made by `kvproof docs` from the table in spec/rules.py, which says what each requires.
"""

from __future__ import annotations

from enum import IntEnum


class Rule(IntEnum):
    """One guard of vLLM; the value is its place in the compiled scope's `rules`."""

    evict_hash_on_reuse = 0
    take_hit_from_free_queue = 1
    free_at_last_reference = 2
    free_tail_first = 3
    reuse_unpublished_first = 4
    keep_published_longest = 5
    check_capacity_before_pinning = 6
    count_evictable_hits = 7
    pin_hits_before_allocating = 8
    recompute_last_token = 9
    hash_whole_prefix = 10
    hash_includes_salt = 11
    publish_committed_tokens_only = 12
    reserve_full_sequence = 13
    reserve_lookahead = 14
    cap_slots_at_model_length = 15
    drop_victim_from_step = 16
    refund_victim_budget = 17
    step_back_cursor_after_victim = 18
    preempt_policy_last = 19
    victim_must_be_freeable = 20
    admit_nobody_after_preemption = 21
    respect_request_cap = 22
    respect_token_budget = 23
    respect_input_budget = 24
    requeue_victim_first = 25
    forget_victim_progress = 26
    forget_victim_placeholders = 27
    forget_victim_drafts = 28
    reset_only_unused_pool = 29
    clear_hashes_on_reset = 30
    drop_stale_output_on_reset = 31
    ignore_output_of_finished = 32
    trim_output_after_stop = 33
    remove_aborted_from_queues = 34
    finish_once = 35
    drain_stale_outputs = 36
    keep_stale_output_off_counters = 37
    stop_scheduling_at_max_tokens = 38
    count_only_certain_tokens = 39
    roll_back_rejected_drafts = 40
    roll_back_rejected_placeholders = 41
    ignore_drafts_of_prefill_chunks = 42
    cap_positions_at_model_length = 43
    fence_in_flight_frees = 44
    fence_at_last_scheduled_step = 45
    hold_blocks_until_load_done = 46
    release_hold_if_load_already_done = 47
    hold_blocks_until_sent = 48
    publish_loads_when_done = 49
    recompute_last_loaded_token = 50
    truncate_at_invalid_block = 51
    reserve_for_inflight_prefills = 52
    reserve_spec_step_for_loads = 53
    drain_block_holders_first = 54
    wait_for_remote_load = 55
    drop_stale_output_of_producers = 56
    stay_awake_for_delayed_frees = 57
    drop_hit_before_drafting_head = 58
    count_loaded_tokens_exactly = 59
    replace_resumed_table = 60
    send_resumed_as_new = 61
    send_table_growth = 62
    send_adopted_blocks = 63
    tell_finished_requests = 64
    tell_preempted_requests = 65
    publish_full_blocks = 66
