"""Invariants: what must hold in every state and in every step, one entry each, with its reason.

The kernels are in state_invariants and step_invariants, each under its invariant's name in snake
case; it answers VACUOUS where the state or step gives it nothing to test, HOLDS or BROKEN.
spec/masks.py, which `kvproof docs` makes from this table, asks all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kvproof.model.rules import Rule
from kvproof.spec.masks import Id
from kvproof.spec.rules import RULES


def kernel_name(name: str) -> str:
    """The name of a property in snake case."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """One property in words, and where vLLM ensures it.

    A step invariant that is `observed` needs no more than two observations and the step's output,
    so that it can be asked of something that is only looked at from outside.
    """

    name: str
    kind: Literal["state", "step"]
    statement: str
    why: str
    ensured: str
    observed: bool = False

    @property
    def id(self) -> Id:
        """The invariant's number."""
        return Id[self.name]

    @property
    def kernel_name(self) -> str:
        """The name of its kernel."""
        return kernel_name(self.name)

    @property
    def broken_by(self) -> tuple[Rule, ...]:
        """Rules without which it falls, for instance."""
        return tuple(info.rule for info in RULES if self.name in info.breaks)


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_POOL = "vllm/v1/core/block_pool.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"
_TYPE = "vllm/v1/core/single_type_kv_cache_manager.py"

