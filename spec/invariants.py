"""Invariants: what must hold in every state and in every step, each with its reason.

The kernels are in state_invariants and step_invariants; each answers VACUOUS where the state or
step gives it nothing to test, HOLDS or BROKEN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvproof.model.rules import Rule
from kvproof.spec.masks import Id


@dataclass(frozen=True)
class Invariant:
    """One property in words; its kernel has the id in snake case."""

    id: Id
    kind: Literal["state", "step"]
    statement: str
    why: str
    ensured: str
    broken_by: tuple[Rule, ...]


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_POOL = "vllm/v1/core/block_pool.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"
_TYPE = "vllm/v1/core/single_type_kv_cache_manager.py"

INVARIANTS = (
    Invariant(
        Id.BlockConservation,
        "state",
        "The free queue, the block tables and the deferred frees account for every block: a "
        "reference count equals the number of holders, the free queue holds each block without a "
        "holder exactly once, and the null block is never handed out.",
        "A block that is lost shrinks the pool until nothing is admitted; a block that is free and "
        "held is given to a second owner, which overwrites the first one's KV.",
        f"{_POOL}: get_new_blocks, touch, free_blocks; {_MANAGER}: allocate_slots checks the "
        "capacity, hits in the free queue included, before it pins or takes anything",
        (
            Rule.take_hit_from_free_queue,
            Rule.free_at_last_reference,
            Rule.count_evictable_hits,
            Rule.cap_slots_at_model_length,
        ),
    ),
    Invariant(
        Id.PublishedSound,
        "state",
        "A published hash names a block whose slots hold exactly that prefix, or will hold it once "
        "the steps already dispatched have run in order, whatever drafts they reject.",
        "Whoever hits a published block reads it without looking: a wrong one is a wrong answer "
        "for another request.",
        f"{_POOL}: get_new_blocks withdraws the hash of a reused block; {_MANAGER}: allocate_slots "
        f"publishes no token that is not committed; {_SCHEDULER}: _update_waiting_for_remote_kv "
        "publishes loaded blocks when they are there",
        (
            Rule.evict_hash_on_reuse,
            Rule.pin_hits_before_allocating,
            Rule.publish_committed_tokens_only,
            Rule.publish_loads_when_done,
            Rule.truncate_at_invalid_block,
            Rule.count_loaded_tokens_exactly,
            Rule.roll_back_rejected_placeholders,
        ),
    ),
    Invariant(
        Id.ReadsCorrect,
        "state",
        "A step whose output is delivered finds, at every position below its start, the KV of its "
        "own request's prefix, and knows every token that it computes.",
        "This is what all of the bookkeeping is for: anything else is a wrong answer.",
        "all of the block pool and the KV cache manager; checked on the ghost device",
        (Rule.wait_for_remote_load, Rule.forget_victim_progress, Rule.roll_back_rejected_drafts),
    ),
    Invariant(
        Id.NoReuseInFlight,
        "state",
        "The blocks of a transfer under way belong to its request alone, unpublished while they "
        "are written, and no dispatched step writes them.",
        "A transfer is in no order with the steps: it overwrites, or is overwritten, at any time.",
        f"{_SCHEDULER}: _free_request_blocks and its fence, finish_requests holds the blocks of an "
        "aborted load, _free_request keeps blocks that the connector still sends",
        (
            Rule.fence_in_flight_frees,
            Rule.fence_at_last_scheduled_step,
            Rule.hold_blocks_until_load_done,
            Rule.hold_blocks_until_sent,
            Rule.finish_once,
        ),
    ),
    Invariant(
        Id.CountersConsistent,
        "state",
        "In-flight and stale tokens equal the sums over the in-flight steps; computed tokens "
        "exceed known ones only by placeholders and drafts; nothing is negative; no request has "
        "more tokens than its limits allow.",
        "A counter that is off makes the request skip positions, stall, or trip an assertion "
        "that stops the whole engine.",
        f"{_SCHEDULER}: _update_after_schedule, update_from_output, _preempt_request; "
        "vllm/v1/core/sched/async_scheduler.py",
        (
            Rule.keep_stale_output_off_counters,
            Rule.forget_victim_placeholders,
            Rule.roll_back_rejected_drafts,
        ),
    ),
    Invariant(
        Id.SlotsRespected,
        "state",
        "At most max_num_seqs requests run.",
        "The model runner has that many rows.",
        f"{_SCHEDULER}: schedule",
        (Rule.respect_request_cap,),
    ),
    Invariant(
        Id.QueueStatusAgree,
        "state",
        "A request's status and the queue that holds it agree, each live request stands in exactly "
        "one queue, and only running requests and block holders have blocks.",
        "A request in no queue hangs for ever; one in two is scheduled twice.",
        f"{_SCHEDULER}: schedule, _preempt_request, finish_requests, _enqueue_waiting_request",
        (Rule.remove_aborted_from_queues, Rule.check_capacity_before_pinning),
    ),
    Invariant(
        Id.OutputExact,
        "state",
        "Every token is delivered to its request in its place: none twice, none out of order, none "
        "lost across preemption, reset, rejection or stop.",
        "The client sees the tokens; a gap or a repeat is a wrong answer.",
        f"{_SCHEDULER}: update_from_output, the waiting scan of schedule skips requests with stale "
        "output, _preempt_request",
        (
            Rule.drain_stale_outputs,
            Rule.drop_stale_output_on_reset,
            Rule.trim_output_after_stop,
            Rule.ignore_output_of_finished,
        ),
    ),
    Invariant(
        Id.FreedExactlyOnce,
        "state",
        "A request that is gone has no blocks; one that is finished keeps them only while a "
        "transfer that will report still uses them; a deferred free waits for a step in flight.",
        "Blocks that wait for an event which never comes are lost to the pool.",
        f"{_SCHEDULER}: finish_requests, _free_request, _update_from_kv_xfer_finished, "
        "_drain_deferred_frees",
        (Rule.release_hold_if_load_already_done,),
    ),
    Invariant(
        Id.Isolation,
        "state",
        "Two requests share a block only if their prefixes, salt included, are equal up to its "
        "end.",
        "Sharing by mistake hands one client's context to another.",
        "vllm/v1/core/kv_cache_utils.py: hash_block_tokens chains over the whole prefix and the "
        "extra keys",
        (Rule.hash_whole_prefix, Rule.hash_includes_salt),
    ),
    Invariant(
        Id.EvictionOrder,
        "state",
        "In the free queue unpublished blocks stand before published ones, and the end of a prefix "
        "before its beginning.",
        "A prefix whose first block is gone is useless, however much of it is left.",
        f"{_POOL}: free_blocks; {_TYPE}: free releases the tail first",
        (
            Rule.free_tail_first,
            Rule.reuse_unpublished_first,
            Rule.keep_published_longest,
        ),
    ),
    Invariant(
        Id.NoAssertion,
        "state",
        "No assertion of vLLM fails and no error is raised.",
        "An assertion that fails in the engine's loop ends the engine and every request in it.",
        "the assertions in schedule, update_from_output, cache_full_blocks and their kin",
        (
            Rule.recompute_last_token,
            Rule.recompute_last_loaded_token,
            Rule.respect_token_budget,
        ),
    ),
    Invariant(
        Id.BudgetRespected,
        "step",
        "Every request of a step has a positive number of tokens within its chunk cap and the "
        "model length; together they keep to the token budget, and with their draft slots to the "
        "input budget; what is left of the budgets is what was not spent.",
        "The model runner's buffers have the size of the budgets.",
        f"{_SCHEDULER}: schedule",
        (
            Rule.respect_token_budget,
            Rule.respect_input_budget,
            Rule.refund_victim_budget,
            Rule.cap_positions_at_model_length,
        ),
    ),
    Invariant(
        Id.ScheduleSet,
        "step",
        "The scheduled requests run, no victim is among them, no running request is jumped over "
        "because the list shifted, and every scheduled draft follows its request's last token.",
        "A victim in the output computes into blocks that it has given back.",
        f"{_SCHEDULER}: schedule, the priority branch of the preemption",
        (
            Rule.drop_victim_from_step,
            Rule.step_back_cursor_after_victim,
            Rule.forget_victim_drafts,
            Rule.ignore_drafts_of_prefill_chunks,
            Rule.admit_nobody_after_preemption,
        ),
    ),
    Invariant(
        Id.VictimFreeable,
        "step",
        "A request is preempted only if its blocks can be returned at once, and its preemption "
        "makes blocks free unless all of them are shared.",
        "A preemption that frees nothing costs its victim all its work for nothing.",
        f"{_SCHEDULER}: schedule asks _request_blocks_can_be_freed",
        (Rule.victim_must_be_freeable,),
    ),
    Invariant(
        Id.VictimIsLowest,
        "step",
        "The victim is the policy's last: under FCFS the last one running, under priority one that "
        "nobody ranks behind.",
        "Otherwise an important request pays for an unimportant one.",
        f"{_SCHEDULER}: schedule",
        (Rule.preempt_policy_last,),
    ),
    Invariant(
        Id.PolicyOrder,
        "step",
        "Admissions keep the queue's order but for requests that are set aside; a victim goes "
        "back ahead of those that were never admitted (FCFS) or into its rank (priority).",
        "Requests that are overtaken again and again starve.",
        f"{_SCHEDULER}: schedule, _preempt_request; vllm/v1/core/sched/request_queue.py",
        (Rule.requeue_victim_first,),
    ),
    Invariant(
        Id.WrittenSlotsOwned,
        "step",
        "Every slot that a step may write, drafts and lookahead included, lies in a block of its "
        "request which nobody else reads otherwise at that position.",
        "A write outside one's blocks lands in somebody else's.",
        f"{_MANAGER}: allocate_slots; {_SCHEDULER}: schedule passes num_lookahead_tokens",
        (Rule.reserve_lookahead, Rule.count_evictable_hits),
    ),
    Invariant(
        Id.HitMaximal,
        "step",
        "An admission adopts the longest published run of full blocks of its prefix, at most all "
        "but the last token, and one block less where a drafting head needs it recomputed.",
        "A shorter hit is wasted work; a longer one leaves no token to compute logits from.",
        f"{_MANAGER}: get_computed_blocks; {_TYPE}: FullAttentionManager.find_longest_cache_hit",
        (Rule.drop_hit_before_drafting_head,),
    ),
    Invariant(
        Id.LeastRecentlyFreed,
        "step",
        "Blocks are handed out from the head of the free queue, and what is freed and published "
        "queues up behind what was freed before.",
        "Eviction in any other order throws away what is likely to be hit.",
        f"{_POOL}: get_new_blocks, free_blocks",
        (Rule.keep_published_longest,),
    ),
    Invariant(
        Id.ResetSound,
        "step",
        "After a successful reset no block is in use and none is published; a reset of running "
        "requests, which preempts them all, is done.",
        "A reset follows a change of weights: an older hit is KV of another model. One that raises "
        "has preempted every running request for nothing.",
        f"{_POOL}: reset_prefix_cache",
        (Rule.reset_only_unused_pool, Rule.clear_hashes_on_reset),
    ),
    Invariant(
        Id.NoWastedStep,
        "step",
        "A running request is left out for the sake of max_tokens exactly if the steps in flight "
        "are certain to bring it there, every draft rejected.",
        "A step too many computes for nothing; one too few idles the device at every end.",
        f"{_SCHEDULER}: schedule",
        (
            Rule.stop_scheduling_at_max_tokens,
            Rule.count_only_certain_tokens,
            Rule.roll_back_rejected_placeholders,
        ),
    ),
    Invariant(
        Id.NoStall,
        "step",
        "While a request waits, runs or is held the engine has a reason to step; and if nothing "
        "runs, nothing is in flight and no transfer is under way, a call of schedule that has "
        "requests waiting schedules something.",
        "Otherwise nothing moves ever again: the engine looks healthy and admits nobody.",
        f"{_SCHEDULER}: has_requests, schedule, _inflight_prefill_reserved_blocks",
        (
            Rule.reserve_for_inflight_prefills,
            Rule.reserve_spec_step_for_loads,
            Rule.drain_block_holders_first,
            Rule.stay_awake_for_delayed_frees,
        ),
    ),
    Invariant(
        Id.HandOver,
        "step",
        "A request that must hand over its KV still has its blocks when it finishes by itself.",
        "The other side waits for KV that a preemption has already given away.",
        f"{_SCHEDULER}: _preempt_request drops the output in flight of producers",
        (Rule.drop_stale_output_of_producers,),
    ),
    Invariant(
        Id.AdmissionFits,
        "step",
        "With scheduler_reserve_full_isl an admission leaves room for the rest of its known "
        "sequence.",
        "An admission that fits by its first chunk only is preempted later, again and again.",
        f"{_MANAGER}: allocate_slots, full_sequence_must_fit",
        (Rule.reserve_full_sequence,),
    ),
)
