"""The named scopes: small worlds that together exercise every part of the model."""

from __future__ import annotations

from spec.scope import External, RequestSpec, Scope

_R = RequestSpec
_E = External

SYNCHRONOUS = (
    Scope(
        name="two-equal",
        about="two equal requests: a full prompt hit recomputes the last block",
        requests=(
            _R(prompt=(1, 2, 1, 2), max_tokens=2, may_stop=True),
            _R(prompt=(1, 2, 1, 2), max_tokens=2, may_stop=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=8,
        max_model_len=6,
    ),
    Scope(
        name="shared-prefix",
        about="two requests share a prefix in a pool too small for both; clients may abort",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_abort=True),
            _R(prompt=(1, 1), max_tokens=4, may_stop=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=7,
    ),
    Scope(
        name="priorities",
        about="four requests of three priorities and a budget of 3: victims before the cursor",
        policy="priority",
        max_num_seqs=3,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, priority=1, may_abort=True),
            _R(prompt=(2, 1), max_tokens=4, priority=0, may_stop=True),
            _R(prompt=(1,), max_tokens=5, priority=2, may_abort=True),
            _R(prompt=(2, 1, 1), max_tokens=2, priority=1, arrival=0, may_stop=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=3,
        max_model_len=7,
    ),
    Scope(
        name="block-size-1",
        about="blocks of one token, nested prompts, equal priorities and arrival times",
        policy="priority",
        block_size=1,
        max_num_seqs=3,
        requests=(
            _R(prompt=(1, 2), max_tokens=3, arrival=0, may_abort=True),
            _R(prompt=(1, 2, 1), max_tokens=3, arrival=0, may_stop=True, may_abort=True),
            _R(prompt=(1, 2, 1, 2), max_tokens=2, arrival=1),
            _R(prompt=(2,), max_tokens=4, arrival=1, may_abort=True),
        ),
        num_blocks=7,
        max_num_batched_tokens=5,
        max_model_len=6,
    ),
    Scope(
        name="reset-running",
        about="the prefix cache is reset, with and without running requests",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True),
            _R(prompt=(1, 1, 2, 2), max_tokens=2, may_abort=True),
            _R(prompt=(1, 1), max_tokens=3),
        ),
        num_blocks=6,
        max_num_batched_tokens=5,
        max_model_len=6,
        may_reset=True,
        may_reset_running=True,
    ),
    Scope(
        name="chunks",
        about="chunked prefill under a long-prefill threshold, a watermark and a scheduled-token "
        "budget below the batched one, without full-sequence admission",
        requests=(
            _R(prompt=(1, 1, 2, 2, 1), max_tokens=2, may_abort=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=3, may_stop=True),
            _R(prompt=(2, 2, 1, 1, 2), max_tokens=1, may_abort=True),
            _R(prompt=(2, 2), max_tokens=4, may_stop=True),
        ),
        num_blocks=6,
        max_num_seqs=3,
        max_num_batched_tokens=6,
        max_num_scheduled_tokens=4,
        max_model_len=7,
        long_prefill_token_threshold=2,
        reserve_full_isl=False,
        watermark=0.2,
    ),
    Scope(
        name="pause",
        about="pause and resume, no prefix caching, no chunked prefill, request cap of 2",
        prefix_caching=False,
        chunked_prefill=False,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(2, 1), max_tokens=4, may_abort=True),
            _R(prompt=(1, 2), max_tokens=2, may_stop=True, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=6,
        max_model_len=6,
        may_pause=True,
        may_reset=True,
    ),
    Scope(
        name="salted",
        about="equal prompts under different cache salts, and one without",
        requests=(
            _R(prompt=(1, 2, 1), max_tokens=3, salt="a", may_abort=True),
            _R(prompt=(1, 2, 1), max_tokens=3, salt="b", may_stop=True),
            _R(prompt=(1, 2, 1), max_tokens=3, may_abort=True),
            _R(prompt=(1, 2), max_tokens=4, may_stop=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=6,
        max_model_len=6,
    ),
    Scope(
        name="crowd",
        about="five requests, nested and disjoint prompts, stops and aborts: millions of states",
        max_num_seqs=3,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(2, 1, 1), max_tokens=5, may_stop=True, may_abort=True),
            _R(prompt=(2, 1), max_tokens=5, may_stop=True, may_abort=True),
            _R(prompt=(1, 1), max_tokens=4, may_abort=True),
        ),
        num_blocks=8,
        max_num_batched_tokens=6,
        max_model_len=8,
    ),
)

