"""Scope: every bound and switch of one check, validated as vLLM's start-up would.

A scope is written in Python or in TOML. Names of vLLM's options are vLLM's; times, sizes and
lengths are counts of tokens, blocks, requests or steps.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec

from kvproof.errors import KvproofError
from kvproof.model.rules import Rule

MAX_REQUESTS = 16
MAX_BLOCKS = 256
MAX_BLOCK_SIZE = 64
MAX_MODEL_LEN = 512
MAX_DRAFTS = 3
MAX_DEPTH = 3
MAX_TOKEN = 249


class ScopeError(KvproofError, ValueError):
    """A scope that makes no sense: names the field, the value and what is allowed."""


def _refuse(field: str, value: object, allowed: str) -> NoReturn:
    raise ScopeError(f"{field} = {value!r}: allowed is {allowed}")


def _within(field: str, value: int, low: int, high: int, why: str = "") -> None:
    if not low <= value <= high:
        _refuse(field, value, f"{low}..{high}" + (f" ({why})" if why else ""))


class External(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the KV connector has of a request's prefix."""

    tokens: int
    is_async: bool = True
    once: bool = False
    ask_later: int = 0


class RequestSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request that may arrive: its prompt, its limits, and what its client may do."""

    prompt: tuple[int, ...]
    max_tokens: int
    priority: int = 0
    arrival: int | None = None
    may_stop: bool = False
    may_abort: bool = False
    salt: str | None = None
    external: External | None = None
    delay_free: bool = False


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds and switches of one check; the defaults are vLLM's where vLLM has one."""

    name: str
    requests: tuple[RequestSpec, ...]
    num_blocks: int
    max_num_batched_tokens: int
    max_model_len: int
    about: str = ""
    block_size: int = 2
    max_num_seqs: int = 2
    max_num_scheduled_tokens: int | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    pipeline_parallel_size: int = 1
    v2_model_runner: bool = False
    num_speculative_tokens: int = 0
    spec_method: Literal["ngram", "eagle", "draft_model"] = "ngram"
    kv_role: Literal["kv_consumer", "kv_producer", "kv_both"] | None = None
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"
    may_fail_loads: bool = False
    may_reset: bool = False
    may_reset_running: bool = False
    may_pause: bool = False
    alphabet: int = 2
    rules_off: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_requests(self)
        _check_start_up(self)
        _check_rules(self)

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
        return self.depth > 1 and self.kv_role in ("kv_consumer", "kv_both")

    def with_rules_off(self, *rules: str) -> Scope:
        """The same scope with these rules switched off too."""
        return msgspec.structs.replace(self, rules_off=tuple(sorted({*self.rules_off, *rules})))


def _check_sizes(scope: Scope) -> None:
    if not scope.name:
        _refuse("name", scope.name, "a non-empty name")
    _within("block_size", scope.block_size, 1, MAX_BLOCK_SIZE)
    _within("max_model_len", scope.max_model_len, 2, MAX_MODEL_LEN)
    _within("num_blocks", scope.num_blocks, 2, MAX_BLOCKS, "the null block and one more")
    _within("max_num_seqs", scope.max_num_seqs, 1, MAX_REQUESTS)
    _within("max_num_batched_tokens", scope.max_num_batched_tokens, 1, 1 << 14)
    if scope.max_num_scheduled_tokens is not None:
        _within("max_num_scheduled_tokens", scope.max_num_scheduled_tokens, 1, 1 << 14)
    _within("pipeline_parallel_size", scope.pipeline_parallel_size, 1, MAX_DEPTH)
    _within("num_speculative_tokens", scope.num_speculative_tokens, 0, MAX_DRAFTS)
    _within("alphabet", scope.alphabet, 2, MAX_TOKEN)
    if not 0.0 <= scope.watermark < 1.0:
        _refuse("watermark", scope.watermark, "0 <= watermark < 1")
    if scope.depth > MAX_DEPTH:
        _refuse("pipeline_parallel_size", scope.pipeline_parallel_size, f"depth <= {MAX_DEPTH}")


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
        for token in request.prompt:
            _within(f"{where}.prompt", token, 1, MAX_TOKEN, "a token")
        _within(f"{where}.max_tokens", request.max_tokens, 1, MAX_MODEL_LEN)
        _within(f"{where}.priority", request.priority, -100, 100)
        if request.arrival is not None:
            _within(f"{where}.arrival", request.arrival, 0, 1000)
        if request.external is not None:
            if scope.kv_role is None:
                _refuse(f"{where}.external", request.external, "none without a kv_role")
            _within(f"{where}.external.tokens", request.external.tokens, 1, scope.max_model_len)
            _within(f"{where}.external.ask_later", request.external.ask_later, 0, 3)
        if request.delay_free and scope.kv_role is None:
            _refuse(f"{where}.delay_free", True, "false without a kv_role")


