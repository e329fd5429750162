"""Rules: the guards that vLLM has, by name; each is on unless a scope switches it off."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.rules import Rule


@dataclass(frozen=True)
class RuleInfo:
    """What a rule requires, where vLLM has it, and the public reports that it answers."""

    rule: Rule
    requires: str
    where: str
    reports: tuple[str, ...] = ()


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_ASYNC = "vllm/v1/core/sched/async_scheduler.py"
_POOL = "vllm/v1/core/block_pool.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"
_TYPE = "vllm/v1/core/single_type_kv_cache_manager.py"

RULES = (
    RuleInfo(
        Rule.evict_hash_on_reuse,
        "A block that is handed out anew loses its published hash.",
        f"{_POOL}: get_new_blocks",
        ("vllm#4761", "vllm#5364"),
    ),
    RuleInfo(
        Rule.take_hit_from_free_queue,
        "A hit block that sits in the free queue leaves it when it is pinned.",
        f"{_POOL}: touch",
        ("vllm#16825", "mini-sglang#52"),
    ),
    RuleInfo(
        Rule.free_at_last_reference,
        "A block returns to the free queue only when its last holder lets go.",
        f"{_POOL}: free_blocks",
        ("dynamo#13398", "TensorRT-LLM#14937"),
    ),
    RuleInfo(
        Rule.free_tail_first,
        "A request's blocks are released last block first.",
        f"{_TYPE}: free; {_SCHEDULER}: _drain_deferred_frees",
    ),
    RuleInfo(
        Rule.reuse_unpublished_first,
        "A released block without a hash goes to the front of the free queue.",
        f"{_POOL}: free_blocks",
    ),
    RuleInfo(
        Rule.keep_published_longest,
        "A released block with a hash goes to the end of the free queue.",
        f"{_POOL}: free_blocks",
    ),
    RuleInfo(
        Rule.check_capacity_before_pinning,
        "The capacity is checked before any hit is pinned or any block taken.",
        f"{_MANAGER}: allocate_slots",
        ("vllm#11562",),
    ),
    RuleInfo(
        Rule.count_evictable_hits,
        "Hits that sit in the free queue count as taken in the capacity check.",
        f"{_TYPE}: get_num_blocks_to_allocate",
        ("vllm#11562",),
    ),
    RuleInfo(
        Rule.pin_hits_before_allocating,
        "Hits are pinned before new blocks are taken from the queue.",
        f"{_MANAGER}: allocate_slots",
        ("vllm#10507",),
    ),
    RuleInfo(
        Rule.recompute_last_token,
        "A prefix hit leaves at least the last token to compute.",
        f"{_MANAGER}: get_computed_blocks",
    ),
    RuleInfo(
        Rule.hash_whole_prefix,
        "A block's hash covers the whole prefix up to its end.",
        "vllm/v1/core/kv_cache_utils.py: hash_block_tokens",
        ("vllm#12621", "aibrix#2329"),
    ),
    RuleInfo(
        Rule.hash_includes_salt,
        "A block's hash covers what keeps requests apart: salt, adapter, images.",
        "vllm/v1/core/kv_cache_utils.py: generate_block_hash_extra_keys",
        ("vllm#44701",),
    ),
    RuleInfo(
        Rule.publish_committed_tokens_only,
        "No block is published whose tokens may still be rejected.",
        f"{_MANAGER}: allocate_slots",
        ("vllm#18668", "vllm#49449"),
    ),
    RuleInfo(
        Rule.reserve_full_sequence,
        "An admission must have room for its whole known sequence.",
        f"{_MANAGER}: allocate_slots, full_sequence_must_fit",
        ("vllm#25538", "vllm#37307"),
    ),
    RuleInfo(
        Rule.reserve_lookahead,
        "Slots for the drafter's own positions are reserved with the tokens.",
        f"{_SCHEDULER}: schedule; {_MANAGER}: allocate_slots",
        ("vllm#16370",),
    ),
    RuleInfo(
        Rule.cap_slots_at_model_length,
        "No slot past the model length is reserved.",
        f"{_MANAGER}: allocate_slots",
    ),
    RuleInfo(
        Rule.drop_victim_from_step,
        "A victim that was already scheduled in this call leaves the step.",
        f"{_SCHEDULER}: schedule",
        ("vllm#23347", "vllm#28558"),
    ),
    RuleInfo(
        Rule.refund_victim_budget,
        "A victim taken out of the step gives its budgets back.",
        f"{_SCHEDULER}: schedule",
        ("vllm#23347",),
    ),
    RuleInfo(
        Rule.step_back_cursor_after_victim,
        "When a victim before the cursor leaves the list, the cursor moves back.",
        f"{_SCHEDULER}: schedule",
        ("vllm#49097",),
    ),
    RuleInfo(
        Rule.preempt_policy_last,
        "The victim is the policy's last among the running requests.",
        f"{_SCHEDULER}: schedule",
        ("vllm#41951",),
    ),
    RuleInfo(
        Rule.victim_must_be_freeable,
        "Nobody is preempted whose blocks cannot be returned at once.",
        f"{_SCHEDULER}: schedule, _request_blocks_can_be_freed",
        ("vllm#45357",),
    ),
    RuleInfo(
        Rule.admit_nobody_after_preemption,
        "A call of schedule that preempts admits nobody.",
        f"{_SCHEDULER}: schedule",
        ("vllm#25538",),
    ),
    RuleInfo(
        Rule.respect_request_cap,
        "No request is admitted while max_num_seqs run.",
        f"{_SCHEDULER}: schedule",
        ("nano-vllm#265",),
    ),
    RuleInfo(
        Rule.respect_token_budget,
        "A step schedules no more than max_num_scheduled_tokens.",
        f"{_SCHEDULER}: schedule",
        ("TensorRT-LLM#13318",),
    ),
    RuleInfo(
        Rule.respect_input_budget,
        "Tokens and draft slots of a step fit in max_num_batched_tokens.",
        f"{_SCHEDULER}: schedule",
    ),
    RuleInfo(
        Rule.requeue_victim_first,
        "A victim goes to the front of the waiting queue, or into its rank.",
        f"{_SCHEDULER}: _preempt_request; vllm/v1/core/sched/request_queue.py",
        ("vllm#41951", "vllm#33499"),
    ),
    RuleInfo(
        Rule.forget_victim_progress,
        "A preempted request has computed nothing.",
        f"{_SCHEDULER}: _preempt_request",
    ),
    RuleInfo(
        Rule.forget_victim_placeholders,
        "A preempted request has no placeholders.",
        f"{_SCHEDULER}: _preempt_request",
        ("vllm#48245",),
    ),
    RuleInfo(
        Rule.forget_victim_drafts,
        "A preempted request has no drafts.",
        f"{_SCHEDULER}: _preempt_request",
        ("vllm#46899",),
    ),
    RuleInfo(
        Rule.reset_only_unused_pool,
        "The prefix cache is reset only while no block is in use.",
        f"{_POOL}: reset_prefix_cache",
        ("vllm#28827",),
    ),
    RuleInfo(
        Rule.clear_hashes_on_reset,
        "A reset withdraws every published hash.",
        f"{_POOL}: reset_prefix_cache",
        ("vllm#17103",),
    ),
    RuleInfo(
        Rule.drop_stale_output_on_reset,
        "Output in flight at a reset of running requests is dropped, not delivered.",
        f"{_SCHEDULER}: reset_prefix_cache, update_from_output",
        ("vllm#42043",),
    ),
    RuleInfo(
        Rule.ignore_output_of_finished,
        "The output of a request that has finished meanwhile is ignored.",
        f"{_SCHEDULER}: update_from_output",
        ("sglang#34149",),
    ),
    RuleInfo(
        Rule.trim_output_after_stop,
        "Sampled tokens after a stop inside one accepted run are dropped.",
        f"{_SCHEDULER}: _update_request_with_output",
    ),
    RuleInfo(
        Rule.remove_aborted_from_queues,
        "An aborted request leaves its queue.",
        f"{_SCHEDULER}: finish_requests",
    ),
    RuleInfo(
        Rule.finish_once,
        "A request that is finished is not finished again.",
        f"{_SCHEDULER}: finish_requests",
        ("TensorRT-LLM#12816",),
    ),
    RuleInfo(
        Rule.drain_stale_outputs,
        "A preempted request is not resumed before its deliverable output in flight has come.",
        f"{_SCHEDULER}: schedule",
        ("vllm#48245", "vllm-gaudi#1794"),
    ),
    RuleInfo(
        Rule.keep_stale_output_off_counters,
        "Stale output does not touch the counters of the new incarnation.",
        f"{_SCHEDULER}: update_from_output; {_ASYNC}: _update_request_with_output",
        ("vllm#48245", "vllm#46066"),
    ),
    RuleInfo(
        Rule.stop_scheduling_at_max_tokens,
        "A request is not scheduled once the steps in flight are certain to reach max_tokens.",
        f"{_SCHEDULER}: schedule",
        ("vllm#27922",),
    ),
    RuleInfo(
        Rule.count_only_certain_tokens,
        "What is certain counts no draft as accepted.",
        f"{_SCHEDULER}: schedule",
        ("vllm#29542",),
    ),
    RuleInfo(
        Rule.roll_back_rejected_drafts,
        "Rejected drafts are taken off the computed tokens.",
        f"{_SCHEDULER}: update_from_output",
    ),
    RuleInfo(
        Rule.roll_back_rejected_placeholders,
        "Rejected drafts are taken off the placeholders.",
        f"{_SCHEDULER}: update_from_output",
        ("vllm#46066",),
    ),
    RuleInfo(
        Rule.ignore_drafts_of_prefill_chunks,
        "Drafts proposed for a prefill chunk are not taken.",
        f"{_SCHEDULER}: update_draft_token_ids",
    ),
    RuleInfo(
        Rule.cap_positions_at_model_length,
        "No position past the model length is scheduled.",
        f"{_SCHEDULER}: schedule",
    ),
    RuleInfo(
        Rule.fence_in_flight_frees,
        "Blocks that a dispatched step may still write come back only when it is processed.",
        f"{_SCHEDULER}: _free_request_blocks",
        ("vllm#45357",),
    ),
    RuleInfo(
        Rule.fence_at_last_scheduled_step,
        "The fence is the last step scheduled at the time of the free.",
        f"{_SCHEDULER}: _free_request_blocks",
        ("vllm#45357",),
    ),
    RuleInfo(
        Rule.hold_blocks_until_load_done,
        "The blocks of an aborted load stay held until the load is done.",
        f"{_SCHEDULER}: finish_requests",
        ("vllm#32255",),
    ),
    RuleInfo(
        Rule.release_hold_if_load_already_done,
        "An abort after the load was reported holds nothing back.",
        f"{_SCHEDULER}: finish_requests",
        ("vllm#32255",),
    ),
    RuleInfo(
        Rule.hold_blocks_until_sent,
        "A finished request's blocks stay held until the connector has sent them.",
        f"{_SCHEDULER}: _free_request",
        ("TensorRT-LLM#12816",),
    ),
    RuleInfo(
        Rule.publish_loads_when_done,
        "Blocks that a load fills are published when it is done.",
        f"{_SCHEDULER}: schedule, delay_cache_blocks",
    ),
    RuleInfo(
        Rule.recompute_last_loaded_token,
        "A load of the whole prompt leaves the last token to compute.",
        f"{_SCHEDULER}: _update_waiting_for_remote_kv",
    ),
    RuleInfo(
        Rule.truncate_at_invalid_block,
        "A failed load takes the computed tokens back to the first bad block.",
        f"{_SCHEDULER}: _update_requests_with_invalid_blocks",
        ("vllm#49250",),
    ),
    RuleInfo(
        Rule.reserve_for_inflight_prefills,
        "A load is admitted only beside what prefills and loads in flight still need.",
        f"{_SCHEDULER}: _inflight_prefill_reserved_blocks",
        ("vllm#45387", "vllm#45388", "vllm#27074", "vllm#40968"),
    ),
    RuleInfo(
        Rule.reserve_spec_step_for_loads,
        "That reserve includes the slots of a speculative step.",
        f"{_SCHEDULER}: _spec_decode_step_blocks",
    ),
    RuleInfo(
        Rule.drain_block_holders_first,
        "Waiting requests that hold blocks are served before others.",
        f"{_SCHEDULER}: schedule, kv_holding_waiting",
        ("vllm#53130",),
    ),
    RuleInfo(
        Rule.wait_for_remote_load,
        "A request is not scheduled before its load is reported.",
        f"{_SCHEDULER}: _handle_blocked_waiting_request",
    ),
    RuleInfo(
        Rule.drop_stale_output_of_producers,
        "A preempted request that must hand over its KV drops its output in flight.",
        f"{_SCHEDULER}: schedule, requires_kv_delivery",
        ("vllm-gaudi#1794",),
    ),
    RuleInfo(
        Rule.stay_awake_for_delayed_frees,
        "A finished request whose blocks are held is a reason to go on stepping.",
        f"{_SCHEDULER}: has_finished_requests",
        ("vllm#43433", "local-inference-lab/vllm#191"),
    ),
    RuleInfo(
        Rule.drop_hit_before_drafting_head,
        "Where a drafting head needs it, the last hit block is computed again.",
        f"{_TYPE}: FullAttentionManager.find_longest_cache_hit",
    ),
    RuleInfo(
        Rule.count_loaded_tokens_exactly,
        "A load that ends inside a block counts its tokens, not its blocks.",
        f"{_SCHEDULER}: schedule, _update_waiting_for_remote_kv",
        ("vllm#34616",),
    ),
)