IN_FLIGHT = (
    Scope(
        name="async",
        about="asynchronous scheduling, two steps in flight, preemption, aborts at every point",
        async_scheduling=True,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=3, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=7,
    ),
    Scope(
        name="async-priority",
        about="asynchronous scheduling under priorities: victims with output in flight",
        async_scheduling=True,
        policy="priority",
        max_num_seqs=3,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, priority=1, may_stop=True, may_abort=True),
            _R(prompt=(2, 1), max_tokens=4, priority=0, may_stop=True),
            _R(prompt=(1,), max_tokens=5, priority=2, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=7,
    ),
    Scope(
        name="async-reset",
        about="resets with steps in flight: stale output is dropped",
        async_scheduling=True,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 2), max_tokens=2, may_stop=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=5,
        max_model_len=6,
        may_reset=True,
        may_reset_running=True,
    ),
    Scope(
        name="depth-3",
        about="two pipeline stages under asynchronous scheduling: three steps in flight and the "
        "decode cadence of the second model runner",
        async_scheduling=True,
        v2_model_runner=True,
        pipeline_parallel_size=2,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(2,), max_tokens=4, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=7,
    ),
    Scope(
        name="pipeline",
        about="three pipeline stages under the synchronous scheduler",
        pipeline_parallel_size=3,
        requests=(
            _R(prompt=(1, 1, 2, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(2,), max_tokens=4, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=2,
        max_model_len=7,
    ),
    Scope(
        name="drafts",
        about="synchronous speculation with two drafts, every number proposed and accepted",
        num_speculative_tokens=2,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=5, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_abort=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=5,
        max_model_len=8,
    ),
    Scope(
        name="draft-model",
        about="a draft model: lookahead slots and an input slot for each request",
        num_speculative_tokens=2,
        spec_method="draft_model",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=4, may_stop=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=6,
        max_model_len=8,
    ),
    Scope(
        name="async-drafts",
        about="asynchronous speculation with two placeholders, every acceptance, eagle-style",
        async_scheduling=True,
        num_speculative_tokens=2,
        spec_method="eagle",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=6, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 1), max_tokens=5, may_stop=True, may_abort=True),
        ),
        num_blocks=6,
        max_num_batched_tokens=8,
        max_model_len=10,
    ),
    Scope(
        name="consumer",
        about="a KV consumer with two steps in flight: asynchronous loads, fences, aborts at "
        "every point",
        async_scheduling=True,
        kv_role="kv_consumer",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_abort=True, external=_E(tokens=3)),
            _R(prompt=(2, 1, 1), max_tokens=2, may_abort=True, external=_E(2, ask_later=1)),
        ),
        num_blocks=6,
        max_num_batched_tokens=4,
        max_model_len=6,
    ),
    Scope(
        name="sync-loads",
        about="loads that the step itself waits for, of whole blocks and of a part of one",
        async_scheduling=True,
        kv_role="kv_consumer",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_abort=True, external=_E(2, is_async=False)),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_abort=True, external=_E(3, is_async=False)),
            _R(prompt=(2, 1, 1), max_tokens=2, may_stop=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=6,
    ),
    Scope(
        name="producer",
        about="a KV producer: blocks of finished requests are sent before they are freed",
        async_scheduling=True,
        kv_role="kv_producer",
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True, delay_free=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_stop=True, delay_free=True),
            _R(prompt=(2, 1), max_tokens=3, may_abort=True),
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=6,
    ),
    Scope(
        name="failing-loads",
        about="asynchronous loads that fail are recomputed",
        async_scheduling=True,
        kv_role="kv_consumer",
        may_fail_loads=True,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_abort=True, external=_E(tokens=4)),
        ),
        num_blocks=6,
        max_num_batched_tokens=4,
        max_model_len=6,
    ),
    Scope(
        name="fatal-loads",
        about="asynchronous loads that fail end their request; loads are one-shot",
        async_scheduling=True,
        kv_role="kv_both",
        kv_load_failure_policy="fail",
        may_fail_loads=True,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=3, may_stop=True, may_abort=True, delay_free=True),
            _R(prompt=(1, 1, 2, 1), max_tokens=2, may_abort=True, external=_E(4, once=True)),
        ),
        num_blocks=6,
        max_num_batched_tokens=4,
        max_model_len=6,
    ),
)

SCOPES = {scope.name: scope for scope in (*SYNCHRONOUS, *IN_FLIGHT)}

LOCKSTEP = tuple(name for name in SCOPES if name != "crowd")
"""Scopes small enough that every transition is replayed on the real classes."""
