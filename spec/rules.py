"""Rules: the guards that vLLM has, one entry each; a rule is on unless a scope switches it off.

The numbers that the kernels use are in model/rules.py, which `kvproof docs` makes from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope

_R = RequestSpec
_E = External

_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_ASYNC = "vllm/v1/core/sched/async_scheduler.py"
_POOL = "vllm/v1/core/block_pool.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"
_TYPE = "vllm/v1/core/single_type_kv_cache_manager.py"


_RESUMES_ON_V2 = Scope(
    name="resumes-on-v2",
    v2_model_runner=True,
    requests=(_R(prompt=(1,), max_tokens=3), _R(prompt=(2,), max_tokens=3)),
    num_blocks=4,
    block_size=1,
    max_num_batched_tokens=2,
    max_model_len=3,
)


@dataclass(frozen=True, kw_only=True)
class RuleInfo:
    """One rule: what it requires, where vLLM has it, and what goes wrong without it.

    `breaks` names invariants that fall without it, for the page of invariants; the matrix has all.
    `breaks_progress` names progress properties that do.
    `account` tells its counterexample. `seed` is a scope that needs it, where no named one does or
    one shows it with a longer run. The search for its counterexample passes over the invariants in
    `past`: they fall first and say less than what falls after them.
    """

    name: str
    requires: str
    where: str
    account: str
    breaks: tuple[str, ...] = ()
    breaks_progress: tuple[str, ...] = ()
    reports: tuple[str, ...] = ()
    seed: Scope | None = None
    past: tuple[str, ...] = ()

    @property
    def rule(self) -> Rule:
        """The rule's number."""
        return Rule[self.name]


