"""Scope: every bound and switch of one check, validated as vLLM's start-up would.

A scope is written in Python or in TOML, each option by our name or by vLLM's; times, sizes and
lengths are counts of tokens, blocks, requests or steps.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvproof.model.mends import Mend
from kvproof.model.options import Option, Options, ScopeError, made, refuse
from kvproof.model.rules import Rule

MAX_REQUESTS = 16
MAX_BLOCKS = 256
MAX_BLOCK_SIZE = 64
MAX_MODEL_LEN = 512
MAX_DRAFTS = 3
MAX_DEPTH = 3
MAX_TOKEN = 249
STOP_TOKEN = MAX_TOKEN + 1  # it ends any request


class External(Options, frozen=True, forbid_unknown_fields=True):
    """What the KV connector has of a request's prefix."""

    WHAT = "an external prefix"

    tokens: Annotated[
        int, Option("tokens of the prefix that it has", 1, MAX_MODEL_LEN, says="{} tokens external")
    ]
    is_async: Annotated[
        bool, Option("it loads beside the steps, not within one", says="synchronous")
    ] = True
    once: Annotated[bool, Option("it loads one time only")] = False
    ask_later: Annotated[int, Option("times that it answers 'ask again later' first", 0, 3)] = 0


class RequestSpec(Options, frozen=True, forbid_unknown_fields=True):
    """One request that may arrive: its prompt, its limits, and what its client may do."""

    WHAT = "a request"

    prompt: Annotated[
        tuple[int, ...],
        Option("its tokens", 1, MAX_TOKEN, "a token", vllm="prompt_token_ids"),
    ]
    max_tokens: Annotated[int, Option("most tokens of its output", 1, MAX_MODEL_LEN)]
    priority: Annotated[int, Option("a lower one goes first", -100, 100)] = 0
    arrival: Annotated[
        int | None, Option("its arrival time; its number if left out", 0, 1000, vllm="arrival_time")
    ] = None
    may_stop: Annotated[
        bool, Option("any token of its output may be the stop token", driver=False)
    ] = False
    may_abort: Annotated[bool, Option("its client may abort it", driver=False)] = False
    salt: Annotated[
        str | None,
        Option("prefixes are shared among equal salts only", vllm="cache_salt", says="salt {!r}"),
    ] = None
    external: Annotated[
        External | None, Option("what the KV connector has of its prefix; needs a kv_role")
    ] = None
    delay_free: Annotated[
        bool, Option("its blocks are sent after it has finished; needs a kv_role")
    ] = False


