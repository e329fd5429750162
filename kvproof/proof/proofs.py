"""The proofs by name, and the rules without which they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvproof.checker.check import check
from kvproof.model.compiled import Compiled
from kvproof.model.rules import Rule
from kvproof.model.scope import RequestSpec, Scope
from kvproof.proof.blocks import blocks
from kvproof.proof.budget import budget
from kvproof.proof.counters import counters
from kvproof.proof.fence import fence
from kvproof.proof.induction import Proof, prove
from kvproof.proof.relation import Relation
from kvproof.proof.tie.compare import Comparison, compare
from kvproof.proof.tie.samples import Tie
from kvproof.proof.tie.tie_blocks import BlocksTie
from kvproof.proof.tie.tie_budget import BudgetTie
from kvproof.proof.tie.tie_counters import CountersTie
from kvproof.proof.tie.tie_fence import FenceTie
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id
from kvproof.trace.trace import Trace, replay

SECONDS = 120.0
"""Time limit of one proof."""

SEARCH_STEPS = 8
"""Runs of at most this many operations are searched where a proof fails."""


@dataclass(frozen=True)
class Theorem:
    """A relation that is proved: `build` makes it, `small` makes one in which a search is short."""

    name: str
    build: Callable[[frozenset[Rule]], Relation]
    small: Callable[[frozenset[Rule]], Relation]
    tie: Callable[[Compiled], Tie]
    sizes: str
    excluded: tuple[str, ...] = ()


THEOREMS = {
    theorem.name: theorem
    for theorem in (
        Theorem(
            "blocks",
            blocks,
            lambda off: blocks(off, requests=2),
            BlocksTie,
            "any number of blocks (one arbitrary block is followed), steps in flight and deferred "
            "frees; four requests",
            (
                "A request that still holds blocks begins no load "
                "([open finding](findings.md#one-token-load-goes-round)).",
                "A fence protects transfers only where frees are deferred: a producer that loads "
                "has none ([open finding](findings.md#producer-loads-without-fence)).",
                "Which block is taken next, and in which order blocks return, is not looked at; "
                "neither is content: the search has `EvictionOrder`, `PublishedSound` and "
                "`ReadsCorrect`.",
            ),
        ),
        Theorem(
            "budget",
            budget,
            lambda off: budget(off, requests=3),
            BudgetTie,
            "any budgets, draft slots, demands, long-prefill threshold, model length and number "
            "of speculative tokens; six requests, any number of operations, FCFS and priority",
            (
                "Demands are what the proof of the counters gives: not negative, and below the "
                "model length.",
                "A synchronous load leaves a token to compute "
                "([open finding](findings.md#sync-load-of-everything)).",
                "Whether a request gets its blocks is open: every outcome is allowed.",
                "A request is looked at once in a call: the search has `ScheduleSet`.",
            ),
        ),
        Theorem(
            "counters",
            counters,
            counters,
            CountersTie,
            "any lengths, number of speculative tokens and limits, synchronous and asynchronous, "
            "three steps in flight",
            (
                "Synchronous speculation has one step in flight at most; `schedule` is not called "
                "while drafts are due. The loop of the engine sees to both.",
                "No synchronous load fails "
                "([open finding](findings.md#failed-sync-load-with-a-step-in-flight)), and a "
                "synchronous load leaves a token to compute.",
                "A padded decode is not cut by the long-prefill threshold "
                "([open finding](findings.md#padding-over-threshold)).",
                "Published tokens are any number up to the known ones, whatever the block size.",
                "Which tokens are delivered is not looked at, only how many: the search has "
                "`OutputExact`.",
            ),
        ),
        Theorem(
            "counters-any-depth",
            lambda off: counters(off, depth=None),
            lambda off: counters(off, depth=None),
            lambda compiled: CountersTie(compiled, depth=None),
            "as above, any number of steps in flight",
            (
                "The steps in flight are known by their sums; the oldest one is any that fits "
                "the sums, a stale one as long as there are stale tokens.",
            ),
        ),
        Theorem(
            "fence",
            fence,
            fence,
            FenceTie,
            "any number of steps, requests and deferred frees",
            (
                "The engine goes on: deferred blocks come back when the step at their fence is "
                "processed, and the engine processes every step that it dispatches.",
            ),
        ),
    )
}


@dataclass(frozen=True)
class Need:
    """A rule without which a proof fails.

    A shortest run of `operations` operations breaks the property `breaks`, and the explorer breaks
    `invariant` in `scope`; no scope is the one of the rule's recorded counterexample.
    """

    theorem: str
    rule: Rule
    invariant: Id
    breaks: str
    operations: int
    scope: Scope | None = None


_LENGTH_ENDS_A_SENDER = Scope(
    name="length-ends-a-sender",
    num_speculative_tokens=2,
    kv_role="kv_producer",
    requests=(RequestSpec(prompt=(1,), max_tokens=2, delay_free=True),),
    num_blocks=5,
    max_num_batched_tokens=4,
    max_model_len=8,
)

NEEDS = (
    Need("blocks", Rule.take_hit_from_free_queue, Id.BlockConservation, "conservation", 4),
    Need("blocks", Rule.free_at_last_reference, Id.BlockConservation, "conservation", 5),
    Need(
        "blocks",
        Rule.evict_hash_on_reuse,
        Id.NoReuseInFlight,
        "load_has_its_block_alone",
        4,
        scope=SCOPES["two-loads"],
    ),
    Need("blocks", Rule.pin_hits_before_allocating, Id.PublishedSound, "once_in_a_table", 4),
    Need(
        "blocks", Rule.fence_in_flight_frees, Id.NoReuseInFlight, "none_handed_out_while_fenced", 4
    ),
    Need("blocks", Rule.fence_at_last_scheduled_step, Id.FreedExactlyOnce, "freed_exactly_once", 4),
    Need(
        "blocks",
        Rule.hold_blocks_until_load_done,
        Id.NoReuseInFlight,
        "none_handed_out_while_held",
        3,
    ),
    Need(
        "blocks",
        Rule.release_hold_if_load_already_done,
        Id.FreedExactlyOnce,
        "freed_exactly_once",
        5,
    ),
    Need(
        "blocks", Rule.hold_blocks_until_sent, Id.NoReuseInFlight, "none_handed_out_while_held", 3
    ),
    Need("blocks", Rule.publish_loads_when_done, Id.NoReuseInFlight, "load_has_its_block_alone", 2),
    Need("blocks", Rule.wait_for_remote_load, Id.NoReuseInFlight, "none_handed_out_while_held", 3),
    Need("blocks", Rule.finish_once, Id.NoReuseInFlight, "none_handed_out_while_held", 4),
    Need("budget", Rule.respect_token_budget, Id.BudgetRespected, "never_negative", 2),
    Need("budget", Rule.respect_input_budget, Id.BudgetRespected, "never_negative", 2),
    Need("budget", Rule.refund_victim_budget, Id.BudgetRespected, "budgets_are_what_is_left", 4),
    Need("budget", Rule.cap_positions_at_model_length, Id.BudgetRespected, "within_the_caps", 2),
    Need("budget", Rule.drop_victim_from_step, Id.ScheduleSet, "no_victim_in_the_step", 4),
    Need("budget", Rule.admit_nobody_after_preemption, Id.ScheduleSet, "no_victim_in_the_step", 4),
    Need("budget", Rule.preempt_policy_last, Id.ScheduleSet, "no_victim_in_the_step", 4),
    Need("budget", Rule.recompute_last_token, Id.NoAssertion, "something_to_schedule", 1),
    Need(
        "counters",
        Rule.recompute_last_loaded_token,
        Id.NoAssertion,
        "a_waiting_request_has_a_token_to_compute",
        3,
    ),
    Need(
        "counters",
        Rule.publish_committed_tokens_only,
        Id.PublishedSound,
        "published_is_committed",
        2,
    ),
    Need(
        "counters",
        Rule.keep_stale_output_off_counters,
        Id.CountersConsistent,
        "nothing_negative",
        4,
    ),
    Need(
        "counters",
        Rule.roll_back_rejected_drafts,
        Id.CountersConsistent,
        "computed_within_known",
        3,
    ),
    Need(
        "counters",
        Rule.roll_back_rejected_placeholders,
        Id.PublishedSound,
        "placeholders_are_planned",
        3,
    ),
    Need(
        "counters",
        Rule.forget_victim_placeholders,
        Id.CountersConsistent,
        "waiting_without_placeholders",
        3,
    ),
    Need(
        "counters",
        Rule.trim_output_after_stop,
        Id.OutputExact,
        "no_token_past_the_limit",
        3,
        scope=_LENGTH_ENDS_A_SENDER,
    ),
    Need("fence", Rule.fence_in_flight_frees, Id.NoReuseInFlight, "not_before_the_writer", 3),
    Need("fence", Rule.fence_at_last_scheduled_step, Id.NoReuseInFlight, "waits_for_the_writer", 3),
)


def prove_theorem(name: str, *, seconds: float = SECONDS) -> Proof:
    """Prove a theorem with every rule on."""
    relation = THEOREMS[name].build(frozenset())
    return replace(prove(relation, seconds=seconds), relation=name)


def prove_without(
    name: str, rule: Rule, *, seconds: float = SECONDS, claims: Sequence[str] = ()
) -> Proof:
    """Try the proof with a rule off, in a small instance, and search for a run that breaks it.

    `claims` are the properties of which one is to be broken, all by default.
    """
    relation = THEOREMS[name].small(frozenset({rule}))
    proof = prove(relation, seconds=seconds, search_steps=SEARCH_STEPS, claims=claims)
    return replace(proof, relation=name)


def explore_without(need: Need, recorded: Scope) -> tuple[Trace | None, Comparison | None]:
    """The explorer's run that breaks the invariant, held against the relation without the rule."""
    scope = (need.scope or recorded).with_rules_off(need.rule.name)
    # What follows an assertion is looked at only if assertions are.
    looked_at = {need.invariant, Id.NoAssertion}
    done = check(scope, ignore=frozenset(Id) - looked_at)
    done.result.finished()
    trace = done.trace
    if trace is None or need.invariant.name not in trace.broken:
        return None, None
    tie = THEOREMS[need.theorem].tie
    transitions = [(moment.before.row, moment.code) for moment in replay(trace)]
    return trace, compare(scope, transitions, lambda compiled: (tie(compiled),))
