"""Where each rule is shown to be needed, and what goes wrong without it."""

from __future__ import annotations

from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.spec.masks import Id

_R = RequestSpec
_E = External

SEEDS = {
    Rule.hash_whole_prefix: Scope(
        name="equal-last-blocks",
        requests=(
            _R(prompt=(1, 1), max_tokens=1),
            _R(prompt=(2,), max_tokens=1),
            _R(prompt=(2, 1, 1), max_tokens=1),
        ),
        num_blocks=7,
        block_size=1,
        max_num_seqs=3,
        max_num_batched_tokens=6,
        max_model_len=4,
    ),
    Rule.respect_input_budget: Scope(
        name="draft-slots",
        num_speculative_tokens=1,
        spec_method="draft_model",
        requests=(_R(prompt=(1, 1), max_tokens=1),),
        num_blocks=4,
        block_size=1,
        max_num_batched_tokens=2,
        max_model_len=3,
    ),
    Rule.forget_victim_drafts: Scope(
        name="resumed-in-chunks",
        async_scheduling=True,
        num_speculative_tokens=1,
        spec_method="eagle",
        requests=(_R(prompt=(1,), max_tokens=4), _R(prompt=(1, 1, 2), max_tokens=4)),
        num_blocks=6,
        max_num_batched_tokens=3,
        max_model_len=7,
    ),
    Rule.ignore_drafts_of_prefill_chunks: Scope(
        name="drafts-in-chunks",
        num_speculative_tokens=1,
        requests=(_R(prompt=(1, 1, 1), max_tokens=2),),
        num_blocks=7,
        block_size=1,
        max_num_batched_tokens=2,
        max_model_len=6,
    ),
    Rule.reserve_spec_step_for_loads: Scope(
        name="loads-under-speculation",
        num_speculative_tokens=1,
        kv_role="kv_consumer",
        requests=(
            _R(prompt=(1, 2), max_tokens=1, external=_E(2)),
            _R(prompt=(2, 1), max_tokens=1, external=_E(2)),
        ),
        num_blocks=5,
        block_size=1,
        max_num_batched_tokens=4,
        max_model_len=4,
    ),
    Rule.drain_stale_outputs: Scope(
        name="three-in-flight",
        async_scheduling=True,
        v2_model_runner=True,
        pipeline_parallel_size=2,
        requests=(
            _R(prompt=(1,), max_tokens=3, may_abort=True),
            _R(prompt=(1,), max_tokens=3, may_abort=True),
            _R(prompt=(1,), max_tokens=3, may_abort=True),
        ),
        num_blocks=6,
        block_size=1,
        max_num_seqs=3,
        max_num_batched_tokens=4,
        max_model_len=4,
    ),
}
"""A scope for each rule that no named scope needs, or that one shows with a longer run."""

PAST = {
    Rule.drain_stale_outputs: (Id.NoWastedStep, Id.PublishedSound),
    Rule.drop_stale_output_on_reset: (Id.NoWastedStep, Id.PublishedSound),
    Rule.fence_at_last_scheduled_step: (Id.FreedExactlyOnce,),
    Rule.hash_includes_salt: (Id.PublishedSound,),
    Rule.hash_whole_prefix: (Id.PublishedSound, Id.EvictionOrder),
    Rule.wait_for_remote_load: (Id.PublishedSound, Id.NoReuseInFlight),
}
"""Invariants that fall first and say less than what falls after them: the search passes over."""

