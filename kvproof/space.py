"""The space of a sweep: every switch and boundary value of a scope, and the scope of a row.

Boundary values are relative to the rest of the row ("smallest" is the least that start-up accepts
there), so that nearly every combination is a scope; the few that are not are constraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from kvproof.pairwise import Constraint, Value
from spec.scope import External, RequestSpec, Scope

PARAMETERS: dict[str, tuple[Value, ...]] = {
    "requests": (2, 3),
    "prompts": ("equal", "nested", "shared prefix", "disjoint"),
    "prompt length": (1, 2, 3, 4),
    "salts": ("none", "distinct"),
    "max_tokens": (1, 2, 4, "distinct"),
    "block size": (1, 2),
    "model length": ("just enough", "next", "roomy"),
    "pool": ("smallest", "next", "roomy"),
    "batched tokens": ("smallest", "next", "roomy"),
    "scheduled tokens": ("equal", "one less", "one"),
    "cap": (1, 2, 3),
    "long-prefill threshold": (0, 1, 2, 3),
    "watermark": ("none", "one block", "large"),
    "policy": ("fcfs", "priority"),
    "priorities": ("equal", "rising", "falling"),
    "arrivals": ("distinct", "equal"),
    "prefix caching": (True, False),
    "chunked prefill": (True, False),
    "reserve full sequence": (True, False),
    "mode": (
        "sync",
        "async",
        "pipeline 2",
        "pipeline 3",
        "async v2",
        "async v2 pipeline 2",
    ),
    "speculation": (
        "none",
        "ngram 1",
        "ngram 2",
        "ngram 3",
        "eagle 1",
        "eagle 2",
        "eagle 3",
        "draft_model 1",
        "draft_model 2",
        "draft_model 3",
    ),
    "role": ("none", "kv_consumer", "kv_producer", "kv_both"),
    "loads": (
        "none",
        "async blocks",
        "async partial",
        "async prompt",
        "async beyond",
        "sync blocks",
        "sync partial",
        "sync prompt",
        "sync and async",
        "once",
        "ask later",
    ),
    "loaded for": ("last", "all"),
    "load failures": ("none", "recompute", "fail"),
    "delayed frees": ("none", "first", "all"),
    "resets": ("none", "idle", "running", "both"),
    "pauses": (False, True),
    "aborts": ("none", "first", "all"),
    "stops": ("none", "first", "all"),
}
"""Each parameter with its values."""

_NO_CONNECTOR = "start-up has no KV connector without a role"

CONSTRAINTS = (
    Constraint(
        ("mode", "speculation"),
        lambda mode, speculation: mode.startswith("async") and speculation.startswith("ngram"),
        "start-up refuses n-gram drafts with asynchronous scheduling",
    ),
    Constraint(
        ("mode", "speculation"),
        lambda mode, speculation: mode.startswith("pipeline") and speculation != "none",
        "speculation under the synchronous scheduler with pipeline parallelism is not modelled",
    ),
    Constraint(
        ("role", "loads"), lambda role, loads: role == "none" != loads, _NO_CONNECTOR
    ),
    Constraint(
        ("role", "load failures"),
        lambda role, failures: role == "none" != failures,
        _NO_CONNECTOR,
    ),
    Constraint(
        ("role", "delayed frees"), lambda role, frees: role == "none" != frees, _NO_CONNECTOR
    ),
    Constraint(
        ("prompts", "prompt length", "model length", "long-prefill threshold"),
        lambda prompts, length, model_len, threshold: (
            prompts in ("equal", "disjoint")
            and model_len == "just enough"
            and threshold > length + 1
        ),
        "start-up refuses a long-prefill threshold above the model length",
    ),
)

_PATTERN = (1, 1, 2, 1, 2, 2, 1, 1)
_DISTINCT_MAX_TOKENS = (1, 4, 2)
_MODES: dict[Value, dict[str, Any]] = {
    "sync": {},
    "async": {"async_scheduling": True},
    "pipeline 2": {"pipeline_parallel_size": 2},
    "pipeline 3": {"pipeline_parallel_size": 3},
    "async v2": {"async_scheduling": True, "v2_model_runner": True},
    "async v2 pipeline 2": {
        "async_scheduling": True,
        "v2_model_runner": True,
        "pipeline_parallel_size": 2,
    },
}


def build_scope(name: str, row: Mapping[str, Value]) -> Scope:
    """The scope of a row that meets the constraints; it has a value for every parameter."""
    method, drafts = _speculation(row)
    block_size = int(row["block size"])
    prompts = _prompts(row)
    max_tokens = _max_tokens(row, len(prompts))
    longest = max(len(prompt) for prompt in prompts)
    model_len = longest + {
        "just enough": 1,
        "next": 2,
        "roomy": max(2, max(max_tokens) + drafts),
    }[str(row["model length"])]
    requests = tuple(
        _request(row, r, prompt, tokens, model_len)
        for r, (prompt, tokens) in enumerate(zip(prompts, max_tokens, strict=True))
    )
    num_blocks = _num_blocks(row, requests, model_len, drafts)
    batched = _batched_tokens(row, prompts, model_len, drafts, method == "draft_model")
    watermark = {"none": 0.0, "one block": 1.5 / num_blocks, "large": 0.5}[str(row["watermark"])]
    resets = row["resets"]
    return Scope(
        name=name,
        requests=requests,
        num_blocks=num_blocks,
        max_num_batched_tokens=batched,
        max_model_len=model_len,
        block_size=block_size,
        max_num_seqs=int(row["cap"]),
        max_num_scheduled_tokens={"equal": None, "one less": max(1, batched - 1), "one": 1}[
            str(row["scheduled tokens"])
        ],
        policy="priority" if row["policy"] == "priority" else "fcfs",
        prefix_caching=bool(row["prefix caching"]),
        chunked_prefill=bool(row["chunked prefill"]),
        long_prefill_token_threshold=int(row["long-prefill threshold"]),
        reserve_full_isl=bool(row["reserve full sequence"]),
        watermark=watermark,
        num_speculative_tokens=drafts,
        spec_method=method,
        kv_role=None if row["role"] == "none" else row["role"],  # type: ignore[arg-type]
        kv_load_failure_policy="fail" if row["load failures"] == "fail" else "recompute",
        may_fail_loads=row["load failures"] != "none",
        may_reset=resets in ("idle", "both"),
        may_reset_running=resets in ("running", "both"),
        may_pause=bool(row["pauses"]),
        **_MODES[row["mode"]],
    )


def _speculation(row: Mapping[str, Value]) -> tuple[Literal["ngram", "eagle", "draft_model"], int]:
    method, _, drafts = str(row["speculation"]).partition(" ")
    for known in ("eagle", "draft_model"):
        if method == known:
            return known, int(drafts)  # type: ignore[return-value]
    return "ngram", int(drafts or 0)


def _prompts(row: Mapping[str, Value]) -> list[tuple[int, ...]]:
    length = int(row["prompt length"])
    kind = row["prompts"]
    prompts = []
    for r in range(int(row["requests"])):
        if kind == "nested":
            prompts.append(_PATTERN[: length + r])
        elif kind == "shared prefix":
            prompts.append((*_PATTERN[:length], r + 1))
        elif kind == "disjoint":
            prompts.append((r + 1,) * length)
        else:
            prompts.append(_PATTERN[:length])
    return prompts


def _max_tokens(row: Mapping[str, Value], requests: int) -> list[int]:
    if row["max_tokens"] == "distinct":
        return list(_DISTINCT_MAX_TOKENS[:requests])
    return [int(row["max_tokens"])] * requests


def _request(
    row: Mapping[str, Value], r: int, prompt: tuple[int, ...], max_tokens: int, model_len: int
) -> RequestSpec:
    last = int(row["requests"]) - 1

    def chosen(parameter: str) -> bool:
        """Whether "first", "last" or "all" means this request."""
        return row[parameter] in ("all", {0: "first", last: "last"}.get(r))

    return RequestSpec(
        prompt=prompt,
        max_tokens=max_tokens,
        priority={"equal": 0, "rising": r, "falling": last - r}[str(row["priorities"])],
        arrival=0 if row["arrivals"] == "equal" else None,
        may_stop=chosen("stops"),
        may_abort=chosen("aborts"),
        salt=f"salt {r}" if row["salts"] == "distinct" else None,
        external=_external(row, r, len(prompt), model_len) if chosen("loaded for") else None,
        delay_free=chosen("delayed frees"),
    )


def _external(row: Mapping[str, Value], r: int, prompt_len: int, model_len: int) -> External | None:
    loads = str(row["loads"])
    if loads == "none":
        return None
    block_size = int(row["block size"])
    blocks = max(prompt_len // block_size, 1) * block_size
    tokens = {
        "partial": max(blocks - 1, 1),
        "prompt": prompt_len,
        "beyond": prompt_len + 2,
    }.get(loads.split()[-1], blocks)
    is_async = r % 2 == 1 if loads == "sync and async" else not loads.startswith("sync")
    return External(
        tokens=min(tokens, model_len),
        is_async=is_async,
        once=loads == "once",
        ask_later=int(loads == "ask later"),
    )


def _num_blocks(
    row: Mapping[str, Value], requests: tuple[RequestSpec, ...], model_len: int, drafts: int
) -> int:
    """Blocks, the null block included; a roomy pool never runs out."""
    block_size = int(row["block size"])
    smallest = 1 + -(-model_len // block_size)
    if row["pool"] == "roomy":
        lengths = [len(q.prompt) + q.max_tokens + drafts for q in requests]
        all_fit = 1 + sum(-(-min(length, model_len) // block_size) for length in lengths)
        return max(all_fit, smallest + 2)
    return smallest + int(row["pool"] == "next")


def _batched_tokens(
    row: Mapping[str, Value],
    prompts: list[tuple[int, ...]],
    model_len: int,
    drafts: int,
    draft_model: bool,
) -> int:
    """Input slots of a step; a roomy step takes every request whole."""
    draft_slots = int(draft_model)
    smallest = max(int(row["cap"]), 1 + draft_slots)
    if not row["chunked prefill"]:
        smallest = max(smallest, model_len)
    if row["batched tokens"] == "roomy":
        all_fit = sum(len(prompt) + 1 + drafts + draft_slots for prompt in prompts)
        return max(all_fit, smallest + 2)
    return smallest + int(row["batched tokens"] == "next")