RULES = (
    RuleInfo(
        name="evict_hash_on_reuse",
        requires="A block that is handed out anew loses its published hash.",
        where=f"{_POOL}: get_new_blocks",
        reports=("vllm#4761", "vllm#5364"),
        breaks=("PublishedSound",),
        account=(
            "R0's published block is free and comes to the head of the queue. R1 takes it for its "
            "third token, but the block keeps the hash of R0's prompt. From now on the hash "
            "promises two tokens that the step in flight is overwriting: the next request with "
            "that prompt would read R1's KV."
        ),
    ),
    RuleInfo(
        name="take_hit_from_free_queue",
        requires="A hit block that sits in the free queue leaves it when it is pinned.",
        where=f"{_POOL}: touch",
        reports=("vllm#16825", "mini-sglang#52"),
        breaks=("BlockConservation",),
        account=(
            "R1 hits the block that R0 has left in the free queue. Its reference count goes up, "
            "but it stays in the queue, so it is held and free at once: the next allocations hand "
            "it to a second owner."
        ),
    ),
    RuleInfo(
        name="free_at_last_reference",
        requires="A block returns to the free queue only when its last holder lets go.",
        where=f"{_POOL}: free_blocks",
        reports=("dynamo#13398", "TensorRT-LLM#14937"),
        breaks=("BlockConservation",),
        account=(
            "R0 and R1 share a block. The first of them to finish puts it into the free queue "
            "although the other still holds it, and the second one puts it there again. A block "
            "that stands in the queue twice is given to two requests, and a linked list loses what "
            "stood between."
        ),
    ),
    RuleInfo(
        name="free_tail_first",
        requires="A request's blocks are released last block first.",
        where=f"{_TYPE}: free; {_SCHEDULER}: _drain_deferred_frees",
        breaks=("EvictionOrder",),
        account=(
            "R0 finishes and its blocks return in the order of the prompt, so that the first block "
            "of the prefix will be evicted first. What is left is unreachable: a lookup stops at "
            "the first block that is missing."
        ),
    ),
    RuleInfo(
        name="reuse_unpublished_first",
        requires="A released block without a hash goes to the front of the free queue.",
        where=f"{_POOL}: free_blocks",
        breaks=("EvictionOrder",),
        account=(
            "R0 leaves a block that holds no full prefix, R1 leaves one that does. Queued in the "
            "order in which they came back, the published one is evicted first, and the block that "
            "nobody can hit is kept."
        ),
    ),
    RuleInfo(
        name="keep_published_longest",
        requires="A released block with a hash goes to the end of the free queue.",
        where=f"{_POOL}: free_blocks",
        breaks=(
            "EvictionOrder",
            "LeastRecentlyFreed",
        ),
        account=(
            "The block of R0's prefix goes to the front of the queue, before a block that was "
            "never used. The next allocation evicts a prefix while an empty block is at hand."
        ),
    ),
    RuleInfo(
        name="check_capacity_before_pinning",
        requires="The capacity is checked before any hit is pinned or any block taken.",
        where=f"{_MANAGER}: allocate_slots",
        reports=("vllm#11562",),
        breaks=("QueueStatusAgree",),
        breaks_progress=("NothingStuck",),
        account=(
            "R1 hits two blocks of R0 that are in the free queue. They are pinned at once, and "
            "only then the check finds too few free blocks, since it counts the hits as still to "
            "be taken. R1 stays in the waiting queue and holds blocks that nobody will free; "
            "nothing runs and nothing can be admitted."
        ),
    ),
    RuleInfo(
        name="count_evictable_hits",
        requires="Hits that sit in the free queue count as taken in the capacity check.",
        where=f"{_TYPE}: get_num_blocks_to_allocate",
        reports=("vllm#11562",),
        breaks=(
            "BlockConservation",
            "WrittenSlotsOwned",
        ),
        account=(
            "R1 was preempted, and its block waits in the free queue, the only one there. When it "
            "comes back it hits that block and needs one more. The check counts the one new block "
            "only and finds one free, but pinning the hit takes exactly that one: the queue is "
            "empty when the new block is popped."
        ),
    ),
    RuleInfo(
        name="pin_hits_before_allocating",
        requires="Hits are pinned before new blocks are taken from the queue.",
        where=f"{_MANAGER}: allocate_slots",
        reports=("vllm#10507",),
        breaks=("PublishedSound",),
        account=(
            "R1 comes back, and the block that it hits stands at the head of the free queue. The "
            "new block is popped first and is that very block: R1 holds it twice, as its prefix "
            "and as the place where it writes, and overwrites its own prefix."
        ),
    ),
    RuleInfo(
        name="recompute_last_token",
        requires="A prefix hit leaves at least the last token to compute.",
        where=f"{_MANAGER}: get_computed_blocks",
        breaks=("NoAssertion",),
        account=(
            "R1 hits its whole prompt. No token is left to compute, so there is nothing to draw "
            "logits from, and the scheduler's assertion that an admission has tokens to schedule "
            "ends the engine."
        ),
    ),
    RuleInfo(
        name="hash_whole_prefix",
        requires="A block's hash covers the whole prefix up to its end.",
        where="vllm/v1/core/kv_cache_utils.py: hash_block_tokens",
        reports=("vllm#12621", "aibrix#2329"),
        breaks=("Isolation",),
        past=(
            "PublishedSound",
            "EvictionOrder",
        ),
        seed=Scope(
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
        account=(
            "The second blocks of R0 and R2 hold the same token behind different first tokens. If "
            "a hash covers only the block's own tokens, R2 is given R0's second block: its KV was "
            "computed behind another prefix, and R2 answers from R0's context."
        ),
    ),
    RuleInfo(
        name="hash_includes_salt",
        requires="A block's hash covers what keeps requests apart: salt, adapter, images.",
        where="vllm/v1/core/kv_cache_utils.py: generate_block_hash_extra_keys",
        reports=("vllm#44701",),
        breaks=("Isolation",),
        past=("PublishedSound",),
        account=(
            "R0 and R1 start with the same token but R1 has a cache salt, which is to keep it "
            "apart. Without the salt in the hash R1 hits R0's block, and one client can tell from "
            "the time to its first token what another has asked."
        ),
    ),
    RuleInfo(
        name="publish_committed_tokens_only",
        requires="No block is published whose tokens may still be rejected.",
        where=f"{_MANAGER}: allocate_slots",
        reports=("vllm#18668", "vllm#49449"),
        breaks=("PublishedSound",),
        account=(
            "R0's step carries one draft, and the block of the draft is published with the step. "
            "If the draft is rejected, the hash promises a token that was never part of the "
            "sequence, over KV that is garbage."
        ),
    ),
    RuleInfo(
        name="reserve_full_sequence",
        requires="An admission must have room for its whole known sequence.",
        where=f"{_MANAGER}: allocate_slots, full_sequence_must_fit",
        reports=("vllm#25538", "vllm#37307"),
        breaks=("AdmissionFits",),
        breaks_progress=("NoPreemptionCycle",),
        account=(
            "R1 is admitted with its first chunk although the pool has no room for the rest of its "
            "prompt. The rest can only come by preempting someone, and the one that is preempted "
            "comes back the same way."
        ),
    ),
    RuleInfo(
        name="reserve_lookahead",
        requires="Slots for the drafter's own positions are reserved with the tokens.",
        where=f"{_SCHEDULER}: schedule; {_MANAGER}: allocate_slots",
        reports=("vllm#16370",),
        breaks=("WrittenSlotsOwned",),
        account=(
            "The drafter writes one position past R0's scheduled token, and no block was reserved "
            "for it. The write goes through an entry of the block table that is not R0's."
        ),
    ),
    RuleInfo(
        name="cap_slots_at_model_length",
        requires="No slot past the model length is reserved.",
        where=f"{_MANAGER}: allocate_slots",
        breaks=("BlockConservation",),
        account=(
            "R0 stands at the end of what the model length allows. The two lookahead slots are "
            "reserved past it, and R0 gets more blocks than a row of the block table has places."
        ),
    ),
    RuleInfo(
        name="drop_victim_from_step",
        requires="A victim that was already scheduled in this call leaves the step.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#23347", "vllm#28558"),
        breaks=("ScheduleSet",),
        account=(
            "R1 is scheduled first, then R0 needs a block and R1 is its victim. R1's tokens stay "
            "in the step, although R1 runs no more and its blocks are given back: more is "
            "scheduled than runs, and the device writes into blocks of nobody."
        ),
    ),
    RuleInfo(
        name="refund_victim_budget",
        requires="A victim taken out of the step gives its budgets back.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#23347",),
        breaks=("BudgetRespected",),
        account=(
            "R1 is scheduled, becomes R0's victim and leaves the step, but the tokens that it was "
            "given are not returned to the budgets. The budgets say that more was spent than the "
            "step has: whoever stands behind gets too little."
        ),
    ),
    RuleInfo(
        name="step_back_cursor_after_victim",
        requires="When a victim before the cursor leaves the list, the cursor moves back.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#49097",),
        breaks=("ScheduleSet",),
        account=(
            "R2 stands first in the running list and is preempted for R0, the second. The list "
            "closes up, the cursor goes on as if it had not, and R1 is jumped over: it runs, has "
            "tokens to compute and budget left, and gets nothing in this step."
        ),
    ),
    RuleInfo(
        name="preempt_policy_last",
        requires="The victim is the policy's last among the running requests.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#41951",),
        breaks=("VictimIsLowest",),
        account=(
            "R0 came first, and it is R0 that loses its blocks when it needs one more itself: the "
            "first of the list is preempted instead of the last. The scan, which counts on the "
            "last, then schedules a request that does not run."
        ),
    ),
    RuleInfo(
        name="victim_must_be_freeable",
        requires="Nobody is preempted whose blocks cannot be returned at once.",
        where=f"{_SCHEDULER}: schedule, _request_blocks_can_be_freed",
        reports=("vllm#45357",),
        breaks=("VictimFreeable",),
        breaks_progress=("NoPreemptionCycle", "EveryRequestFinishes"),
        account=(
            "R0 needs a block and preempts R1, but a step in flight still writes R1's block, so it "
            "goes behind a fence and not into the pool. R1 has lost its work and R0 has gained "
            "nothing."
        ),
    ),
    RuleInfo(
        name="admit_nobody_after_preemption",
        requires="A call of schedule that preempts admits nobody.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#25538",),
        breaks=("ScheduleSet",),
        account=(
            "R1 is preempted for R0, and the waiting scan of the same call admits it again with "
            "what is left. A victim of the step is in the step's output, as a preempted and as a "
            "resumed request at once."
        ),
    ),
    RuleInfo(
        name="respect_request_cap",
        requires="No request is admitted while max_num_seqs run.",
        where=f"{_SCHEDULER}: schedule",
        reports=("nano-vllm#265",),
        breaks=("SlotsRespected",),
        account=(
            "One request may run, and R1 is admitted beside R0. The model "
            "runner has one row: the assertion on the number of running requests ends the engine."
        ),
    ),
    RuleInfo(
        name="respect_token_budget",
        requires="A step schedules no more than max_num_scheduled_tokens.",
        where=f"{_SCHEDULER}: schedule",
        reports=("TensorRT-LLM#13318",),
        breaks=(
            "NoAssertion",
            "BudgetRespected",
        ),
        account=(
            "The step may have one token, and R0 is scheduled with its whole prompt of two. The "
            "assertion on the total ends the engine; the runner's buffers are no longer."
        ),
    ),
    RuleInfo(
        name="respect_input_budget",
        requires="Tokens and draft slots of a step fit in max_num_batched_tokens.",
        where=f"{_SCHEDULER}: schedule",
        breaks=("BudgetRespected",),
        seed=Scope(
            name="draft-slots",
            num_speculative_tokens=1,
            spec_method="draft_model",
            requests=(_R(prompt=(1, 1), max_tokens=1),),
            num_blocks=4,
            block_size=1,
            max_num_batched_tokens=2,
            max_model_len=3,
        ),
        account=(
            "A draft model needs an input slot beside each request's tokens. R0's two tokens fill "
            "the budget of two, the slot is the third, and the input budget goes below zero."
        ),
    ),
    RuleInfo(
        name="requeue_victim_first",
        requires="A victim goes to the front of the waiting queue, or into its rank.",
        where=f"{_SCHEDULER}: _preempt_request; vllm/v1/core/sched/request_queue.py",
        reports=("vllm#41951", "vllm#33499"),
        breaks=("PolicyOrder",),
        breaks_progress=("BoundedOvertaking",),
        account=(
            "R2 is preempted and goes to the end of the waiting queue, behind R0, which was never "
            "admitted. R0 takes the room that R2 needs, and under load there is always another to "
            "take it."
        ),
    ),
    RuleInfo(
        name="forget_victim_progress",
        requires="A preempted request has computed nothing.",
        where=f"{_SCHEDULER}: _preempt_request",
        breaks=("ReadsCorrect",),
        account=(
            "R1 is preempted and loses its blocks, but it still counts its first token as "
            "computed. It comes back with a fresh block in that place and goes on from the second "
            "token: the step reads a slot that holds no KV of R1."
        ),
    ),
    RuleInfo(
        name="forget_victim_placeholders",
        requires="A preempted request has no placeholders.",
        where=f"{_SCHEDULER}: _preempt_request",
        reports=("vllm#48245",),
        breaks=("CountersConsistent",),
        breaks_progress=("NothingStuck",),
        account=(
            "R0 is preempted by the reset with a step in flight. It "
            "starts anew but keeps the placeholder of an output that will be treated as the old "
            "incarnation's: the counter never comes down again."
        ),
    ),
    RuleInfo(
        name="forget_victim_drafts",
        requires="A preempted request has no drafts.",
        where=f"{_SCHEDULER}: _preempt_request",
        reports=("vllm#46899",),
        breaks=("ScheduleSet",),
        seed=Scope(
            name="resumed-in-chunks",
            async_scheduling=True,
            num_speculative_tokens=1,
            spec_method="eagle",
            requests=(_R(prompt=(1,), max_tokens=4), _R(prompt=(1, 1, 2), max_tokens=4)),
            num_blocks=6,
            max_num_batched_tokens=3,
            max_model_len=7,
        ),
        account=(
            "R1 is preempted with a draft pending and comes back in chunks. The chunk that "
            "completes its sequence carries the old draft, a placeholder for a token that the "
            "worker has thrown away with the preemption."
        ),
    ),
    RuleInfo(
        name="reset_only_unused_pool",
        requires="The prefix cache is reset only while no block is in use.",
        where=f"{_POOL}: reset_prefix_cache",
        reports=("vllm#28827",),
        breaks=("ResetSound",),
        account=(
            "The prefix cache is reset while R0 runs, and the reset reports success. R0's block is "
            "still in use and goes on with KV of before the reset, which its next full block "
            "publishes."
        ),
    ),
    RuleInfo(
        name="clear_hashes_on_reset",
        requires="A reset withdraws every published hash.",
        where=f"{_POOL}: reset_prefix_cache",
        reports=("vllm#17103",),
        breaks=("ResetSound",),
        account=(
            "The reset reports success, but the block of R0's prompt is still published. After a "
            "change of weights a request with that prompt hits KV of the old model."
        ),
    ),
    RuleInfo(
        name="drop_stale_output_on_reset",
        requires="Output in flight at a reset of running requests is dropped, not delivered.",
        where=f"{_SCHEDULER}: reset_prefix_cache, update_from_output",
        reports=("vllm#42043",),
        breaks=("OutputExact",),
        past=(
            "NoWastedStep",
            "PublishedSound",
        ),
        account=(
            "R0 is preempted by the reset while its first token is in flight, and starts anew at "
            "once. The old output is delivered, and so is the new step's, which samples the same "
            "position: the client gets its first token twice."
        ),
    ),
    RuleInfo(
        name="ignore_output_of_finished",
        requires="The output of a request that has finished meanwhile is ignored.",
        where=f"{_SCHEDULER}: update_from_output",
        reports=("sglang#34149",),
        breaks=("OutputExact",),
        account=(
            "R0 stops at its first token while the next step is already "
            "in flight. Its blocks are held for sending, so the scheduler still knows it when that "
            "step's output comes, and appends a token after the stop."
        ),
    ),
    RuleInfo(
        name="trim_output_after_stop",
        requires="Sampled tokens after a stop inside one accepted run are dropped.",
        where=f"{_SCHEDULER}: _update_request_with_output",
        breaks=("OutputExact",),
        account=(
            "R0's step brings an accepted draft and one more token, and the first of them reaches "
            "max_tokens. Both are delivered: the client gets a token past the end."
        ),
    ),
    RuleInfo(
        name="remove_aborted_from_queues",
        requires="An aborted request leaves its queue.",
        where=f"{_SCHEDULER}: finish_requests",
        breaks=("QueueStatusAgree",),
        breaks_progress=("NothingStuck",),
        account=(
            "R0 is aborted while it waits, and stays in the waiting queue. The next call of "
            "schedule takes up a request that the scheduler does not know any more."
        ),
    ),
    RuleInfo(
        name="finish_once",
        requires="A request that is finished is not finished again.",
        where=f"{_SCHEDULER}: finish_requests",
        reports=("TensorRT-LLM#12816",),
        breaks=("NoReuseInFlight",),
        account=(
            "R0 is finished and its block is being sent. The abort of a client that "
            "hung up late finishes it again and frees the block under the transfer."
        ),
    ),
    RuleInfo(
        name="drain_stale_outputs",
        requires=(
            "A preempted request is not resumed before its deliverable output in flight has come."
        ),
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#48245", "vllm-gaudi#1794"),
        breaks=("OutputExact",),
        past=(
            "NoWastedStep",
            "PublishedSound",
        ),
        seed=Scope(
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
        account=(
            "R2 is preempted with its first token in flight and resumed before that token has "
            "come. The resumed step does not know it and samples the same position again; both are "
            "delivered, and R2's client gets its first token twice."
        ),
    ),
    RuleInfo(
        name="keep_stale_output_off_counters",
        requires="Stale output does not touch the counters of the new incarnation.",
        where=f"{_SCHEDULER}: update_from_output; {_ASYNC}: _update_request_with_output",
        reports=("vllm#48245", "vllm#46066"),
        breaks=("CountersConsistent",),
        account=(
            "R1 is preempted with an output in flight, and its "
            "counters are reset. The output is then charged to the new incarnation, which has no "
            "placeholder: the counter goes below zero, and the assertion ends the engine."
        ),
    ),
    RuleInfo(
        name="stop_scheduling_at_max_tokens",
        requires=(
            "A request is not scheduled once the steps in flight are certain to reach max_tokens."
        ),
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#27922",),
        breaks=("NoWastedStep",),
        account=(
            "R0 may have one token, and the step that samples it is in flight. It is scheduled "
            "once more: the device computes a token that nobody will get, in a block that another "
            "request could use."
        ),
    ),
    RuleInfo(
        name="count_only_certain_tokens",
        requires="What is certain counts no draft as accepted.",
        where=f"{_SCHEDULER}: schedule",
        reports=("vllm#29542",),
        breaks=("NoWastedStep",),
        account=(
            "Two tokens of R0's three are certain, the third only if the draft in flight is "
            "accepted. It is counted as if it were, and R0 is left out of a step that it needs "
            "whenever the draft is rejected."
        ),
    ),
    RuleInfo(
        name="roll_back_rejected_drafts",
        requires="Rejected drafts are taken off the computed tokens.",
        where=f"{_SCHEDULER}: update_from_output",
        breaks=(
            "ReadsCorrect",
            "CountersConsistent",
        ),
        account=(
            "R0's two drafts are rejected, but their positions stay counted as computed. The next "
            "step starts behind them, over two positions whose tokens are not known and whose KV "
            "is the drafts'."
        ),
    ),
    RuleInfo(
        name="roll_back_rejected_placeholders",
        requires="Rejected drafts are taken off the placeholders.",
        where=f"{_SCHEDULER}: update_from_output",
        reports=("vllm#46066",),
        breaks=(
            "PublishedSound",
            "NoWastedStep",
        ),
        past=("PublicationComplete",),
        account=(
            "Each rejected draft leaves a placeholder behind that no output will ever fill. R0 "
            "runs on with a count of tokens that do not exist, publishes a block of them, and is "
            "scheduled past its end."
        ),
    ),
    RuleInfo(
        name="ignore_drafts_of_prefill_chunks",
        requires="Drafts proposed for a prefill chunk are not taken.",
        where=f"{_SCHEDULER}: update_draft_token_ids",
        breaks=("ScheduleSet",),
        seed=Scope(
            name="drafts-in-chunks",
            num_speculative_tokens=1,
            requests=(_R(prompt=(1, 1, 1), max_tokens=2),),
            num_blocks=7,
            block_size=1,
            max_num_batched_tokens=2,
            max_model_len=6,
        ),
        account=(
            "The drafter proposes a token after the first chunk of R0's prompt, where the prompt "
            "itself goes on. The proposal is kept, and the second chunk carries it behind the "
            "prompt's last token, which it does not follow."
        ),
    ),
    RuleInfo(
        name="cap_positions_at_model_length",
        requires="No position past the model length is scheduled.",
        where=f"{_SCHEDULER}: schedule",
        breaks=("BudgetRespected",),
        account=(
            "R0 has two drafts and room for one position. All are scheduled, and the last one lies "
            "past the model length, outside of the position table and of the block table's row."
        ),
    ),
    RuleInfo(
        name="fence_in_flight_frees",
        requires=(
            "Blocks that a dispatched step may still write come back only when it is processed."
        ),
        where=f"{_SCHEDULER}: _free_request_blocks",
        reports=("vllm#45357",),
        breaks=("NoReuseInFlight",),
        account=(
            "R0 is aborted while the step that writes its block is in "
            "flight, and the block returns to the pool at once. R1 gets it for a load from the "
            "connector, which is in no order with the step: whichever writes last wins."
        ),
    ),
    RuleInfo(
        name="fence_at_last_scheduled_step",
        requires="The fence is the last step scheduled at the time of the free.",
        where=f"{_SCHEDULER}: _free_request_blocks",
        reports=("vllm#45357",),
        breaks=("NoReuseInFlight",),
        past=("FreedExactlyOnce",),
        account=(
            "R0 is aborted with two steps in flight. Its block waits for the first of them only, "
            "is handed to R1 for a load, and the second step still writes it."
        ),
    ),
    RuleInfo(
        name="hold_blocks_until_load_done",
        requires="The blocks of an aborted load stay held until the load is done.",
        where=f"{_SCHEDULER}: finish_requests",
        reports=("vllm#32255",),
        breaks=("NoReuseInFlight",),
        account=(
            "R0 is aborted while the connector writes its block, and "
            "the block returns to the pool. Whoever gets it is overwritten when the transfer lands."
        ),
    ),
    RuleInfo(
        name="release_hold_if_load_already_done",
        requires="An abort after the load was reported holds nothing back.",
        where=f"{_SCHEDULER}: finish_requests",
        reports=("vllm#32255",),
        breaks=("FreedExactlyOnce",),
        breaks_progress=("NothingStuck",),
        account=(
            "R0's load is done and reported, but R0 is aborted before the next call of schedule "
            "has seen to it. Its blocks are held for a report that has been and will not come "
            "again: they are lost to the pool."
        ),
    ),
    RuleInfo(
        name="hold_blocks_until_sent",
        requires="A finished request's blocks stay held until the connector has sent them.",
        where=f"{_SCHEDULER}: _free_request",
        reports=("TensorRT-LLM#12816",),
        breaks=("NoReuseInFlight",),
        account=(
            "R0 finishes and the connector begins to send its block. The "
            "block is freed at once, and the next owner's KV is sent in its stead."
        ),
    ),
    RuleInfo(
        name="publish_loads_when_done",
        requires="Blocks that a load fills are published when it is done.",
        where=f"{_SCHEDULER}: schedule, delay_cache_blocks",
        breaks=("PublishedSound",),
        account=(
            "R0's block is published when the load is asked for, not when "
            "it is there. A request that hits it meanwhile reads a block that is being written."
        ),
    ),
    RuleInfo(
        name="recompute_last_loaded_token",
        requires="A load of the whole prompt leaves the last token to compute.",
        where=f"{_SCHEDULER}: _update_waiting_for_remote_kv",
        breaks=("NoAssertion",),
        account=(
            "The load brings R0's whole prompt. Nothing is left to compute, no logits can be "
            "drawn, and the assertion that an admission has tokens to schedule ends the engine."
        ),
    ),
    RuleInfo(
        name="truncate_at_invalid_block",
        requires="A failed load takes the computed tokens back to the first bad block.",
        where=f"{_SCHEDULER}: _update_requests_with_invalid_blocks",
        reports=("vllm#49250",),
        breaks=("PublishedSound",),
        account=(
            "The load of R0's first block fails, but its tokens stay counted as computed. R0 goes "
            "on from the second token, the block is published, and both R0 and whoever hits it "
            "read garbage."
        ),
    ),
    RuleInfo(
        name="reserve_for_inflight_prefills",
        requires="A load is admitted only beside what prefills and loads in flight still need.",
        where=f"{_SCHEDULER}: _inflight_prefill_reserved_blocks",
        reports=("vllm#45387", "vllm#45388", "vllm#27074", "vllm#40968"),
        breaks=("NoStall",),
        breaks_progress=("NothingStuck",),
        account=(
            "Two loads are admitted side by side, each with room for what it loads only. When both "
            "are done the pool is full: R0 needs one more block for the rest of its prompt, R1 "
            "stands behind it, nobody runs that could be preempted, and nothing moves ever again."
        ),
    ),
    RuleInfo(
        name="reserve_spec_step_for_loads",
        requires="That reserve includes the slots of a speculative step.",
        where=f"{_SCHEDULER}: _spec_decode_step_blocks",
        breaks=("NoStall",),
        breaks_progress=("NothingStuck",),
        seed=Scope(
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
        account=(
            "Two loads are admitted beside each other with room for their prompts, but not for the "
            "drafts with which a loaded request starts. When both are done R0 does not fit, R1 "
            "stands behind it, and nothing moves ever again."
        ),
    ),
    RuleInfo(
        name="drain_block_holders_first",
        requires="Waiting requests that hold blocks are served before others.",
        where=f"{_SCHEDULER}: schedule, kv_holding_waiting",
        reports=("vllm#53130",),
        breaks=("NoStall",),
        breaks_progress=("NothingStuck", "EveryRequestFinishes"),
        account=(
            "R1 has its block and its load is done; R0, which needs the same block, stands before "
            "it. R0 cannot be admitted, the scan ends there, and the only request that could run "
            "is never looked at."
        ),
    ),
    RuleInfo(
        name="wait_for_remote_load",
        requires="A request is not scheduled before its load is reported.",
        where=f"{_SCHEDULER}: _handle_blocked_waiting_request",
        breaks=("ReadsCorrect",),
        past=(
            "PublishedSound",
            "NoReuseInFlight",
        ),
        account=(
            "R0 is scheduled while its load is still under way. Its step "
            "reads a block in which nothing has been written yet, and the token that it samples is "
            "delivered."
        ),
    ),
    RuleInfo(
        name="drop_stale_output_of_producers",
        requires="A preempted request that must hand over its KV drops its output in flight.",
        where=f"{_SCHEDULER}: schedule, requires_kv_delivery",
        reports=("vllm-gaudi#1794",),
        breaks=("HandOver",),
        account=(
            "R1 is preempted with an output in flight, and that output is its last. R1 finishes "
            "without any blocks, and the side that waits for its KV gets none."
        ),
    ),
    RuleInfo(
        name="stay_awake_for_delayed_frees",
        requires="A finished request whose blocks are held is a reason to go on stepping.",
        where=f"{_SCHEDULER}: has_finished_requests",
        reports=("vllm#43433", "local-inference-lab/vllm#191"),
        breaks=("NoStall",),
        breaks_progress=("NoDeadEnd",),
        account=(
            "R0 is finished, and its block is held until it is sent. No request is left, so the "
            "engine stops stepping, and the report that the transfer is done is never fetched: the "
            "block is lost until somebody else calls."
        ),
    ),
    RuleInfo(
        name="drop_hit_before_drafting_head",
        requires="Where a drafting head needs it, the last hit block is computed again.",
        where=f"{_TYPE}: FullAttentionManager.find_longest_cache_hit",
        breaks=("HitMaximal",),
        account=(
            "The drafting head needs the hidden states of the last hit block, which only computing "
            "brings. R1 hits all it can, and the head drafts from states that were never computed."
        ),
    ),
    RuleInfo(
        name="count_loaded_tokens_exactly",
        requires="A load that ends inside a block counts its tokens, not its blocks.",
        where=f"{_SCHEDULER}: schedule, _update_waiting_for_remote_kv",
        reports=("vllm#34616",),
        breaks=("PublishedSound",),
        account=(
            "R0's load ends inside a block, after one token of two. "
            "The whole block is counted, so the second token is never computed, and the block is "
            "published with a slot that nobody has written."
        ),
    ),
    RuleInfo(
        name="replace_resumed_table",
        requires="V1: what is sent of a resumed request replaces the table that the workers have.",
        where=f"{_SCHEDULER}: _make_cached_request_data, resumed_req_ids",
        breaks=("WorkerAgrees", "ReadsCorrect"),
        past=("PublishedSound", "WorkerAgrees"),
        account=(
            "R0 is preempted by a reset and starts anew. What is sent of its table is appended to "
            "the old one, so its worker has the block twice, and the block that the table grows "
            "by comes third. The next step writes its token into the first block, over the KV "
            "that it reads."
        ),
    ),
    RuleInfo(
        name="send_resumed_as_new",
        requires="V2: a resumed request is sent as a new one, since its workers have forgotten it.",
        where=f"{_SCHEDULER}: schedule, scheduled_resumed_reqs",
        breaks=("WorkerAgrees", "ReadsCorrect"),
        past=("PublishedSound", "WorkerAgrees"),
        seed=_RESUMES_ON_V2,
        account=(
            "R1 is preempted, and its worker is told so and forgets it. When it is resumed it is "
            "sent as one that the worker knows: there is no table to append to, the step has "
            "none, and the token that it samples follows nothing."
        ),
    ),
    RuleInfo(
        name="send_table_growth",
        requires="A running request is sent the blocks that its table grew by.",
        where=f"{_SCHEDULER}: schedule, req_to_new_blocks",
        breaks=("WorkerAgrees", "ReadsCorrect"),
        past=("PublishedSound", "WorkerAgrees"),
        account=(
            "R0's table grows by a block for each token, and its worker is never sent one: the "
            "second token is written nowhere, and the third one is sampled without it."
        ),
    ),
    RuleInfo(
        name="send_adopted_blocks",
        requires="An admitted request is sent its whole table, adopted blocks included.",
        where=f"{_SCHEDULER}: schedule, get_blocks in the waiting part",
        breaks=("WorkerAgrees", "ReadsCorrect"),
        past=("PublishedSound", "WorkerAgrees"),
        seed=Scope(
            name="adopted-prefix",
            requests=(_R(prompt=(1, 1), max_tokens=1), _R(prompt=(1, 1), max_tokens=1)),
            num_blocks=4,
            block_size=1,
            max_num_batched_tokens=2,
            max_model_len=3,
        ),
        account=(
            "R1 adopts the block of R0's prompt, and its worker is sent only the one that was "
            "allocated behind it. That one stands first in the worker's table: R1's second token "
            "is written nowhere, and its first one is looked for in a block that nobody has "
            "written."
        ),
    ),
    RuleInfo(
        name="tell_finished_requests",
        requires="The workers are told of each request that has ended, with the next step.",
        where=f"{_SCHEDULER}: schedule, finished_req_ids",
        breaks=("WorkerAgrees",),
        account=(
            "R0 is finished and its worker is not told: it keeps the request, its tokens and its "
            "table for ever. Nobody reads them, since no id comes again."
        ),
    ),
    RuleInfo(
        name="tell_preempted_requests",
        requires="The workers are told of each request that was preempted, with the next step.",
        where=f"{_SCHEDULER}: schedule, reset_preempted_req_ids",
        breaks=("WorkerAgrees",),
        seed=_RESUMES_ON_V2,
        account=(
            "R1 is preempted and its worker is not told. It keeps a row for a request that does "
            "not run, beside those that do, and has only as many as may run at once. Nobody reads "
            "the table that it keeps: a resumed request is sent whole."
        ),
    ),
    RuleInfo(
        name="publish_full_blocks",
        requires="The blocks that a step fills with known tokens are published with the step.",
        where=f"{_MANAGER}: allocate_slots, cache_blocks",
        breaks=("PublicationComplete",),
        account=(
            "R0's prompt fills a block, which is not published: nobody with the same prefix will "
            "find it."
        ),
    ),
)

INFO = {info.name: info for info in RULES}
"""The entry of each rule, by its name."""
