"""Scopes at random, far beyond the ones that can be searched; never one that start-up refuses.

Every bound is drawn within what the values before it allow, so that nothing is thrown away.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from kvproof.model.bounds import output_choices
from kvproof.model.scope import (
    MAX_BLOCK_SIZE,
    MAX_BLOCKS,
    MAX_DRAFTS,
    MAX_MODEL_LEN,
    MAX_REQUESTS,
    External,
    RequestSpec,
    Scope,
)
from kvproof.scopes.values import REQUEST_VALUES, SCOPE_VALUES, Values

_T = TypeVar("_T")

Size = Literal["tiny", "small", "medium", "large"]
Policy = Literal["fcfs", "priority"]
Drafter = Literal["ngram", "eagle", "draft_model"]
Role = Literal["kv_consumer", "kv_producer", "kv_both"] | None

MAX_ANSWERS = 1 << 56
"""Bound on the answers to one step: an action is a number of 63 bits."""

# Most requests, most tokens of a sequence, largest block, most blocks besides the longest table.
_BOUNDS: dict[Size, tuple[int, int, int, int]] = {
    "tiny": (3, 6, 2, 2),
    "small": (4, 12, 3, 4),
    "medium": (8, 40, 8, 12),
    "large": (MAX_REQUESTS, MAX_MODEL_LEN, MAX_BLOCK_SIZE, MAX_BLOCKS),
}


_IN_PLACE = {
    *("policy", "prefix_caching", "chunked_prefill", "reserve_full_isl", "may_reset"),
    *("may_stop", "may_abort"),
}
"""Options whose draws come before others', so that a seed keeps its scope."""


class Chooser(Protocol):
    """Where choices come from: a random generator, or a test that shrinks what it chose."""

    def integer(self, low: int, high: int) -> int:
        """A number, both ends included; a small one is a simple one."""
        ...

    def pick(self, values: Sequence[_T]) -> _T:
        """One of the values; the first one is the simplest."""
        ...


