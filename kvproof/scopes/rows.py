"""The rows of the sweep: switches and boundary values of a scope, and the scope of each row."""

from __future__ import annotations

from typing import Any

from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.scopes.cover import Constraint, Row, Value
from kvproof.scopes.values import SCOPE_VALUES

_OWN = {
    option: values.parameter or option.replace("_", " ")
    for option, values in SCOPE_VALUES.items()
    if values.sweep
}
"""The options that are a parameter of their own, with its name."""


def _own(*options: str) -> dict[str, tuple[Value, ...]]:
    return {_OWN[option]: SCOPE_VALUES[option].sweep for option in options}


PARAMETERS: dict[str, tuple[Value, ...]] = {
    "mode": ("sync", "async", "pipeline 2", "pipeline 3", "async v2", "async v2 pipeline 2"),
    **_own("policy", "block_size"),
    "pool": ("smallest", "next", "roomy"),
    "budget": ("smallest", "next", "roomy"),
    "scheduled budget": ("equal", "below"),
    **_own("max_num_seqs", "long_prefill_token_threshold"),
    "length": ("smallest", "next", "roomy"),
    "watermark": ("none", "one block", "large"),
    **_own("prefix_caching", "chunked_prefill", "reserve_full_isl"),
    **_own("num_speculative_tokens", "spec_method"),
    "role": ("none", "kv_consumer", "kv_producer", "kv_both"),
    "load": ("none", "async", "sync"),
    "loaded": ("blocks", "part", "whole"),
    "offer": ("always", "once", "later"),
    "second load": ("same", "none", "part", "whole"),
    "failing loads": ("never", "recompute", "fail"),
    "sending": (False, True),
    "reset": ("never", "unused", "running"),
    **_own("may_pause"),
    "ends": ("length", "stops", "aborts", "both"),
    "prompts": ("equal", "nested", "shared", "disjoint", "long", "short", "fill", "overfill"),
    "priorities": ("equal", "distinct"),
    "arrivals": ("equal", "distinct"),
    "requests": (2, 3),
    "outputs": (1, 2, 4, "uneven"),
}
for _option in _OWN:
    PARAMETERS |= {} if _OWN[_option] in PARAMETERS else _own(_option)

CONSTRAINTS = (
    Constraint(
        ("drafts", "drafter"),
        lambda k, drafter: k == 0 and drafter != "ngram",
        "without drafts there is no drafter",
    ),
    Constraint(
        ("mode", "drafts", "drafter"),
        lambda mode, k, drafter: k > 0 and drafter == "ngram" and mode.startswith("async"),
        "start-up refuses n-gram drafts under asynchronous scheduling",
    ),
    Constraint(
        ("mode", "drafts"),
        lambda mode, k: k > 0 and mode.startswith("pipeline"),
        "drafts under the synchronous scheduler with pipeline parallelism are not modelled",
    ),
    Constraint(
        ("chunked prefill", "budget"),
        lambda chunked, budget: not chunked and budget != "roomy",
        "start-up refuses a budget below the model length without chunked prefill",
    ),
    Constraint(
        ("role", "load"),
        lambda role, load: load != "none" and role in ("none", "kv_producer"),
        "only a consumer loads",
    ),
    Constraint(
        ("role", "second load"),
        lambda role, second: second in ("part", "whole") and role in ("none", "kv_producer"),
        "only a consumer loads",
    ),
    Constraint(
        ("load", "second load"),
        lambda load, second: load == second == "none",
        "that is the same load",
    ),
    Constraint(
        ("load", "loaded"),
        lambda load, loaded: load == "none" and loaded != "blocks",
        "without a load nothing is loaded",
    ),
    Constraint(
        ("load", "second load", "offer"),
        lambda load, second, offer: load == "none" and second == "same" and offer != "always",
        "without loads none is offered",
    ),
    Constraint(
        ("load", "second load", "failing loads"),
        lambda load, second, failing: load == "none" and second == "same" and failing != "never",
        "without loads none fails",
    ),
    Constraint(
        ("role", "sending"),
        lambda role, sending: sending and role in ("none", "kv_consumer"),
        "only a producer sends",
    ),
    Constraint(
        ("policy", "priorities"),
        lambda policy, priorities: policy == "fcfs" and priorities == "distinct",
        "under FCFS priorities play no part",
    ),
)