ACCOUNTS = {
    Rule.evict_hash_on_reuse: "R0's published block is free and comes to the head of the queue. "
    "R1 takes it for its third token, but the block keeps the hash of R0's prompt. From now on "
    "the hash promises two tokens that the step in flight is overwriting: the next request with "
    "that prompt would read R1's KV.",
    Rule.take_hit_from_free_queue: "R1 hits the block that R0 has left in the free queue. Its "
    "reference count goes up, but it stays in the queue, so it is held and free at once: the "
    "next allocations hand it to a second owner.",
    Rule.free_at_last_reference: "R0 and R1 share a block. The first of them to finish puts it "
    "into the free queue although the other still holds it, and the second one puts it there "
    "again. A block that stands in the queue twice is given to two requests, and a linked list "
    "loses what stood between.",
    Rule.free_tail_first: "R0 finishes and its blocks return in the order of the prompt, so that "
    "the first block of the prefix will be evicted first. What is left is unreachable: a lookup "
    "stops at the first block that is missing.",
    Rule.reuse_unpublished_first: "R0 leaves a block that holds no full prefix, R1 leaves one "
    "that does. Queued in the order in which they came back, the published one is evicted first, "
    "and the block that nobody can hit is kept.",
    Rule.keep_published_longest: "The block of R0's prefix goes to the front of the queue, "
    "before a block that was never used. The next allocation evicts a prefix while an empty "
    "block is at hand.",
    Rule.check_capacity_before_pinning: "R1 hits two blocks of R0 that are in the free queue. "
    "They are pinned at once, and only then the check finds too few free blocks, since it counts "
    "the hits as still to be taken. R1 stays in the waiting queue and holds blocks that nobody "
    "will free; nothing runs and nothing can be admitted.",
    Rule.count_evictable_hits: "R1 was preempted, and its block waits in the free queue, the "
    "only one there. When it comes back it hits that block and needs one more. The check counts "
    "the one new block only and finds one free, but pinning the hit takes exactly that one: the "
    "queue is empty when the new block is popped.",
    Rule.pin_hits_before_allocating: "R1 comes back, and the block that it hits stands at the "
    "head of the free queue. The new block is popped first and is that very block: R1 holds it "
    "twice, as its prefix and as the place where it writes, and overwrites its own prefix.",
    Rule.recompute_last_token: "R1 hits its whole prompt. No token is left to compute, so there "
    "is nothing to draw logits from, and the scheduler's assertion that an admission has tokens "
    "to schedule ends the engine.",
    Rule.hash_whole_prefix: "The second blocks of R0 and R2 hold the same token behind different "
    "first tokens. If a hash covers only the block's own tokens, R2 is given R0's second block: "
    "its KV was computed behind another prefix, and R2 answers from R0's context.",
    Rule.hash_includes_salt: "R0 and R1 start with the same token but R1 has a cache salt, which "
    "is to keep it apart. Without the salt in the hash R1 hits R0's block, and one client can "
    "tell from the time to its first token what another has asked.",
    Rule.publish_committed_tokens_only: "R0's step carries one draft, and the block of the draft "
    "is published with the step. If the draft is rejected, the hash promises a token that was "
    "never part of the sequence, over KV that is garbage.",
    Rule.reserve_full_sequence: "R1 is admitted with its first chunk although the pool has no "
    "room for the rest of its prompt. The rest can only come by preempting someone, and the one "
    "that is preempted comes back the same way.",
    Rule.reserve_lookahead: "The drafter writes one position past R0's scheduled token, and no "
    "block was reserved for it. The write goes through an entry of the block table that is not "
    "R0's.",
    Rule.cap_slots_at_model_length: "R0 stands at the end of what the model length allows. The "
    "two lookahead slots are reserved past it, and R0 gets more blocks than a row of the block "
    "table has places.",
    Rule.drop_victim_from_step: "R1 is scheduled first, then R0 needs a block and R1 is its "
    "victim. R1's tokens stay in the step, although R1 runs no more and its blocks are given "
    "back: more is scheduled than runs, and the device writes into blocks of nobody.",
    Rule.refund_victim_budget: "R1 is scheduled, becomes R0's victim and leaves the step, but "
    "the tokens that it was given are not returned to the budgets. The budgets say that more was "
    "spent than the step has: whoever stands behind gets too little.",
    Rule.step_back_cursor_after_victim: "R2 stands first in the running list and is preempted "
    "for R0, the second. The list closes up, the cursor goes on as if it had not, and R1 is "
    "jumped over: it runs, has tokens to compute and budget left, and gets nothing in this step.",
    Rule.preempt_policy_last: "R0 came first, and it is R0 that loses its blocks when it needs "
    "one more itself: the first of the list is preempted instead of the last. The scan, which "
    "counts on the last, then schedules a request that does not run.",
    Rule.victim_must_be_freeable: "R0 needs a block and preempts R1, but a step in flight still "
    "writes R1's block, so it goes behind a fence and not into the pool. R1 has lost its work "
    "and R0 has gained nothing.",
    Rule.admit_nobody_after_preemption: "R1 is preempted for R0, and the waiting scan of the "
    "same call admits it again with what is left. A victim of the step is in the step's output, "
    "as a preempted and as a resumed request at once.",
    Rule.respect_request_cap: "One request may run, and R1 is admitted beside R0. The model "
    "runner has one row: the assertion on the number of running requests ends the engine.",
    Rule.respect_token_budget: "The step may have one token, and R0 is scheduled with its whole "
    "prompt of two. The assertion on the total ends the engine; the runner's buffers are no "
    "longer.",
    Rule.respect_input_budget: "A draft model needs an input slot beside each request's tokens. "
    "R0's two tokens fill the budget of two, the slot is the third, and the input budget goes "
    "below zero.",
    Rule.requeue_victim_first: "R2 is preempted and goes to the end of the waiting queue, behind "
    "R0, which was never admitted. R0 takes the room that R2 needs, and under load there is "
    "always another to take it.",
    Rule.forget_victim_progress: "R1 is preempted and loses its blocks, but it still counts its "
    "first token as computed. It comes back with a fresh block in that place and goes on from "
    "the second token: the step reads a slot that holds no KV of R1.",
    Rule.forget_victim_placeholders: "R0 is preempted by the reset with a step in flight. It "
    "starts anew but keeps the placeholder of an output that will be treated as the old "
    "incarnation's: the counter never comes down again.",
    Rule.forget_victim_drafts: "R1 is preempted with a draft pending and comes back in chunks. "
    "The chunk that completes its sequence carries the old draft, a placeholder for a token that "
    "the worker has thrown away with the preemption.",
    Rule.reset_only_unused_pool: "The prefix cache is reset while R0 runs, and the reset reports "
    "success. R0's block is still in use and goes on with KV of before the reset, which its next "
    "full block publishes.",
    Rule.clear_hashes_on_reset: "The reset reports success, but the block of R0's prompt is "
    "still published. After a change of weights a request with that prompt hits KV of the old "
    "model.",
    Rule.drop_stale_output_on_reset: "R0 is preempted by the reset while its first token is in "
    "flight, and starts anew at once. The old output is delivered, and so is the new step's, "
    "which samples the same position: the client gets its first token twice.",
    Rule.ignore_output_of_finished: "R0 stops at its first token while the next step is already "
    "in flight. Its blocks are held for sending, so the scheduler still knows it when that "
    "step's output comes, and appends a token after the stop.",
    Rule.trim_output_after_stop: "R0's step brings an accepted draft and one more token, and the "
    "first of them reaches max_tokens. Both are delivered: the client gets a token past the end.",
    Rule.remove_aborted_from_queues: "R0 is aborted while it waits, and stays in the waiting "
    "queue. The next call of schedule takes up a request that the scheduler does not know any "
    "more.",
    Rule.finish_once: "R0 is finished and its block is being sent. The abort of a client that "
    "hung up late finishes it again and frees the block under the transfer.",
    Rule.drain_stale_outputs: "R2 is preempted with its first token in flight and resumed before "
    "that token has come. The resumed step does not know it and samples the same position again; "
    "both are delivered, and R2's client gets its first token twice.",
    Rule.keep_stale_output_off_counters: "R1 is preempted with an output in flight, and its "
    "counters are reset. The output is then charged to the new incarnation, which has no "
    "placeholder: the counter goes below zero, and the assertion ends the engine.",
    Rule.stop_scheduling_at_max_tokens: "R0 may have one token, and the step that samples it is "
    "in flight. It is scheduled once more: the device computes a token that nobody will get, in "
    "a block that another request could use.",
    Rule.count_only_certain_tokens: "Two tokens of R0's three are certain, the third only if the "
    "draft in flight is accepted. It is counted as if it were, and R0 is left out of a step that "
    "it needs whenever the draft is rejected.",
    Rule.roll_back_rejected_drafts: "R0's two drafts are rejected, but their positions stay "
    "counted as computed. The next step starts behind them, over two positions whose tokens are "
    "not known and whose KV is the drafts'.",
    Rule.roll_back_rejected_placeholders: "Each rejected draft leaves a placeholder behind that "
    "no output will ever fill. R0 runs on with a count of tokens that do not exist, publishes a "
    "block of them, and is scheduled past its end.",
    Rule.ignore_drafts_of_prefill_chunks: "The drafter proposes a token after the first chunk of "
    "R0's prompt, where the prompt itself goes on. The proposal is kept, and the second chunk "
    "carries it behind the prompt's last token, which it does not follow.",
    Rule.cap_positions_at_model_length: "R0 has two drafts and room for one position. All are "
    "scheduled, and the last one lies past the model length, outside of the position table and "
    "of the block table's row.",
    Rule.fence_in_flight_frees: "R0 is aborted while the step that writes its block is in "
    "flight, and the block returns to the pool at once. R1 gets it for a load from the "
    "connector, which is in no order with the step: whichever writes last wins.",
    Rule.fence_at_last_scheduled_step: "R0 is aborted with two steps in flight. Its block waits "
    "for the first of them only, is handed to R1 for a load, and the second step still writes "
    "it.",
    Rule.hold_blocks_until_load_done: "R0 is aborted while the connector writes its block, and "
    "the block returns to the pool. Whoever gets it is overwritten when the transfer lands.",
    Rule.release_hold_if_load_already_done: "R0's load is done and reported, but R0 is aborted "
    "before the next call of schedule has seen to it. Its blocks are held for a report that has "
    "been and will not come again: they are lost to the pool.",
    Rule.hold_blocks_until_sent: "R0 finishes and the connector begins to send its block. The "
    "block is freed at once, and the next owner's KV is sent in its stead.",
    Rule.publish_loads_when_done: "R0's block is published when the load is asked for, not when "
    "it is there. A request that hits it meanwhile reads a block that is being written.",
    Rule.recompute_last_loaded_token: "The load brings R0's whole prompt. Nothing is left to "
    "compute, no logits can be drawn, and the assertion that an admission has tokens to schedule "
    "ends the engine.",
    Rule.truncate_at_invalid_block: "The load of R0's first block fails, but its tokens stay "
    "counted as computed. R0 goes on from the second token, the block is published, and both R0 "
    "and whoever hits it read garbage.",
    Rule.reserve_for_inflight_prefills: "Two loads are admitted side by side, each with room for "
    "what it loads only. When both are done the pool is full: R0 needs one more block for the "
    "rest of its prompt, R1 stands behind it, nobody runs that could be preempted, and nothing "
    "moves ever again.",
    Rule.reserve_spec_step_for_loads: "Two loads are admitted beside each other with room for "
    "their prompts, but not for the drafts with which a loaded request starts. When both are "
    "done R0 does not fit, R1 stands behind it, and nothing moves ever again.",
    Rule.drain_block_holders_first: "R1 has its block and its load is done; R0, which needs the "
    "same block, stands before it. R0 cannot be admitted, the scan ends there, and the only "
    "request that could run is never looked at.",
    Rule.wait_for_remote_load: "R0 is scheduled while its load is still under way. Its step "
    "reads a block in which nothing has been written yet, and the token that it samples is "
    "delivered.",
    Rule.drop_stale_output_of_producers: "R1 is preempted with an output in flight, and that "
    "output is its last. R1 finishes without any blocks, and the side that waits for its KV gets "
    "none.",
    Rule.stay_awake_for_delayed_frees: "R0 is finished, and its block is held until it is sent. "
    "No request is left, so the engine stops stepping, and the report that the transfer is done "
    "is never fetched: the block is lost until somebody else calls.",
    Rule.drop_hit_before_drafting_head: "The drafting head needs the hidden states of the last "
    "hit block, which only computing brings. R1 hits all it can, and the head drafts from states "
    "that were never computed.",
    Rule.count_loaded_tokens_exactly: "R0's load ends inside a block, after one token of two. "
    "The whole block is counted, so the second token is never computed, and the block is "
    "published with a slot that nobody has written.",
}
"""What goes wrong in the counterexample of each rule, in words."""
