"""The named scopes: small worlds that together exercise every part of the model."""

from __future__ import annotations

from spec.scope import RequestSpec, Scope

_R = RequestSpec

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
        ),
        num_blocks=5,
        max_num_batched_tokens=4,
        max_model_len=7,
    ),
    Scope(
        name="priorities",
        about="three priorities and a budget of 3: victims that stand before the cursor",
        policy="priority",
        max_num_seqs=3,
        requests=(
            _R(prompt=(1, 1, 2), max_tokens=4, priority=1, may_abort=True),
            _R(prompt=(2, 1), max_tokens=4, priority=0, may_stop=True),
            _R(prompt=(1,), max_tokens=5, priority=2, may_abort=True),
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
            _R(prompt=(1, 1, 2, 2), max_tokens=3, may_stop=True, may_abort=True),
            _R(prompt=(2, 1, 1), max_tokens=4, may_stop=True, may_abort=True),
            _R(prompt=(2, 1), max_tokens=4, may_abort=True),
            _R(prompt=(1, 1), max_tokens=3, may_abort=True),
        ),
        num_blocks=7,
        max_num_batched_tokens=5,
        max_model_len=7,
    ),
)

SCOPES = {scope.name: scope for scope in SYNCHRONOUS}
