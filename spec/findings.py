"""Open findings: what the checker finds on vLLM 0.31.0 with every rule on.

Each is expected to fail, with its trace in counterexamples/findings/. A check fails if one
disappears unnoticed, and replays each on the real classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.spec.identity import Cause, Identity, Pattern
from kvproof.spec.masks import Id

_R = RequestSpec
_E = External


@dataclass(frozen=True, kw_only=True)
class OpenFinding:
    """One finding: where it shows, what falls, who can meet it, and what would mend it.

    `patterns` have the identities of the violations that it explains.
    """

    id: str
    title: str
    scope: Scope
    where: str
    account: str
    reachable: str
    mend: str
    patterns: tuple[Pattern, ...] = ()

    def explains(self, identity: Identity) -> bool:
        """Whether a violation of this identity is this finding."""
        return any(pattern.has(identity) for pattern in self.patterns)


@dataclass(frozen=True, kw_only=True)
class Finding(OpenFinding):
    """A finding that breaks an invariant.

    The search for it passes over the invariants in `past`: they fall earlier, as another finding.
    """

    broken: Id
    past: tuple[Id, ...] = ()


_SCHEDULER = "vllm/v1/core/sched/scheduler.py"

FINDINGS = (
    Finding(
        id="padding-over-threshold",
        title="An admitted decode is padded past the long-prefill threshold: the engine dies",
        scope=Scope(
            name="padding-over-threshold",
            num_speculative_tokens=1,
            long_prefill_token_threshold=1,
            requests=(
                _R(prompt=(1, 2, 1), max_tokens=2),
                _R(prompt=(1, 2, 1), max_tokens=2),
            ),
            num_blocks=6,
            max_num_batched_tokens=4,
            max_model_len=8,
        ),
        patterns=(Pattern(broken=("NoAssertion",), where=("padding_cut",)),),
        broken=Id.NoAssertion,
        where=f"{_SCHEDULER}: schedule, the waiting part",
        account="A waiting request with one token left to compute is padded to 1 + k tokens. The "
        "long-prefill threshold then cuts it like a prefill, and the assertion that a padded "
        "request still has 1 + k tokens fails after the request has been taken in.",
        reachable="By configuration: speculative decoding with 0 < long_prefill_token_threshold "
        "< 1 + k, which start-up accepts, and two requests, one of which hits all but its last "
        "token or is resumed. The assertion ends the engine. Real thresholds are hundreds of "
        "tokens, so nobody is likely to meet it by accident.",
        mend="Pad after the threshold has been applied, or exempt padded requests from it, or "
        "refuse such thresholds at start-up.",
    ),
    Finding(
        id="sync-load-of-everything",
        title="A synchronous connector that has the whole request leaves nothing to schedule",
        scope=Scope(
            name="sync-load-of-everything",
            kv_role="kv_consumer",
            requests=(_R(prompt=(1, 2, 1), max_tokens=2, external=_E(3, is_async=False)),),
            num_blocks=4,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        patterns=(Pattern(broken=("NoAssertion",), where=("nothing_to_schedule",), causes=()),),
        broken=Id.NoAssertion,
        where=f"{_SCHEDULER}: schedule, the waiting part",
        account="A local hit leaves the last token to compute, and so does an asynchronous load. "
        "A synchronous load is taken at its word: if it covers every token, the number of new "
        "tokens is 0 and the assertion that it is positive fails.",
        reachable="By a connector that answers get_num_new_matched_tokens with all of the "
        "request's tokens and no asynchronous load. Nothing in the interface forbids that; the "
        "connectors in the tree hold one token back themselves. The assertion ends the engine.",
        mend="Cap external hits at num_tokens - 1 where load_kv_async is false, like local hits.",
    ),
    Finding(
        id="reset-while-loading",
        title="A reset of running requests raises while a load holds blocks, after preempting all",
        scope=Scope(
            name="reset-while-loading",
            kv_role="kv_consumer",
            may_reset_running=True,
            requests=(_R(prompt=(1, 2, 1), max_tokens=2, external=_E(2)),),
            num_blocks=4,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        patterns=(Pattern(broken=("ResetSound",), action="reset_prefix_cache", causes=()),),
        broken=Id.ResetSound,
        where=f"{_SCHEDULER}: reset_prefix_cache",
        account="Requests that wait for a remote load keep their blocks, so the pool is in use and "
        "the reset fails with a RuntimeError. By then every running request has been preempted, "
        "and its output in flight will be dropped.",
        reachable="By any user of reset_prefix_cache(reset_running_requests=True) (a change of "
        "weights) with an asynchronous KV consumer. vLLM's message says that it is not supported.",
        mend="Look before preempting, and return False, so that the caller can try again.",
    ),
    Finding(
        id="reset-behind-fence",
        title="A reset of running requests raises when a step is in flight on a KV consumer",
        scope=Scope(
            name="reset-behind-fence",
            kv_role="kv_consumer",
            async_scheduling=True,
            may_reset_running=True,
            requests=(_R(prompt=(1, 2, 1), max_tokens=2),),
            num_blocks=4,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        broken=Id.ResetSound,
        where=f"{_SCHEDULER}: reset_prefix_cache, _free_request_blocks",
        account="With defer_block_free the blocks of a preempted request go behind a fence while a "
        "step that was dispatched may still write them. They are not free, so the reset that has "
        "just preempted their owner finds the pool in use and raises RuntimeError. No load is "
        "involved, though the message speaks of one.",
        reachable="By any user of reset_prefix_cache(reset_running_requests=True) with a consumer "
        "connector under asynchronous scheduling (the default) or pipeline parallelism while "
        "anything runs. It is the normal case there, not a rare one.",
        mend="Withdraw the hashes at once and let the fenced blocks come back on their own: what "
        "counts for a reset is that nothing old can be hit. Or drain the steps first.",
    ),
    Finding(
        id="failed-sync-load-stays-published",
        title="Blocks of a failed synchronous load stay published with garbage in them",
        scope=Scope(
            name="failed-sync-load-stays-published",
            kv_role="kv_consumer",
            may_fail_loads=True,
            requests=(_R(prompt=(1, 2, 1), max_tokens=2, external=_E(2, is_async=False)),),
            num_blocks=4,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        broken=Id.PublishedSound,
        where=f"{_SCHEDULER}: _handle_invalid_blocks",
        account="Blocks of a synchronous load are published at admission. When the load fails "
        "under the recompute policy they are to be rewritten by their owner and stay published "
        "until then: for as long as that takes, their hash promises KV that is not there.",
        reachable="By a synchronous connector whose load fails, under the default policy. By "
        "itself this hurts nobody; the next finding is what it leads to.",
        mend="Withdraw the hashes of the invalid and later blocks, as the fail policy does.",
    ),
    Finding(
        id="failed-sync-load-of-aborted-request",
        title="Garbage of a failed synchronous load is served to others after an abort",
        scope=Scope(
            name="failed-sync-load-of-aborted-request",
            kv_role="kv_consumer",
            kv_load_failure_policy="fail",
            may_fail_loads=True,
            requests=(
                _R(
                    prompt=(1, 2, 1),
                    max_tokens=2,
                    may_abort=True,
                    external=_E(2, is_async=False),
                ),
                _R(prompt=(1, 2, 1), max_tokens=2),
            ),
            num_blocks=4,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        broken=Id.ReadsCorrect,
        past=(Id.PublishedSound,),
        where=f"{_SCHEDULER}: _handle_invalid_blocks, update_from_output",
        account="Only running requests are searched for invalid blocks. A client that aborts while "
        "the step with the failed load is in flight takes its request out of the running list; "
        "its blocks are in the free queue by then, published, and nobody withdraws their hashes. "
        "The next request with the same prefix hits them and computes from garbage.",
        reachable="By any user of a synchronous connector: one failed load and one abort in the "
        "same step, under either policy. The output of another client's request is wrong, "
        "silently, until the blocks are evicted.",
        mend="Withdraw the hashes of all invalid blocks by their number, whoever holds them.",
    ),
    Finding(
        id="failed-sync-load-read-before-rewritten",
        title="A request hits blocks of a failed synchronous load before they are rewritten",
        scope=Scope(
            name="failed-sync-load-read-before-rewritten",
            kv_role="kv_consumer",
            may_fail_loads=True,
            long_prefill_token_threshold=1,
            requests=(
                _R(prompt=(1, 2, 1, 2, 1), max_tokens=1, external=_E(4, is_async=False)),
                _R(prompt=(1, 2, 1, 2, 1), max_tokens=1),
            ),
            num_blocks=7,
            max_num_batched_tokens=4,
            max_model_len=8,
        ),
        broken=Id.ReadsCorrect,
        past=(Id.PublishedSound,),
        where=f"{_SCHEDULER}: _handle_invalid_blocks",
        account="Under the recompute policy the failed blocks stay published, for their owner is "
        "to rewrite them before anybody reads. That is so only if it rewrites all of them in its "
        "next step. Where it goes on in chunks, a request that arrives now hits blocks that the "
        "owner has not come to, and its tokens are computed from garbage.",
        reachable="By any user of a synchronous connector under the default policy: one failed "
        "load of several blocks, chunked prefill, and a second request with the same prefix "
        "within the next few steps. The wrong output is silent. Answers vllm#49250.",
        mend="Withdraw the hashes of the invalid and later blocks, as the fail policy does.",
    ),
    Finding(
        id="failed-sync-load-with-a-step-in-flight",
        title="After a failed synchronous load the next step's output, made from garbage, is kept",
        scope=Scope(
            name="failed-sync-load-with-a-step-in-flight",
            kv_role="kv_consumer",
            may_fail_loads=True,
            async_scheduling=True,
            requests=(_R(prompt=(1, 2, 1), max_tokens=3, external=_E(2, is_async=False)),),
            num_blocks=5,
            max_num_batched_tokens=8,
            max_model_len=8,
        ),
        patterns=(Pattern(causes=(Cause.FAILED_SYNC_LOAD,)),),
        broken=Id.OutputExact,
        past=(Id.PublishedSound,),
        where=f"{_SCHEDULER}: _update_requests_with_invalid_blocks, update_from_output",
        account="The step with the failed load is not the last one in flight: under asynchronous "
        "scheduling its successor has been dispatched on the same garbage. The output of the "
        "failed step is skipped and the computed tokens are taken back, but not the placeholders, "
        "and the successor's output is delivered as if nothing had happened: a token computed "
        "from garbage, in the place of the one that was skipped.",
        reachable="By any user of a synchronous connector under asynchronous scheduling, which is "
        "the default, and the default policy: every failed load of a request that decodes. The "
        "client gets wrong tokens.",
        mend="Treat it as a preemption: mark what is in flight as stale and to be dropped, and "
        "clear the placeholders.",
    ),
    Finding(
        id="failed-sync-load-with-a-sharer-in-flight",
        title="A request that shares blocks of a failed load delivers what it computed from them",
        scope=Scope(
            name="failed-sync-load-with-a-sharer-in-flight",
            kv_role="kv_consumer",
            may_fail_loads=True,
            pipeline_parallel_size=2,
            requests=(
                _R(prompt=(1, 2, 1), max_tokens=2, external=_E(2, is_async=False)),
                _R(prompt=(1, 2, 1), max_tokens=2),
            ),
            num_blocks=5,
            max_num_batched_tokens=3,
            max_model_len=5,
        ),
        broken=Id.ReadsCorrect,
        past=(Id.PublishedSound,),
        where=f"{_SCHEDULER}: _update_requests_with_invalid_blocks",
        account="While the step with the load is in flight its blocks are published, and the next "
        "step may admit a request that hits them. When the load turns out to have failed, the "
        "second request has computed nothing before the invalid block in that step and is not "
        "counted as affected; its step is in flight, has read garbage, and its output is used.",
        reachable="By any user of a synchronous connector with more than one step in flight "
        "(asynchronous scheduling or pipeline parallelism) and two requests with a common prefix.",
        mend="Look for invalid blocks in all in-flight steps and drop the output of those that "
        "read them.",
    ),
    Finding(
        id="loaded-part-stands-before-a-whole",
        title="A request loaded in part stands before one that is loaded whole, and neither moves",
        scope=Scope(
            name="loaded-part-stands-before-a-whole",
            policy="priority",
            kv_role="kv_consumer",
            reserve_full_isl=False,
            block_size=1,
            max_num_seqs=1,
            requests=(
                _R(prompt=(1, 1), max_tokens=1, external=_E(1)),
                _R(prompt=(1, 1), max_tokens=1, priority=1, external=_E(2)),
            ),
            num_blocks=4,
            max_num_batched_tokens=1,
            max_model_len=3,
        ),
        broken=Id.NoStall,
        patterns=(
            Pattern(broken=("NoStall",), where=("waiting_no_blocks",), causes=(Cause.HELD,)),
        ),
        where=f"{_SCHEDULER}: schedule, kv_holding_waiting",
        account="With scheduler_reserve_full_isl off an asynchronous load is admitted if what it "
        "loads fits beside what other loads still need; what its own request needs afterwards is "
        "nobody's concern. Here the rest of the prompt does not fit any more when the load has "
        "ended. The one that was admitted before it has been loaded whole, needs no block, and "
        "would give its own back. But it ranks behind: requests that hold blocks are scanned in "
        "the policy's order, and the scan ends at the first that does not fit. Neither runs ever "
        "again, and nothing else is admitted.",
        reachable="By users of the priority policy and a connector that loads asynchronously, who "
        "have switched scheduler_reserve_full_isl off (it is on by default), under memory "
        "pressure: a request of a higher rank of which the connector has a part, admitted while a "
        "longer load is under way. Only an abort ends it.",
        mend="Go on with the scan past a request that holds blocks and does not fit, or count the "
        "rest of the request's own sequence when its load is admitted, whatever the option says.",
    ),
    Finding(
        id="load-reserve-larger-than-the-pool",
        title="An asynchronous load that fits alone in the pool is never admitted",
        scope=Scope(
            name="load-reserve-larger-than-the-pool",
            kv_role="kv_consumer",
            num_speculative_tokens=2,
            spec_method="draft_model",
            requests=(_R(prompt=(1, 2, 1), max_tokens=2, external=_E(2)),),
            num_blocks=4,
            max_num_batched_tokens=8,
            max_model_len=5,
        ),
        patterns=(Pattern(broken=("NoStall",), where=("waiting_reservation_refused",), causes=()),),
        broken=Id.NoStall,
        where=f"{_SCHEDULER}: schedule, _spec_decode_step_blocks",
        account="An asynchronous load is admitted only if, besides its own blocks, those of one "
        "speculative step stay free: 1 + k + lookahead tokens, rounded up, whatever room the "
        "loaded blocks still have and whatever the model length. A request of nearly the pool's "
        "size never gets that much, with nothing else running and nothing to wait for. Without "
        "the connector it would run.",
        reachable="By configuration: speculative decoding, a consumer connector, and a pool that "
        "start-up accepts for max_model_len but that is not one speculative step larger. The "
        "request and all behind it wait for ever; the engine goes on taking empty steps.",
        mend="Count only what a speculative step needs beyond the blocks that the request will "
        "have, capped at the model length; or admit a load regardless when nothing else runs.",
    ),
    Finding(
        id="one-token-load-stands-in-the-way",
        title="A prompt of one token that was loaded is refused for blocks reserved for itself",
        scope=Scope(
            name="one-token-load-stands-in-the-way",
            kv_role="kv_consumer",
            num_speculative_tokens=1,
            requests=(_R(prompt=(1,), max_tokens=1, external=_E(1)),),
            num_blocks=3,
            max_num_batched_tokens=4,
            max_model_len=3,
        ),
        broken=Id.NoStall,
        patterns=(
            Pattern(broken=("NoStall",), where=("waiting_no_blocks",), after=Cause.ONE_TOKEN_LOAD),
        ),
        where=f"{_SCHEDULER}: schedule, _update_waiting_for_remote_kv, "
        "_inflight_prefill_reserved_blocks",
        account="A prompt of one token that a connector has is taken for a fresh admission when "
        "its load has ended (one-token-load-goes-round). Under speculative decoding it does not "
        "even go round where the pool is small: it is among the in-flight prefills since its first "
        "load, so the second is admitted only if, besides a speculative step of its own, what it "
        "needs itself, a speculative step once more, stays free. It holds its block, so it is "
        "scanned before all others, and the scan ends there: nobody behind it runs either.",
        reachable="By a connector that offers the whole prompt more than once, with prompts of one "
        "token, under speculative decoding, when less than two speculative steps (and what other "
        "loads in flight have reserved) are free. Others that could run wait with it.",
        mend="Tell a request that has been loaded from a fresh one by its blocks; or leave the "
        "request that is to be admitted out of the sum.",
    ),
    Finding(
        id="failed-load-stands-in-its-own-way",
        title="After a failed load a request reserves blocks against itself and is never admitted",
        scope=Scope(
            name="failed-load-stands-in-its-own-way",
            kv_role="kv_consumer",
            may_fail_loads=True,
            requests=(_R(prompt=(1, 2, 1, 2, 1), max_tokens=1, external=_E(4)),),
            num_blocks=4,
            max_num_batched_tokens=8,
            max_model_len=6,
        ),
        broken=Id.NoStall,
        patterns=(
            Pattern(
                broken=("NoStall",),
                where=("waiting_reservation_refused",),
                after=Cause.OWN_RESERVE,
            ),
        ),
        where=f"{_SCHEDULER}: _update_waiting_for_remote_kv, _inflight_prefill_reserved_blocks",
        account="A request enters the set of in-flight prefills when its load starts. If the load "
        "fails with nothing valid, its blocks are freed and it is admitted afresh, but it stays in "
        "the set. When the connector offers the load again, the request must leave room for what "
        "in-flight prefills still need, and that includes its own whole sequence. Unless the pool "
        "has room for it twice, it waits for itself, alone, for ever.",
        reachable="By any user of an asynchronous consumer under the default recompute policy: one "
        "failed load of a request that takes more than half of what is free then. With nothing "
        "else running the engine never recovers; all requests behind it wait too.",
        mend="Take the request out of _inflight_prefills when its blocks are freed, or leave it "
        "out of the sum when it is the one to be admitted.",
    ),
    Finding(
        id="padding-never-fits",
        title="A decode that must be padded to more tokens than the budget is never admitted",
        scope=Scope(
            name="padding-never-fits",
            num_speculative_tokens=2,
            requests=(
                _R(prompt=(1, 2, 1), max_tokens=2),
                _R(prompt=(1, 2, 1), max_tokens=2),
            ),
            num_blocks=6,
            max_num_batched_tokens=2,
            max_model_len=8,
        ),
        broken=Id.NoStall,
        patterns=(Pattern(broken=("NoStall",), where=("waiting_pad_does_not_fit",)),),
        where=f"{_SCHEDULER}: schedule, the waiting part",
        account="A waiting request with one token left is padded to 1 + k tokens, and rather not "
        "scheduled than scheduled without padding. Where the whole budget of a step is smaller "
        "than that, it is not scheduled in any step, even if nothing else runs, and nor is anybody "
        "behind it: the scan ends there.",
        reachable="By configuration: speculative decoding with max_num_scheduled_tokens (or "
        "max_num_batched_tokens) below 1 + k, which start-up accepts. Real budgets are larger.",
        mend="Schedule it without padding when nothing else is scheduled in the step, or refuse "
        "such budgets at start-up.",
    ),
    Finding(
        id="one-token-load-goes-round",
        title="A prompt of one token that a connector has is loaded again and again",
        scope=Scope(
            name="one-token-load-goes-round",
            kv_role="kv_consumer",
            block_size=1,
            requests=(_R(prompt=(1,), max_tokens=1, external=_E(1)),),
            num_blocks=4,
            max_num_batched_tokens=8,
            max_model_len=3,
        ),
        patterns=(
            Pattern(broken=("NoReuseInFlight",), action="schedule", causes=(Cause.ONE_TOKEN_LOAD,)),
        ),
        broken=Id.NoReuseInFlight,
        where=f"{_SCHEDULER}: _update_waiting_for_remote_kv, schedule",
        account="When a load has brought the whole prompt, the last token is to be computed again: "
        "computed tokens go back by one. For a prompt of one token that is 0, which the scan takes "
        "for a fresh admission: it asks the connector, and loads the same token once more, into "
        "the block that it has just published. The request never runs.",
        reachable="By a connector that offers the whole prompt more than once, with prompts of one "
        "token (or a resumed request of one token). One-shot transfers come round once only and "
        "then compute the token; connectors that offer whole blocks never meet it with blocks "
        "of more than one token.",
        mend="Tell a request that has been loaded from a fresh one by its blocks, not by its "
        "computed tokens.",
    ),
    Finding(
        id="priority-victim-reads-its-own-garbage",
        title="A priority victim that was scheduled in the same call leaves garbage published",
        scope=Scope(
            name="priority-victim-reads-its-own-garbage",
            policy="priority",
            block_size=1,
            long_prefill_token_threshold=2,
            requests=(
                _R(prompt=(1, 1, 1, 1, 1, 1, 1), max_tokens=1, priority=1),
                _R(prompt=(1,), max_tokens=2),
            ),
            num_blocks=9,
            max_num_batched_tokens=3,
            max_model_len=8,
        ),
        broken=Id.ReadsCorrect,
        past=(Id.PublishedSound,),
        patterns=(
            Pattern(broken=("PublishedSound",), causes=(Cause.SCHEDULED_VICTIM,)),
            Pattern(broken=("ReadsCorrect",), action="output", causes=(Cause.SCHEDULED_VICTIM,)),
        ),
        where=f"{_SCHEDULER}: schedule, the priority branch of the preemption",
        account="allocate_slots publishes the blocks that a step will fill before the step is "
        "dispatched. If a request of higher priority then needs blocks in the same call, the "
        "victim may be one that has just been scheduled. It is taken out of the step, and its "
        "blocks go back to the pool with their hashes in place; but the step that was to fill "
        "them never runs for it. Unless the new owner happens to take exactly those blocks, they "
        "stay published with garbage in them. Here the victim itself is resumed, hits them, and "
        "computes its token from garbage.",
        reachable="By any user of the priority policy with prefix caching (the default), without "
        "any connector: a preemption whose victim was scheduled earlier in the same call and was "
        "to fill two blocks, or one and a draft's. The wrong output is silent. vllm#57580 reports "
        "the same cause for the checkpoints of Mamba layers.",
        mend="Withdraw the hashes that this call has published when a victim is taken out of the "
        "step, or publish only when the step is put together.",
    ),
    Finding(
        id="priority-victim-garbage-read-by-another",
        title="The garbage that a priority victim leaves published is served to another request",
        scope=Scope(
            name="priority-victim-garbage-read-by-another",
            policy="priority",
            block_size=1,
            num_speculative_tokens=1,
            requests=(
                _R(prompt=(1,), max_tokens=3, priority=1),
                _R(prompt=(1,), max_tokens=2),
                _R(prompt=(1, 1, 1, 1), max_tokens=1),
            ),
            num_blocks=7,
            max_num_batched_tokens=4,
            max_model_len=5,
        ),
        broken=Id.ReadsCorrect,
        past=(Id.PublishedSound,),
        where=f"{_SCHEDULER}: schedule, the priority branch of the preemption",
        account="The same as above under speculative decoding, with every other option at its "
        "default: the block that the victim's verified token was to complete stays published, "
        "and a request of another client with that prefix hits it.",
        reachable="By any user of the priority policy with prefix caching and speculation.",
        mend="As above.",
    ),
    Finding(
        id="prompt-above-the-scheduled-budget",
        title="Without chunked prefill a prompt above max_num_scheduled_tokens never runs",
        scope=Scope(
            name="prompt-above-the-scheduled-budget",
            chunked_prefill=False,
            max_num_seqs=1,
            requests=(_R(prompt=(1, 2, 1), max_tokens=1),),
            num_blocks=4,
            max_num_batched_tokens=5,
            max_num_scheduled_tokens=2,
            max_model_len=5,
        ),
        broken=Id.NoStall,
        patterns=(Pattern(broken=("NoStall",), where=("waiting_not_chunkable",)),),
        where=f"{_SCHEDULER}: schedule; vllm/config/scheduler.py",
        account="Start-up makes sure that without chunked prefill the batched budget holds the "
        "model length, but a step schedules no more than max_num_scheduled_tokens, which nothing "
        "compares with it. A longer prompt ends the scan in every step; nothing behind it runs.",
        reachable="By configuration: enable_chunked_prefill off and max_num_scheduled_tokens "
        "below a prompt's length, which start-up accepts.",
        mend="Compare the scheduled budget with the model length at start-up too.",
    ),
    Finding(
        id="producer-loads-without-fence",
        title="A connector in the producer role that loads has no fence",
        scope=Scope(
            name="producer-loads-without-fence",
            kv_role="kv_producer",
            block_size=1,
            pipeline_parallel_size=2,
            requests=(
                _R(prompt=(1, 1), max_tokens=1, may_abort=True),
                _R(prompt=(2, 2), max_tokens=1, external=_E(2)),
            ),
            num_blocks=4,
            max_num_batched_tokens=2,
            max_model_len=3,
        ),
        broken=Id.NoReuseInFlight,
        where=f"{_SCHEDULER}: __init__, defer_block_free",
        account="Freed blocks wait behind a fence only if the connector's role is to consume. "
        "Nothing keeps a connector in the producer role from answering with tokens to load: its "
        "load may then be given blocks that a dispatched step still writes.",
        reachable="By a connector that loads in spite of its role; the ones in the tree do not.",
        mend="Let the fence depend on what the connector does: arm it with the first load.",
    ),
)