INVARIANTS = (
    Invariant(
        name="BlockConservation",
        kind="state",
        statement=(
            "The free queue, the block tables and the deferred frees account for every block: a "
            "reference count equals the number of holders, the free queue holds each block without "
            "a holder exactly once, and the null block is never handed out."
        ),
        why=(
            "A block that is lost shrinks the pool until nothing is admitted; a block that is free "
            "and held is given to a second owner, which overwrites the first one's KV."
        ),
        ensured=(
            f"{_POOL}: get_new_blocks, touch, free_blocks; {_MANAGER}: allocate_slots checks the "
            "capacity, hits in the free queue included, before it pins or takes anything"
        ),
    ),
    Invariant(
        name="PublishedSound",
        kind="state",
        statement=(
            "A published hash names a block whose slots hold exactly that prefix, or will hold it "
            "once the steps already dispatched have run in order, whatever drafts they reject."
        ),
        why=(
            "Whoever hits a published block reads it without looking: a wrong one is a wrong "
            "answer for another request."
        ),
        ensured=(
            f"{_POOL}: get_new_blocks withdraws the hash of a reused block; {_MANAGER}: "
            f"allocate_slots publishes no token that is not committed; {_SCHEDULER}: "
            "_update_waiting_for_remote_kv publishes loaded blocks when they are there"
        ),
    ),
    Invariant(
        name="ReadsCorrect",
        kind="state",
        statement=(
            "A step whose output is delivered finds, at every position below its start, the KV of "
            "its own request's prefix, and knows every token that it computes."
        ),
        why="This is what all of the bookkeeping is for: anything else is a wrong answer.",
        ensured="all of the block pool and the KV cache manager; checked on the ghost device",
    ),
    Invariant(
        name="NoReuseInFlight",
        kind="state",
        statement=(
            "The blocks of a transfer under way belong to its request alone, unpublished while "
            "they are written, and no dispatched step writes them. A load writes known tokens "
            "only, and each into a block."
        ),
        why=(
            "A transfer is in no order with the steps: it overwrites, or is overwritten, at any "
            "time."
        ),
        ensured=(
            f"{_SCHEDULER}: _free_request_blocks and its fence, finish_requests holds the blocks "
            "of an aborted load, _free_request keeps blocks that the connector still sends"
        ),
    ),
    Invariant(
        name="CountersConsistent",
        kind="state",
        statement=(
            "In-flight and stale tokens equal the sums over the in-flight steps; computed tokens "
            "exceed known ones only by placeholders and drafts; nothing is negative; no request "
            "has more tokens than its limits allow."
        ),
        why="A counter that is off makes the request skip positions, stall, or trip an assertion "
        "that stops the whole engine.",
        ensured=f"{_SCHEDULER}: _update_after_schedule, update_from_output, _preempt_request; "
        "vllm/v1/core/sched/async_scheduler.py",
    ),
    Invariant(
        name="SlotsRespected",
        kind="state",
        statement="At most max_num_seqs requests run.",
        why="The model runner has that many rows.",
        ensured=f"{_SCHEDULER}: schedule",
    ),
    Invariant(
        name="QueueStatusAgree",
        kind="state",
        statement=(
            "A request's status and the queue that holds it agree, each live request stands in "
            "exactly one queue, and only running requests and block holders have blocks."
        ),
        why="A request in no queue hangs for ever; one in two is scheduled twice.",
        ensured=(
            f"{_SCHEDULER}: schedule, _preempt_request, finish_requests, _enqueue_waiting_request"
        ),
    ),
    Invariant(
        name="OutputExact",
        kind="state",
        statement=(
            "Every token is delivered to its request in its place: none twice, none out of order, "
            "none lost across preemption, reset, rejection or stop."
        ),
        why="The client sees the tokens; a gap or a repeat is a wrong answer.",
        ensured=(
            f"{_SCHEDULER}: update_from_output, the waiting scan of schedule skips requests with "
            "stale output, _preempt_request"
        ),
    ),
    Invariant(
        name="FreedExactlyOnce",
        kind="state",
        statement=(
            "A request that is gone has no blocks; one that is finished keeps them only while a "
            "transfer that will report still uses them; a deferred free waits for a step in flight."
        ),
        why="Blocks that wait for an event which never comes are lost to the pool.",
        ensured=f"{_SCHEDULER}: finish_requests, _free_request, _update_from_kv_xfer_finished, "
        "_drain_deferred_frees",
    ),
    Invariant(
        name="Isolation",
        kind="state",
        statement=(
            "Two requests share a block only if their prefixes, salt included, are equal up to its "
            "end."
        ),
        why="Sharing by mistake hands one client's context to another.",
        ensured=(
            "vllm/v1/core/kv_cache_utils.py: hash_block_tokens chains over the whole prefix and "
            "the extra keys"
        ),
    ),
    Invariant(
        name="EvictionOrder",
        kind="state",
        statement=(
            "In the free queue unpublished blocks stand before published ones, and the end of a "
            "prefix before its beginning."
        ),
        why="A prefix whose first block is gone is useless, however much of it is left.",
        ensured=f"{_POOL}: free_blocks; {_TYPE}: free releases the tail first",
    ),
    Invariant(
        name="NoAssertion",
        kind="state",
        statement="No assertion of vLLM fails and no error is raised.",
        why="An assertion that fails in the engine's loop ends the engine and every request in it.",
        ensured="the assertions in schedule, update_from_output, cache_full_blocks and their kin",
    ),
    Invariant(
        name="BudgetRespected",
        kind="step",
        statement=(
            "Every request of a step has a positive number of tokens within its chunk cap and the "
            "model length; together they keep to the token budget, and with their draft slots to "
            "the input budget; what is left of the budgets is what was not spent."
        ),
        why="The model runner's buffers have the size of the budgets.",
        ensured=f"{_SCHEDULER}: schedule",
        observed=True,
    ),
    Invariant(
        name="ScheduleSet",
        kind="step",
        statement=(
            "The scheduled requests run, no victim is among them, no running request is jumped "
            "over because the list shifted, and every scheduled draft follows its request's last "
            "token."
        ),
        why="A victim in the output computes into blocks that it has given back.",
        ensured=f"{_SCHEDULER}: schedule, the priority branch of the preemption",
        observed=True,
    ),
    Invariant(
        name="VictimFreeable",
        kind="step",
        statement=(
            "A request is preempted only if its blocks can be returned at once, and its preemption "
            "makes blocks free unless all of them are shared."
        ),
        why="A preemption that frees nothing costs its victim all its work for nothing.",
        ensured=f"{_SCHEDULER}: schedule asks _request_blocks_can_be_freed",
        observed=True,
    ),
    Invariant(
        name="VictimIsLowest",
        kind="step",
        statement=(
            "The victim is the policy's last: under FCFS the last one running, under priority one "
            "that nobody ranks behind."
        ),
        why="Otherwise an important request pays for an unimportant one.",
        ensured=f"{_SCHEDULER}: schedule",
        observed=True,
    ),
    Invariant(
        name="PolicyOrder",
        kind="step",
        statement=(
            "Admissions keep the queue's order but for requests that are set aside; a victim goes "
            "back ahead of those that were never admitted (FCFS) or into its rank (priority)."
        ),
        why="Requests that are overtaken again and again starve.",
        ensured=f"{_SCHEDULER}: schedule, _preempt_request; vllm/v1/core/sched/request_queue.py",
    ),
    Invariant(
        name="WrittenSlotsOwned",
        kind="step",
        statement=(
            "Every slot that a step may write, drafts and lookahead included, lies in a block of "
            "its request which nobody else reads otherwise at that position."
        ),
        why="A write outside one's blocks lands in somebody else's.",
        ensured=f"{_MANAGER}: allocate_slots; {_SCHEDULER}: schedule passes num_lookahead_tokens",
        observed=True,
    ),
    Invariant(
        name="HitMaximal",
        kind="step",
        statement=(
            "An admission adopts the longest published run of full blocks of its prefix, at most "
            "all but the last token, and one block less where a drafting head needs it recomputed."
        ),
        why="A shorter hit is wasted work; a longer one leaves no token to compute logits from.",
        ensured=(
            f"{_MANAGER}: get_computed_blocks; {_TYPE}: FullAttentionManager.find_longest_cache_hit"
        ),
        observed=True,
    ),
    Invariant(
        name="LeastRecentlyFreed",
        kind="step",
        statement=(
            "Blocks are handed out from the head of the free queue, and what is freed and "
            "published queues up behind what was freed before."
        ),
        why="Eviction in any other order throws away what is likely to be hit.",
        ensured=f"{_POOL}: get_new_blocks, free_blocks",
        observed=True,
    ),
    Invariant(
        name="ResetSound",
        kind="step",
        statement=(
            "After a successful reset no living request holds a block and none is published; a "
            "reset that preempts the running requests is done."
        ),
        why=(
            "A reset follows a change of weights: an older hit is KV of another model. One that "
            "raises has preempted every running request for nothing."
        ),
        ensured=f"{_POOL}: reset_prefix_cache",
        observed=True,
    ),
    Invariant(
        name="NoWastedStep",
        kind="step",
        statement=(
            "A running request is left out for the sake of max_tokens exactly if the steps in "
            "flight are certain to bring it there, every draft rejected."
        ),
        why="A step too many computes for nothing; one too few idles the device at every end.",
        ensured=f"{_SCHEDULER}: schedule",
        observed=True,
    ),
    Invariant(
        name="NoStall",
        kind="step",
        statement=(
            "While a request waits, runs or is held the engine has a reason to step; and if "
            "nothing runs, nothing is in flight and no transfer is under way, a call of schedule "
            "that has requests waiting schedules something."
        ),
        why="Otherwise nothing moves ever again: the engine looks healthy and admits nobody.",
        ensured=f"{_SCHEDULER}: has_requests, schedule, _inflight_prefill_reserved_blocks",
        observed=True,
    ),
    Invariant(
        name="HandOver",
        kind="step",
        statement=(
            "A request that must hand over its KV still has its blocks when it finishes by itself."
        ),
        why="The other side waits for KV that a preemption has already given away.",
        ensured=f"{_SCHEDULER}: _preempt_request drops the output in flight of producers",
        observed=True,
    ),
    Invariant(
        name="AdmissionFits",
        kind="step",
        statement=(
            "With scheduler_reserve_full_isl an admission leaves room for the rest of its known "
            "sequence."
        ),
        why="An admission that fits by its first chunk only is preempted later, again and again.",
        ensured=f"{_MANAGER}: allocate_slots, full_sequence_must_fit",
    ),
    Invariant(
        name="WorkerAgrees",
        kind="step",
        statement=(
            "Each scheduled request's step is given its own block table, up to the last position "
            "that it computes, and the workers keep nobody who has ended or, on V2, does not run."
        ),
        why=(
            "The workers know only what the steps send them: a block that is missing, stale or out "
            "of place is silent garbage, and who is never forgotten keeps a row."
        ),
        ensured=(
            f"{_SCHEDULER}: schedule, _make_cached_request_data; "
            "vllm/v1/worker/gpu_model_runner.py: _update_states; "
            "vllm/v1/worker/gpu/model_runner.py: finish_requests, add_requests, update_requests"
        ),
        observed=True,
    ),
    Invariant(
        name="PublicationComplete",
        kind="step",
        statement=(
            "A step leaves every full block published that it fills with known tokens, and every "
            "one before it; a load that is taken in leaves its full blocks published; and so does, "
            "under asynchronous scheduling, an output for all tokens but the last it delivers, "
            "the last output of a request included."
        ),
        why=(
            "What is not published is computed again by whoever comes with the same prefix, above "
            "all by a conversation that comes back with its last answer."
        ),
        ensured=(
            f"{_MANAGER}: allocate_slots, cache_blocks; {_SCHEDULER}: "
            "_update_waiting_for_remote_kv; vllm/v1/core/sched/async_scheduler.py: "
            "_update_request_with_output"
        ),
        observed=True,
    ),
)
