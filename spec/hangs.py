"""Open findings that keep requests waiting: where vLLM 0.31.0 makes no progress, all rules on.

Some of them break an invariant too and are told in spec/findings.py. And the rules that guard
against hanging, each with a scope in which its absence is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.scopes.named import SCOPES
from kvproof.spec.findings import FINDINGS, OpenFinding
from kvproof.spec.identity import Cause, Pattern
from kvproof.spec.progress import Property
from kvproof.spec.rules import INFO

_R = RequestSpec
_E = External
_SCHEDULER = "vllm/v1/core/sched/scheduler.py"
_STUCK = (Property.NothingStuck, Property.EveryRequestFinishes)

_PROMPT_BESIDE_A_LOAD = Scope(
    name="prompt-beside-a-load",
    kv_role="kv_consumer",
    prefix_caching=False,
    block_size=1,
    requests=(
        _R(prompt=(1, 2), max_tokens=1, external=_E(2)),
        _R(prompt=(2, 1, 1, 1), max_tokens=1),
    ),
    num_blocks=6,
    max_num_batched_tokens=2,
    max_model_len=5,
)


@dataclass(frozen=True, kw_only=True)
class Hang(OpenFinding):
    """A finding that breaks progress properties."""

    broken: tuple[Property, ...]


def _told(finding: str, broken: tuple[Property, ...], *patterns: Pattern) -> Hang:
    """A finding of spec/findings.py that keeps a request waiting."""
    told = next(one for one in FINDINGS if one.id == finding)
    return Hang(
        id=told.id,
        title=told.title,
        scope=told.scope,
        broken=broken,
        where=told.where,
        account=told.account,
        reachable=told.reachable,
        mend=told.mend,
        patterns=patterns,
    )


HANGS = (
    Hang(
        id="failed-sync-load-hangs-its-request",
        title="After a failed synchronous load a request runs for ever and is never scheduled",
        scope=Scope(
            name="failed-sync-load-hangs-its-request",
            kv_role="kv_consumer",
            async_scheduling=True,
            may_fail_loads=True,
            requests=(_R(prompt=(1, 2, 1), max_tokens=1, external=_E(2, is_async=False)),),
            num_blocks=4,
            max_num_batched_tokens=3,
            max_model_len=5,
        ),
        broken=_STUCK,
        where=f"{_SCHEDULER}: _update_requests_with_invalid_blocks, schedule",
        account="The output of the step with the failed load is skipped and the computed tokens "
        "are taken back, but the placeholder for the token that it would have brought stays. The "
        "request computes its prompt again, in a chunk that for the placeholder's sake does not "
        "count as its last and samples nothing. Then it is taken for one whose last token is on "
        "its way, and is not scheduled any more. Nothing is on its way. It stays running, holds "
        "its blocks and its slot, and others wait for these, or are preempted round and round. The "
        "same happens to a request that runs on a published block into which a load of another "
        "fails.",
        reachable="By any user of a synchronous connector under asynchronous scheduling, which is "
        "the default, and the default recompute policy: one failed load, if a chunk of what is "
        "computed again ends just before the last token that the request may have (with "
        "max_tokens=1: where the prompt ends). If none ends there, a token goes wrong instead "
        "(findings.md, failed-sync-load-with-a-step-in-flight). Only an abort ends it.",
        mend="Treat it as a preemption: clear the placeholders, and drop what is in flight.",
        patterns=(Pattern(after=Cause.STRAY_PLACEHOLDER),),
    ),
    Hang(
        id="producer-drops-what-it-computes",
        title="A producer's request is preempted and its output dropped, round after round",
        scope=Scope(
            name="producer-drops-what-it-computes",
            kv_role="kv_producer",
            async_scheduling=True,
            block_size=1,
            max_num_seqs=1,
            requests=(
                _R(prompt=(1, 1, 1), max_tokens=1, delay_free=True),
                _R(prompt=(2,), max_tokens=2),
            ),
            num_blocks=5,
            max_num_batched_tokens=3,
            max_model_len=4,
        ),
        broken=(Property.NoPreemptionCycle,),
        where=f"{_SCHEDULER}: schedule, _preempt_request, requires_kv_delivery",
        account="The blocks of a finished request are being sent. Another one fits in what is left "
        "with the tokens that it has, but not with the next one. It is scheduled, and the step "
        "after that, planned before the output has come, needs the block that is not there: the "
        "request preempts itself. Where KV must be delivered the output in flight of a victim is "
        "dropped, so the request is where it was, fits again, and so on.",
        reachable="By any user of a producing connector under asynchronous scheduling, the "
        "default, when sendings hold so much of the pool that a running request has no room to "
        "grow. It lasts until a sending ends; if the other side is gone, until its time is up.",
        mend="Wait for the output in flight before a request preempts itself, or count the next "
        "token in when a victim is admitted again.",
        patterns=(
            Pattern(
                broken=("NoPreemptionCycle",), where=("preempted_self", "output_stale_dropped")
            ),
        ),
    ),
    Hang(
        id="lookahead-is-not-admitted",
        title="A prompt is computed and thrown away as long as a load leaves no room for lookahead",
        scope=Scope(
            name="lookahead-is-not-admitted",
            kv_role="kv_consumer",
            block_size=1,
            max_num_seqs=1,
            num_speculative_tokens=1,
            spec_method="draft_model",
            requests=(
                _R(prompt=(1, 1, 1), max_tokens=1, external=_E(3)),
                _R(prompt=(2, 1, 2, 1), max_tokens=1),
            ),
            prefix_caching=False,
            num_blocks=8,
            max_num_batched_tokens=3,
            max_model_len=5,
        ),
        broken=(Property.NoPreemptionCycle,),
        where=f"{_SCHEDULER}: schedule; vllm/v1/core/kv_cache_manager.py: allocate_slots, "
        "full_sequence_must_fit",
        account="An admission must have room for its whole known sequence, so that it is not "
        "preempted by itself. The slots for the drafter's lookahead are not counted in. If they "
        "take one block more, the last chunk does not fit, the request is its own victim, and it "
        "is admitted again at once: the same prompt is computed and thrown away until the load "
        "that holds the other blocks has ended.",
        reachable="By users of speculative decoding with a drafter that has KV of its own, and a "
        "connector whose loads or sendings hold most of the pool. It lasts as long as the "
        "transfer, and wastes the device for all who run beside. With prefix caching the blocks of "
        "the last round are hit, and most of it is spared.",
        mend="Count the lookahead slots in the full-sequence check.",
        patterns=(
            Pattern(
                broken=("NoPreemptionCycle",), where=("preempted_self",), after=Cause.LOOKAHEAD
            ),
        ),
    ),
    Hang(
        id="first-chunk-admission-goes-round",
        title="Without full-sequence admission a prompt is computed and thrown away while a "
        "transfer runs",
        scope=msgspec.structs.replace(
            _PROMPT_BESIDE_A_LOAD, name="first-chunk-admission-goes-round", reserve_full_isl=False
        ),
        broken=(Property.NoPreemptionCycle,),
        where=f"{_SCHEDULER}: schedule, scheduler_reserve_full_isl",
        account="With scheduler_reserve_full_isl off an admission needs room for its first chunk "
        "only. The blocks of a load under way cannot be taken back, and a later chunk does not "
        "fit beside them: the request preempts itself and is admitted again by its first chunk.",
        reachable="By users who have switched scheduler_reserve_full_isl off (it is on by "
        "default), with a connector whose transfers hold blocks. It lasts as long as the transfer.",
        mend="Leave the option on; or do not admit a victim of itself again before blocks have "
        "come free.",
        patterns=(
            Pattern(
                broken=("NoPreemptionCycle",),
                where=("preempted_self",),
                after=Cause.FIRST_CHUNK_ADMISSION,
            ),
        ),
    ),
    Hang(
        id="failed-load-goes-first",
        title="A request whose load has failed is served before others of a higher priority",
        scope=Scope(
            name="failed-load-goes-first",
            policy="priority",
            kv_role="kv_consumer",
            may_fail_loads=True,
            block_size=1,
            requests=(
                _R(prompt=(2, 2), max_tokens=2, priority=0),
                _R(prompt=(1, 1, 1), max_tokens=1, priority=1, external=_E(2, once=True)),
                _R(prompt=(2, 1, 1), max_tokens=1, priority=0),
            ),
            num_blocks=6,
            max_num_batched_tokens=4,
            max_model_len=4,
        ),
        broken=(Property.BoundedOvertaking,),
        where=f"{_SCHEDULER}: schedule, _update_waiting_for_remote_kv, kv_holding_waiting",
        account="Requests that hold blocks are served before all others, so that they give them "
        "back. A request whose load has failed with nothing valid holds none any more, but it "
        "stays in that queue, and goes before requests of any priority.",
        reachable="By users of the priority policy with an asynchronous connector, after a failed "
        "load. It is passed once for each failed load; more often only if loads go on failing.",
        mend="Put the request into the waiting queue when its blocks are freed.",
        patterns=(Pattern(broken=("BoundedOvertaking",), causes=(Cause.FAILED_LOAD,)),),
    ),
    _told(
        "one-token-load-stands-in-the-way",
        _STUCK,
        Pattern(falls="NothingStuck", after=Cause.ONE_TOKEN_LOAD),
    ),
    _told(
        "failed-load-stands-in-its-own-way",
        _STUCK,
        Pattern(
            falls="NothingStuck",
            where=("waiting_reservation_refused",),
            after=Cause.OWN_RESERVE,
        ),
    ),
    _told(
        "loaded-part-stands-before-a-whole",
        _STUCK,
        Pattern(falls="NothingStuck", where=("waiting_no_blocks",), after=Cause.HELD),
    ),
    _told(
        "load-reserve-larger-than-the-pool",
        _STUCK,
        Pattern(falls="NothingStuck", where=("waiting_reservation_refused",)),
    ),
    _told(
        "padding-never-fits",
        _STUCK,
        Pattern(falls="NothingStuck", where=("waiting_pad_does_not_fit",)),
    ),
    _told(
        "prompt-above-the-scheduled-budget",
        _STUCK,
        Pattern(falls="NothingStuck", where=("waiting_not_chunkable",)),
    ),
    _told(
        "one-token-load-goes-round",
        (Property.EveryRequestFinishes,),
        Pattern(broken=("EveryRequestFinishes",), where=("load_started", "load_finished")),
    ),
)
"""The first one that explains an identity is taken."""


_SPEC_STEP_SEED = INFO["reserve_spec_step_for_loads"].seed
assert _SPEC_STEP_SEED is not None


@dataclass(frozen=True)
class Guard:
    """A rule that guards against hanging: without it the property falls in the scope."""

    rule: Rule
    scope: Scope
    falls: Property


GUARDS = (
    Guard(Rule.reserve_for_inflight_prefills, SCOPES["two-loads"], Property.NothingStuck),
    Guard(
        Rule.reserve_spec_step_for_loads,
        _SPEC_STEP_SEED,
        Property.NothingStuck,
    ),
    Guard(Rule.drain_block_holders_first, SCOPES["two-loads"], Property.NothingStuck),
    Guard(Rule.check_capacity_before_pinning, SCOPES["block-size-1"], Property.NothingStuck),
    Guard(Rule.release_hold_if_load_already_done, SCOPES["two-loads"], Property.NothingStuck),
    Guard(Rule.remove_aborted_from_queues, SCOPES["shared-prefix"], Property.NothingStuck),
    Guard(Rule.forget_victim_placeholders, SCOPES["async-reset"], Property.NothingStuck),
    Guard(Rule.roll_back_rejected_drafts, SCOPES["drafts"], Property.NothingStuck),
    Guard(Rule.roll_back_rejected_placeholders, SCOPES["async-drafts"], Property.NothingStuck),
    Guard(Rule.cap_slots_at_model_length, SCOPES["draft-model"], Property.NothingStuck),
    Guard(Rule.publish_loads_when_done, SCOPES["failing-loads"], Property.NothingStuck),
    Guard(Rule.stay_awake_for_delayed_frees, SCOPES["two-loads"], Property.NoDeadEnd),
    Guard(
        Rule.victim_must_be_freeable,
        Scope(
            name="both-victims",
            kv_role="kv_both",
            async_scheduling=True,
            block_size=1,
            requests=(_R(prompt=(1,), max_tokens=2), _R(prompt=(2,), max_tokens=3)),
            num_blocks=5,
            max_num_batched_tokens=2,
            max_model_len=4,
        ),
        Property.EveryRequestFinishes,
    ),
    Guard(Rule.reserve_full_sequence, _PROMPT_BESIDE_A_LOAD, Property.NoPreemptionCycle),
    Guard(Rule.requeue_victim_first, SCOPES["shared-prefix"], Property.BoundedOvertaking),
)