_PROMPTS = {
    "equal": ((1, 2, 1, 2), (1, 2, 1, 2), (1, 2, 1, 2)),
    "nested": ((1, 2, 1), (1, 2, 1, 2, 1), (1, 2)),
    "shared": ((1, 2, 1), (1, 2, 2, 1), (1, 2)),
    "disjoint": ((1, 2, 1), (2, 1, 1, 2), (2, 2)),
    "long": ((1, 2, 1, 1, 2, 2, 1), (1,), (2, 1)),
    "short": ((1,), (2, 1), (2,)),
}
_STEP = {"smallest": 0, "next": 1, "roomy": 3}
_LONGEST_OF_A_FULL_POOL = 6
"""Tokens of the longest prompt that bounds the model length where prompts fill the pool."""


def _that_fill(count: int, blocks: int, block_size: int, most: int) -> list[tuple[int, ...]]:
    """Prompts of whole blocks, of `most` tokens at most, that together have so many blocks."""
    shares = [(blocks - r + count - 1) // count for r in range(count)]
    stems = ((1,), (2,), (1, 2))
    return [
        (stem * most)[: min(share * block_size, most)]
        for stem, share in zip(stems, shares, strict=False)
    ]


def _external(
    kind: str, loaded: str, offer: str, prompt: tuple[int, ...], block_size: int
) -> External | None:
    if kind == "none":
        return None
    whole_blocks = max((len(prompt) - 1) // block_size, 1) * block_size
    return External(
        tokens={"part": max(len(prompt) - 1, 1), "whole": len(prompt)}.get(loaded, whole_blocks),
        is_async=kind == "async",
        once=offer == "once",
        ask_later=2 if offer == "later" else 0,
    )


def _loads(value: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Of each request the kind of its load and what it loads."""
    first, second = (value["load"], value["loaded"]), value["second load"]
    if second == "same":
        return first, first, ("none", "")
    return first, ("none" if second == "none" else "async", second), ("none", "")


def scope_of(number: int, row: Row) -> Scope:
    """The scope that a row of values stands for."""
    value: dict[str, Any] = dict(row)
    block_size, cap, k, count = (
        value[name] for name in ("block size", "cap", "drafts", "requests")
    )
    fills = value["prompts"] in ("fill", "overfill")
    given = [] if fills else _PROMPTS[value["prompts"]][:count]
    longest = max(map(len, given), default=_LONGEST_OF_A_FULL_POOL)
    length = longest + 1 + 2 * _STEP[value["length"]]
    usable = -(-length // block_size) + _STEP[value["pool"]]
    over = int(value["prompts"] == "overfill")
    prompts = given or _that_fill(count, usable + over, block_size, length - 1)
    asynchronous = value["mode"].startswith("async")
    pipeline = int(value["mode"][-1]) if "pipeline" in value["mode"] else 1
    loads = _loads(value)
    requests = tuple(
        RequestSpec(
            prompt=prompt,
            max_tokens=(4, 1, 2)[r] if value["outputs"] == "uneven" else value["outputs"],
            priority=len(prompts) - r if value["priorities"] == "distinct" else 0,
            arrival=0 if value["arrivals"] == "equal" else r,
            may_stop=value["ends"] in ("stops", "both") and r == 0,
            may_abort=value["ends"] in ("aborts", "both") and r < 2,
            external=_external(*loads[r], value["offer"], prompt, block_size),
            delay_free=value["sending"] and r == 0,
        )
        for r, prompt in enumerate(prompts)
    )
    least_budget = max(cap, 1 + int(k > 0 and value["drafter"] == "draft_model"))
    budget = least_budget + _STEP[value["budget"]] * (1 if value["budget"] == "next" else 4)
    if not value["chunked prefill"]:
        budget = max(budget, length)
    blocks = 1 + usable
    return Scope(
        name=f"sweep-{number}",
        requests=requests,
        num_blocks=blocks,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=max(budget // 2, 1)
        if value["scheduled budget"] == "below"
        else None,
        max_model_len=length,
        watermark={"none": 0.0, "one block": 1.01 / blocks, "large": 0.5}[value["watermark"]],
        async_scheduling=asynchronous,
        pipeline_parallel_size=pipeline,
        v2_model_runner="v2" in value["mode"],
        kv_role=None if value["role"] == "none" else value["role"],
        kv_load_failure_policy="fail" if value["failing loads"] == "fail" else "recompute",
        may_fail_loads=value["failing loads"] != "never",
        may_reset=value["reset"] != "never",
        may_reset_running=value["reset"] == "running",
        **{option: value[parameter] for option, parameter in _OWN.items()},
    )
