"""Mends: changes that vLLM lacks, one entry each; a mend is off unless a scope switches it on.

Each is the smallest change that removes the findings it names. The numbers that the kernels use
are in model/mends.py, which `kvproof docs` makes from this table; the same change of the real
classes is an entry of kvproof/vllm/mend_edits.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.mends import Mend
from kvproof.model.options import ScopeError
from kvproof.model.scope import Scope

_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_POOL = "vllm/v1/core/block_pool.py"
_MANAGER = "vllm/v1/core/kv_cache_manager.py"


@dataclass(frozen=True, kw_only=True)
class MendInfo:
    """One mend: what it changes, why that is right, what it costs, and where in vLLM it goes.

    `removes` names the findings of spec/findings.py and spec/hangs.py that are gone with it, each
    by this mend alone. `refuses`: start-up refuses the scopes in which they show.
    """

    name: str
    statement: str
    why: str
    costs: str
    where: str
    removes: tuple[str, ...]
    refuses: bool = False


MENDS = (
    MendInfo(
        name="withdraw_hashes_of_scheduled_victim",
        statement="When a victim is taken out of the step under way, the hashes of its blocks from "
        "the first not yet computed one on are withdrawn.",
        why="Those blocks were published for a step that does not run. Blocks before them are "
        "written, or will be by a step that was dispatched.",
        costs="Nothing: what is withdrawn was never computed.",
        where=f"{_SCHEDULER}: schedule, where a scheduled victim gives its tokens back",
        removes=(
            "priority-victim-reads-its-own-garbage",
            "priority-victim-garbage-read-by-another",
        ),
    ),
    MendInfo(
        name="publish_sync_loads_when_done",
        statement="Blocks of a synchronous load, and what is computed behind them meanwhile, are "
        "published when the step of the load has come back.",
        why="Until then nobody knows whether they hold what their hashes promise. Nobody shares "
        "them, so a failed load concerns its own request alone, and whoever frees them meanwhile "
        "leaves nothing published. Asynchronous loads are treated so already.",
        costs="A request with the same prefix that is admitted while that one step is in flight "
        "does not hit.",
        where=f"{_SCHEDULER}: schedule, update_from_output",
        removes=(
            "failed-sync-load-stays-published",
            "failed-sync-load-of-aborted-request",
            "failed-sync-load-read-before-rewritten",
            "failed-sync-load-with-a-sharer-in-flight",
        ),
    ),
    MendInfo(
        name="drop_output_of_failed_load",
        statement="What is in flight of a running request whose load has failed is stale and "
        "dropped; its placeholders and drafts are cleared.",
        why="Steps behind the failed one have read what the load did not write. The request goes "
        "back to its last valid block, so whatever they bring is computed again; a placeholder "
        "that stays keeps it waiting for a token that never comes.",
        costs="The steps in flight of that request, which brought garbage. It is not enough for "
        "the V2 model runner under asynchronous scheduling: its workers are not told that the "
        "placeholders are gone, and go on counting them. There the request has to be sent anew, "
        "as one that resumes.",
        where=f"{_SCHEDULER}: _handle_invalid_blocks",
        removes=("failed-sync-load-with-a-step-in-flight", "failed-sync-load-hangs-its-request"),
    ),
    MendInfo(
        name="forget_prefill_of_failed_load",
        statement="A request whose failed load leaves it without blocks leaves the set of "
        "in-flight prefills.",
        why="The set reserves blocks for those who hold some and need more. This one is admitted "
        "afresh, and must not wait for a reservation of its own.",
        costs="Nothing.",
        where=f"{_SCHEDULER}: _update_waiting_for_remote_kv",
        removes=("failed-load-stands-in-its-own-way",),
    ),
    MendInfo(
        name="requeue_after_failed_load",
        statement="A request whose failed load leaves it without blocks goes to the front of the "
        "waiting queue (to its place, by priority).",
        why="The queue of block holders goes first so that they give their blocks back; this one "
        "has none to give.",
        costs="Under FCFS it is served as before, behind block holders; by priority others of a "
        "higher one go first, as they should.",
        where=f"{_SCHEDULER}: schedule, behind _handle_blocked_waiting_request",
        removes=("failed-load-goes-first",),
    ),
    MendInfo(
        name="look_before_reset",
        statement="A reset of running requests preempts nobody and returns False while a waiting "
        "request holds blocks.",
        why="It would preempt everybody, drop what is in flight, and then raise all the same. The "
        "caller can try again when the load has ended.",
        costs="Nothing: the reset fails today too.",
        where=f"{_SCHEDULER}: reset_prefix_cache",
        removes=("reset-while-loading",),
    ),
    MendInfo(
        name="reset_beside_fence",
        statement="A reset is done if no living request holds a block; blocks that only a fence "
        "or a transfer of a finished request holds lose their hashes and come back on their own.",
        why="What counts for a reset is that nothing old can be hit. Those blocks are nobody's "
        "prefix any more.",
        costs="Nothing: the reset raises today.",
        where=f"{_SCHEDULER}: reset_prefix_cache; {_POOL}: reset_prefix_cache",
        removes=("reset-behind-fence",),
    ),
    MendInfo(
        name="reserve_spec_step_exactly",
        statement="What a load leaves free for a speculative step are the blocks by which that "
        "step outgrows the request's own, up to the model length.",
        why="A step writes behind the request's last token, into the room of its last block first, "
        "and never past the model length. So the reservation of a request that start-up accepts "
        "never exceeds the pool.",
        costs="Nothing; loads are admitted that were refused.",
        where=f"{_SCHEDULER}: schedule, _request_remaining_blocks",
        removes=("load-reserve-larger-than-the-pool",),
    ),
    MendInfo(
        name="tell_loaded_by_blocks",
        statement="A waiting request that holds blocks is no fresh admission, whatever its "
        "computed tokens.",
        why="A load of one token leaves nothing computed, since the last token is computed again. "
        "The request has its blocks, and asks for neither hits nor another load.",
        costs="Nothing.",
        where=f"{_SCHEDULER}: schedule, the waiting part",
        removes=("one-token-load-goes-round", "one-token-load-stands-in-the-way"),
    ),
    MendInfo(
        name="leave_last_token_of_sync_load",
        statement="A synchronous load leaves the last token to be computed.",
        why="Its logits are needed. Local hits and asynchronous loads leave it too.",
        costs="One token, where vLLM asserts today.",
        where=f"{_SCHEDULER}: schedule, the waiting part",
        removes=("sync-load-of-everything",),
    ),
    MendInfo(
        name="pad_within_threshold",
        statement="An admitted decode is not padded where the long-prefill threshold is below "
        "1 + k tokens.",
        why="The threshold cuts running decodes too, so the step is not uniform anyway, and a cut "
        "padding is not allowed.",
        costs="Uniform decode steps under such thresholds, which vLLM does not have either.",
        where=f"{_SCHEDULER}: schedule, the waiting part",
        removes=("padding-over-threshold",),
    ),
    MendInfo(
        name="admit_unpadded_alone",
        statement="A decode whose padding does not fit in the budget is admitted without it if "
        "nothing else is in the step.",
        why="With nothing else in the step the whole budget was there: no later step has more.",
        costs="Nothing; a step of one token is uniform.",
        where=f"{_SCHEDULER}: schedule, the waiting part",
        removes=("padding-never-fits",),
    ),
    MendInfo(
        name="await_output_before_self_preemption",
        statement="Where the output of victims is dropped, a request with output in flight is not "
        "its own victim.",
        why="Its output brings it further, so that it does not come back to where it was; it is "
        "preempted in the next step, if it still has no room.",
        costs="Its blocks are held one step longer.",
        where=f"{_SCHEDULER}: schedule, the choice of the victim",
        removes=("producer-drops-what-it-computes",),
    ),
    MendInfo(
        name="admit_with_lookahead",
        statement="The full-sequence check counts the lookahead slots in.",
        why="The last chunk allocates them. A request that fits without them alone preempts itself "
        "there.",
        costs="An admission may need one block more.",
        where=f"{_MANAGER}: allocate_slots",
        removes=("lookahead-is-not-admitted",),
    ),
    MendInfo(
        name="resume_only_whole",
        statement="A preempted request is admitted again only if its whole sequence fits, though "
        "scheduler_reserve_full_isl is off.",
        why="It was preempted for want of blocks. With room for its first chunk only it would be "
        "preempted again.",
        costs="With the option off: victims wait longer. With it on: nothing.",
        where=f"{_SCHEDULER}: schedule, the waiting part",
        removes=("first-chunk-admission-goes-round",),
    ),
    MendInfo(
        name="fence_in_every_role",
        statement="Freed blocks wait behind the fence with any connector, not only in a role that "
        "consumes.",
        why="Whether a connector loads is its own answer, which the role does not bind.",
        costs="Producers with several steps in flight get freed blocks back a step later, and do "
        "not preempt whoever is in flight.",
        where=f"{_SCHEDULER}: __init__, defer_block_free",
        removes=("producer-loads-without-fence",),
    ),
    MendInfo(
        name="compare_scheduled_budget",
        statement="Start-up refuses, without chunked prefill, a max_num_scheduled_tokens below the "
        "model length.",
        why="A prompt between the two is never scheduled. Start-up compares the batched budget "
        "already, to the same end.",
        costs="Nothing.",
        where="vllm/config/scheduler.py: verify_max_model_len",
        removes=("prompt-above-the-scheduled-budget",),
        refuses=True,
    ),
    MendInfo(
        name="reserve_rest_of_own_load",
        statement="An asynchronous load is admitted only if the rest of its own request's sequence "
        "fits too, beside what the requests in flight still need.",
        why="Their blocks are reserved against later loads, its own are not. Whoever is loaded "
        "then finds room for its rest, whatever the order in which they are scanned.",
        costs="A load that would take the last blocks waits for others to end.",
        where=f"{_SCHEDULER}: schedule, reserved_blocks",
        removes=("loaded-part-stands-before-a-whole",),
    ),
)

INFO = {info.name: info for info in MENDS}
"""The entry of each mend, by its name."""

_IN_THE_RUN = tuple(info.name for info in MENDS if not info.refuses)


def mended(scope: Scope) -> Scope:
    """The scope with every mend, but for those of start-up that would refuse it."""
    try:
        return scope.with_mends(*Mend.__members__)
    except ScopeError:
        return scope.with_mends(*_IN_THE_RUN)


MENDED_BY = {finding: info.name for info in MENDS for finding in info.removes}
"""The mend that removes a finding, by the finding's id."""