def _check_start_up(scope: Scope) -> None:
    """What vLLM itself refuses at start-up (vllm/config/scheduler.py, vllm/config/vllm.py)."""
    batched = scope.max_num_batched_tokens
    if batched < scope.max_num_seqs:
        _refuse("max_num_batched_tokens", batched, f">= max_num_seqs = {scope.max_num_seqs}")
    if not scope.chunked_prefill and batched < scope.max_model_len:
        _refuse(
            "max_num_batched_tokens",
            batched,
            f">= max_model_len = {scope.max_model_len} without chunked prefill",
        )
    if batched <= scope.draft_slots:
        _refuse("max_num_batched_tokens", batched, f"> draft slots = {scope.draft_slots}")
    if not 0 <= scope.long_prefill_token_threshold <= scope.max_model_len:
        _refuse(
            "long_prefill_token_threshold",
            scope.long_prefill_token_threshold,
            f"0..max_model_len = {scope.max_model_len}",
        )
    needed = -(-scope.max_model_len // scope.block_size)
    if scope.num_blocks - 1 < needed:
        _refuse(
            "num_blocks",
            scope.num_blocks,
            f">= {needed + 1}: one request of max_model_len = {scope.max_model_len} needs "
            f"{needed} blocks besides the null block",
        )
    speculative = scope.num_speculative_tokens > 0
    if scope.async_scheduling and speculative and scope.spec_method == "ngram":
        _refuse("spec_method", scope.spec_method, "eagle or draft_model with async_scheduling")
    if scope.async_scheduling and scope.pipeline_parallel_size > 1 and not scope.v2_model_runner:
        _refuse("v2_model_runner", False, "true for async_scheduling with pipeline parallelism")
    if speculative and not scope.async_scheduling and scope.pipeline_parallel_size > 1:
        _refuse(
            "num_speculative_tokens",
            scope.num_speculative_tokens,
            "0 with pipeline parallelism and the synchronous scheduler (not modelled)",
        )
    if scope.may_fail_loads and scope.kv_role is None:
        _refuse("may_fail_loads", True, "false without a kv_role")


def _check_rules(scope: Scope) -> None:
    for rule in scope.rules_off:
        if rule not in Rule.__members__:
            _refuse("rules_off", rule, "a rule's name; `kvproof rules` lists them")


def scope_from_dict(values: dict[str, Any]) -> Scope:
    """A scope from plain values; a wrong type or an unknown key is refused by name."""
    try:
        return msgspec.convert(values, Scope)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ScopeError):
            raise error.__cause__ from None
        raise ScopeError(_explained(str(error), values)) from error


def _explained(error: str, values: dict[str, Any]) -> str:
    """A refusal of a field with its value and what is allowed, where that is a choice."""
    reason, _, place = error.partition(" - at `$.")
    name = place.rstrip("`")
    if name not in values:
        return f"not a scope: {error}"
    hint = get_type_hints(Scope)[name]
    choices = [
        choice
        for part in (hint, *get_args(hint))
        if get_origin(part) is Literal
        for choice in get_args(part)
    ]
    allowed = f"allowed is {', '.join(map(repr, choices))}" if choices else reason
    return f"{name} = {values[name]!r}: {allowed}"


def scope_to_dict(scope: Scope) -> dict[str, Any]:
    """Plain values of a scope, for JSON and for the lockstep's driver."""
    return dict(msgspec.to_builtins(scope))


def load_scope(path: Path) -> Scope:
    """Read a scope from a TOML file; its name defaults to the file's."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScopeError(f"{path}: not TOML: {error}") from error
    try:
        return scope_from_dict({"name": path.stem, **values})
    except ScopeError as error:
        raise ScopeError(f"{path}: {error}") from error