class Scope(Options, frozen=True, forbid_unknown_fields=True):
    """Bounds and switches of one check; switches are as vLLM has them where nothing is said."""

    WHAT = "a scope"

    name: Annotated[str, Option("what it is called", driver=False)]
    requests: Annotated[tuple[RequestSpec, ...], Option("the requests that may arrive")]
    num_blocks: Annotated[
        int,
        Option(
            "blocks of the pool, the null block included",
            2,
            MAX_BLOCKS,
            "the null block and one more",
            vllm="num_gpu_blocks_override",
        ),
    ]
    max_num_batched_tokens: Annotated[int, Option("input slots of a step", 1, 1 << 14)]
    max_model_len: Annotated[int, Option("most tokens of a sequence", 2, MAX_MODEL_LEN)]
    about: Annotated[str, Option("what it is for, in a line", driver=False)] = ""
    block_size: Annotated[int, Option("tokens of a block", 1, MAX_BLOCK_SIZE)] = 2
    max_num_seqs: Annotated[int, Option("most requests running at a time", 1, MAX_REQUESTS)] = 2
    max_num_scheduled_tokens: Annotated[
        int | None,
        Option("tokens that a step may schedule; max_num_batched_tokens if left out", 1, 1 << 14),
    ] = None
    policy: Annotated[
        Literal["fcfs", "priority"],
        Option("who is admitted first, and who is preempted", vllm="scheduling_policy"),
    ] = "fcfs"
    prefix_caching: Annotated[
        bool, Option("full blocks are published and shared", vllm="enable_prefix_caching")
    ] = True
    chunked_prefill: Annotated[
        bool, Option("a prompt may be computed in chunks", vllm="enable_chunked_prefill")
    ] = True
    long_prefill_token_threshold: Annotated[
        int, Option("longest chunk of a prefill, up to max_model_len; 0: any", 0, MAX_MODEL_LEN)
    ] = 0
    reserve_full_isl: Annotated[
        bool,
        Option(
            "a request is admitted only if its whole sequence fits",
            vllm="scheduler_reserve_full_isl",
        ),
    ] = True
    watermark: Annotated[
        float, Option("share of the pool that admissions leave free", 0.0, 1.0)
    ] = 0.0
    async_scheduling: Annotated[
        bool, Option("a step is scheduled while the one before it runs")
    ] = False
    pipeline_parallel_size: Annotated[int, Option("pipeline stages", 1, MAX_DEPTH)] = 1
    v2_model_runner: Annotated[
        bool, Option("the second model runner", vllm="use_v2_model_runner")
    ] = False
    num_speculative_tokens: Annotated[
        int, Option("drafts of a step", 0, MAX_DRAFTS, vllm="spec_tokens", says="{} drafts")
    ] = 0
    spec_method: Annotated[Literal["ngram", "eagle", "draft_model"], Option("the drafter")] = (
        "ngram"
    )
    kv_role: Annotated[
        Literal["kv_consumer", "kv_producer", "kv_both"] | None,
        Option("the part of the KV connector; left out: there is no connector", says="{}"),
    ] = None
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"],
        Option("what becomes of a request whose load failed; vLLM's default is fail"),
    ] = "recompute"
    may_fail_loads: Annotated[bool, Option("loads may fail; needs a kv_role", driver=False)] = False
    may_reset: Annotated[bool, Option("the prefix cache may be reset", driver=False)] = False
    may_reset_running: Annotated[
        bool, Option("it may be reset with running requests preempted", driver=False)
    ] = False
    may_pause: Annotated[bool, Option("the scheduler may be paused and resumed", driver=False)] = (
        False
    )
    alphabet: Annotated[
        int, Option("tokens that an output is made of", 2, MAX_TOKEN, driver=False)
    ] = 2
    rules_off: Annotated[
        tuple[str, ...], Option("guards of vLLM that are taken out, by rule", driver=False)
    ] = ()
    mends: Annotated[
        tuple[str, ...], Option("changes that vLLM lacks and that are made, by mend", driver=False)
    ] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_sizes(self)
        _check_requests(self)
        _check_rules(self)
        _check_start_up(self)

    @property
    def depth(self) -> int:
        """Steps that may be in flight (vllm/config/vllm.py, max_concurrent_batches)."""
        if self.async_scheduling:
            if self.v2_model_runner:
                return self.pipeline_parallel_size + 1
            if self.pipeline_parallel_size <= 1:
                return 2
        return self.pipeline_parallel_size

    @property
    def token_budget(self) -> int:
        """Tokens one step may schedule."""
        if self.max_num_scheduled_tokens is None:
            return self.max_num_batched_tokens
        return self.max_num_scheduled_tokens

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots past the scheduled tokens (vllm/config/vllm.py, num_lookahead_tokens)."""
        drafter_has_kv = self.spec_method in ("eagle", "draft_model")
        return self.num_speculative_tokens if drafter_has_kv else 0

    @property
    def draft_slots(self) -> int:
        """Input slots that drafting adds to each request (vllm/config/speculative.py)."""
        return int(self.num_speculative_tokens > 0 and self.spec_method == "draft_model")

    @property
    def defer_block_free(self) -> bool:
        """Whether frees wait behind a fence (vllm/v1/core/sched/scheduler.py, __init__)."""
        if Mend.fence_in_every_role.name in self.mends:
            return self.depth > 1 and self.kv_role is not None
        return self.depth > 1 and self.kv_role in ("kv_consumer", "kv_both")

    def with_rules_off(self, *rules: str) -> Scope:
        """The same scope with these rules switched off too."""
        return msgspec.structs.replace(self, rules_off=tuple(sorted({*self.rules_off, *rules})))

    def with_mends(self, *mends: str) -> Scope:
        """The same scope with these mends made too."""
        return msgspec.structs.replace(self, mends=tuple(sorted({*self.mends, *mends})))


def _within(field: str, value: int, low: int, high: int, why: str) -> None:
    if not low <= value <= high:
        refuse(field, value, f"{low}..{high} ({why})")


def _check_sizes(scope: Scope) -> None:
    if not scope.name:
        refuse("name", scope.name, "a non-empty name")
    if scope.depth > MAX_DEPTH:
        refuse("pipeline_parallel_size", scope.pipeline_parallel_size, f"depth <= {MAX_DEPTH}")


def _check_requests(scope: Scope) -> None:
    _within("requests", len(scope.requests), 1, MAX_REQUESTS, "the requests that a record holds")
    for i, request in enumerate(scope.requests):
        where = f"requests[{i}]"
        _within(
            f"{where}.prompt",
            len(request.prompt),
            1,
            scope.max_model_len - 1,
            "tokens; max_model_len leaves room for one output",
        )
        if request.external is not None:
            if scope.kv_role is None:
                refuse(f"{where}.external", request.external, "none without a kv_role")
            tokens = request.external.tokens
            _within(f"{where}.external.tokens", tokens, 1, scope.max_model_len, "max_model_len")
        if request.delay_free and scope.kv_role is None:
            refuse(f"{where}.delay_free", True, "false without a kv_role")


def _check_start_up(scope: Scope) -> None:
    """What vLLM itself refuses at start-up (vllm/config/scheduler.py, vllm/config/vllm.py)."""
    batched = scope.max_num_batched_tokens
    if batched < scope.max_num_seqs:
        refuse("max_num_batched_tokens", batched, f">= max_num_seqs = {scope.max_num_seqs}")
    if not scope.chunked_prefill and batched < scope.max_model_len:
        refuse(
            "max_num_batched_tokens",
            batched,
            f">= max_model_len = {scope.max_model_len} without chunked prefill",
        )
    compares = Mend.compare_scheduled_budget.name in scope.mends
    if compares and not scope.chunked_prefill and scope.token_budget < scope.max_model_len:
        refuse(
            "max_num_scheduled_tokens",
            scope.token_budget,
            f">= max_model_len = {scope.max_model_len} without chunked prefill",
        )
    if batched <= scope.draft_slots:
        refuse("max_num_batched_tokens", batched, f"> draft slots = {scope.draft_slots}")
    if not 0 <= scope.long_prefill_token_threshold <= scope.max_model_len:
        refuse(
            "long_prefill_token_threshold",
            scope.long_prefill_token_threshold,
            f"0..max_model_len = {scope.max_model_len}",
        )
    needed = -(-scope.max_model_len // scope.block_size)
    if scope.num_blocks - 1 < needed:
        refuse(
            "num_blocks",
            scope.num_blocks,
            f">= {needed + 1}: one request of max_model_len = {scope.max_model_len} needs "
            f"{needed} blocks besides the null block",
        )
    speculative = scope.num_speculative_tokens > 0
    if scope.async_scheduling and speculative and scope.spec_method == "ngram":
        refuse("spec_method", scope.spec_method, "eagle or draft_model with async_scheduling")
    if scope.async_scheduling and scope.pipeline_parallel_size > 1 and not scope.v2_model_runner:
        refuse("v2_model_runner", False, "true for async_scheduling with pipeline parallelism")
    if speculative and not scope.async_scheduling and scope.pipeline_parallel_size > 1:
        refuse(
            "num_speculative_tokens",
            scope.num_speculative_tokens,
            "0 with pipeline parallelism and the synchronous scheduler (not modelled)",
        )
    if scope.may_fail_loads and scope.kv_role is None:
        refuse("may_fail_loads", True, "false without a kv_role")


def _check_rules(scope: Scope) -> None:
    for rule in scope.rules_off:
        if rule not in Rule.__members__:
            refuse("rules_off", rule, "a rule's name; `kvproof rules` lists them")
    for mend in scope.mends:
        if mend not in Mend.__members__:
            refuse("mends", mend, ", ".join(Mend.__members__))


def scope_from_dict(values: Mapping[str, Any]) -> Scope:
    """A scope from plain values by name, ours or vLLM's; ScopeError with the place of a mistake."""
    return made(Scope, values)


def scope_to_dict(scope: Scope) -> dict[str, Any]:
    """Plain values of a scope, for JSON."""
    return dict(msgspec.to_builtins(scope))


def load_scope(path: Path | str) -> Scope:
    """Read a scope from a TOML file; its name defaults to the file's."""
    path = Path(path)
    if str(path) == "-":
        raise ScopeError("-: a scope is read from a file; give the path of one")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except IsADirectoryError:
        raise ScopeError(f"{path}: a folder; a scope is a TOML file") from None
    except OSError as error:
        raise ScopeError(f"{path}: {str(error.strerror).lower()}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScopeError(f"{path}: not TOML: {error}") from error
    try:
        return scope_from_dict({"name": path.stem, **values})
    except ScopeError as error:
        raise ScopeError(f"{path}: {error}") from error