class RandomChooser:
    """Choices of a seeded generator."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """A number, all equally likely."""
        return self._random.randint(low, high)

    def pick(self, values: Sequence[_T]) -> _T:
        """One of the values, all equally likely."""
        return self._random.choice(values)


_MODES: tuple[dict[str, Any], ...] = (
    {},
    {"async_scheduling": True},
    {"async_scheduling": True, "v2_model_runner": True},
    {"async_scheduling": True, "v2_model_runner": True, "pipeline_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"pipeline_parallel_size": 3},
    {"v2_model_runner": True},
)


def draw_scope(
    choose: Chooser, size: Size, name: str = "drawn", *, most_requests: int = MAX_REQUESTS
) -> Scope:
    """A scope within the bounds of a size, with any of the features that go together."""

    def pick(option: str) -> Any:
        return choose.pick(SCOPE_VALUES[option].draw)

    requests_of_size, most_tokens, largest_block, spare_blocks = _BOUNDS[size]
    mode = choose.pick(_MODES)
    asynchronous = mode.get("async_scheduling", False)
    may_draft = asynchronous or mode.get("pipeline_parallel_size", 1) == 1
    drafts = choose.pick((0, 0, *range(1, MAX_DRAFTS + 1))) if may_draft else 0
    method: Drafter = choose.pick(
        ("eagle", "draft_model") if asynchronous else ("ngram", "draft_model")
    )
    role: Role = choose.pick((None, None, "kv_consumer", "kv_both", "kv_producer"))
    policy: Policy = pick("policy")

    length = choose.integer(3, most_tokens)
    block_size = choose.integer(1, min(largest_block, length))
    table = -(-length // block_size)
    spare = choose.pick((0, 1, choose.integer(0, min(spare_blocks, table))))
    blocks = min(table + 1 + spare, MAX_BLOCKS)
    if blocks - 1 < table:  # the longest sequences need larger blocks
        block_size = -(-length // (MAX_BLOCKS - 1))
        blocks = MAX_BLOCKS
    count = choose.integer(
        1 if size in ("tiny", "small") else 2, min(requests_of_size, most_requests)
    )
    cap = choose.integer(1, count)
    draft_slots = int(drafts > 0 and method == "draft_model")
    chunked = pick("chunked_prefill")
    least = max(cap, 1 + draft_slots, 1 if chunked else length)
    budget = choose.integer(least, least + 2 * length)
    loads = role in ("kv_consumer", "kv_both")
    failing = loads and choose.pick((False, False, True))
    resets = (False,) * (7 if loads else 3) + (True,)
    requests = _draw_requests(choose, count, length, policy, role)
    scope = Scope(
        name=name,
        requests=requests,
        num_blocks=blocks,
        block_size=block_size,
        max_num_seqs=cap,
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=choose.pick((None, None, None, choose.integer(1, budget))),
        max_model_len=length,
        policy=policy,
        prefix_caching=pick("prefix_caching"),
        chunked_prefill=chunked,
        long_prefill_token_threshold=choose.pick((0, 0, 0, choose.integer(1, length))),
        reserve_full_isl=pick("reserve_full_isl"),
        watermark=choose.pick((0.0, 0.0, 0.0, 1.01 / blocks, 0.3)),
        num_speculative_tokens=drafts,
        spec_method=method,
        kv_role=role,
        kv_load_failure_policy=choose.pick(("recompute", "fail")) if failing else "recompute",
        may_fail_loads=failing,
        may_reset=pick("may_reset"),
        may_reset_running=choose.pick(resets),
        **_drawn(choose, SCOPE_VALUES, _IN_PLACE),
        **mode,
    )
    return _within_code(scope)


def _drawn(
    choose: Chooser, table: Mapping[str, Values], besides: Collection[str]
) -> dict[str, Any]:
    """A value of each option that depends on no other, of those that are not drawn elsewhere."""
    return {
        name: choose.pick(values.draw)
        for name, values in table.items()
        if values.draw and name not in besides
    }


def _draw_requests(
    choose: Chooser, count: int, length: int, policy: str, role: str | None
) -> tuple[RequestSpec, ...]:
    """Requests whose prompts share prefixes: cut from few stems, some with a tail of their own."""
    stems = [
        tuple(choose.pick((1, 2)) for _ in range(min(length - 1, 8)))
        for _ in range(choose.integer(1, 2))
    ]
    salted = choose.pick((False, False, False, True))
    offered = choose.pick(((True,), (True, True, False)))
    prompts = [_draw_prompt(choose, stems, length) for _ in range(count)]
    return tuple(
        RequestSpec(
            prompt=prompt,
            max_tokens=choose.integer(1, length),
            priority=choose.integer(0, 2) if policy == "priority" else 0,
            arrival=choose.pick((None, 0)) if policy == "priority" else None,
            may_stop=choose.pick(REQUEST_VALUES["may_stop"].draw),
            may_abort=choose.pick(REQUEST_VALUES["may_abort"].draw),
            salt=choose.pick((None, "a", "b")) if salted else None,
            external=_draw_external(choose, len(prompt), length)
            if role in ("kv_consumer", "kv_both") and choose.pick(offered)
            else None,
            delay_free=role in ("kv_producer", "kv_both") and choose.pick((True, False)),
            **_drawn(choose, REQUEST_VALUES, _IN_PLACE),
        )
        for prompt in prompts
    )


def _draw_prompt(choose: Chooser, stems: Sequence[tuple[int, ...]], length: int) -> tuple[int, ...]:
    stem = choose.pick(stems)
    tokens = choose.integer(1, length - 1)
    repeated = stem * (tokens // len(stem) + 1)
    prompt = repeated[:tokens]
    return (*prompt[:-1], choose.pick((prompt[-1], 1, 2)))


def _draw_external(choose: Chooser, prompt: int, length: int) -> External:
    """What the connector has; a synchronous one mostly holds the last token of the prompt back."""
    is_async = prompt == 1 or choose.pick((True, True, True, False))
    whole = is_async or choose.pick((False,) * 7 + (True,))
    most = length if whole else max(prompt - 1, 1)
    return External(
        tokens=choose.pick((min(prompt, most), choose.integer(1, most))),
        is_async=is_async,
        once=choose.pick((False, False, True)),
        ask_later=choose.pick((0, 0, 0, 1, 2)),
    )


def _within_code(scope: Scope) -> Scope:
    """The same scope, with as few choices for its last requests as makes every step countable."""
    requests = list(scope.requests)
    for r in reversed(range(len(requests))):
        if output_choices(scope) <= MAX_ANSWERS:
            break
        external = requests[r].external
        if external is not None:
            external = msgspec.structs.replace(external, is_async=True)
        requests[r] = msgspec.structs.replace(requests[r], may_stop=False, external=external)
        scope = msgspec.structs.replace(scope, requests=tuple(requests))
    return scope
