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
    "load": (
        "none",
        "async blocks",
        "async part",
        "async whole",
        "async once",
        "async asks",
        "sync blocks",
        "sync part",
        "sync whole",
    ),
    "failing loads": ("never", "recompute", "fail"),
    "sending": (False, True),
    "reset": ("never", "unused", "running"),
    **_own("may_pause"),
    "ends": ("length", "stops", "aborts", "both"),
    "prompts": ("equal", "nested", "shared", "disjoint", "long"),
    "priorities": ("equal", "distinct"),
    "arrivals": ("equal", "distinct"),
    "requests": (2, 3),
    "outputs": (1, 2, 4),
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
        ("load", "failing loads"),
        lambda load, failing: load == "none" and failing != "never",
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
}
_STEP = {"smallest": 0, "next": 1, "roomy": 3}


def _external(load: str, prompt: tuple[int, ...], block_size: int) -> External | None:
    if load == "none":
        return None
    kind, _, what = load.partition(" ")
    whole_blocks = max((len(prompt) - 1) // block_size, 1) * block_size
    tokens = {"part": max(len(prompt) - 1, 1), "whole": len(prompt)}.get(what, whole_blocks)
    return External(
        tokens=tokens,
        is_async=kind == "async",
        once=what == "once",
        ask_later=2 if what == "asks" else 0,
    )


def scope_of(number: int, row: Row) -> Scope:
    """The scope that a row of values stands for."""
    value: dict[str, Any] = dict(row)
    block_size, cap, k = value["block size"], value["cap"], value["drafts"]
    prompts = _PROMPTS[value["prompts"]][: value["requests"]]
    asynchronous = value["mode"].startswith("async")
    pipeline = int(value["mode"][-1]) if "pipeline" in value["mode"] else 1
    requests = tuple(
        RequestSpec(
            prompt=prompt,
            max_tokens=value["outputs"],
            priority=len(prompts) - r if value["priorities"] == "distinct" else 0,
            arrival=0 if value["arrivals"] == "equal" else r,
            may_stop=value["ends"] in ("stops", "both") and r == 0,
            may_abort=value["ends"] in ("aborts", "both") and r < 2,
            external=_external(value["load"], prompt, block_size) if r < 2 else None,
            delay_free=value["sending"] and r == 0,
        )
        for r, prompt in enumerate(prompts)
    )
    length = max(map(len, prompts)) + 1 + 2 * _STEP[value["length"]]
    least_budget = max(cap, 1 + int(k > 0 and value["drafter"] == "draft_model"))
    budget = least_budget + _STEP[value["budget"]] * (1 if value["budget"] == "next" else 4)
    if not value["chunked prefill"]:
        budget = max(budget, length)
    blocks = 1 + -(-length // block_size) + _STEP[value["pool"]]
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
