"""Runs the simulation on real classes with a guard taken out: which invariant falls?

Runs in vLLM's interpreter; prints the invariants that the monitor names, and
{name of the change: [invariant, what was seen] or null}.
"""

from __future__ import annotations

import builtins
import json
import logging
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import msgspec
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from kvproof.vllm import serving
from kvproof.vllm.monitor import INVARIANTS
from kvproof.workload.sessions import draw
from kvproof.workload.settings import Settings

SMALL = {"pool": 400, "rate": 12.0, "horizon": 4.0, "warmup": 0.0, "check_every": 500}


def _head_first(original: Any) -> Any:
    return lambda self, blocks: original(self, reversed(list(blocks)))


def _never(_original: Any) -> Any:
    return lambda *_arguments, **_named: False


def _keeps_a_reference(original: Any) -> Any:
    def free(self: Any, blocks: Any) -> None:
        blocks = list(blocks)
        blocks[0].ref_cnt += 1
        original(self, blocks)

    return free


def _without_its_last_block(original: Any) -> Any:
    def hit(self: Any, request: Any) -> Any:
        blocks, count, *rest = original(self, request)
        if count == 0:
            return blocks, count, *rest
        shorter = self.create_kv_cache_blocks(tuple(group[:-1] for group in blocks.blocks))
        return shorter, count - self.block_pool.hash_block_size, *rest

    return hit


def _backwards(original: Any) -> Any:
    def cache(self: Any, request: Any, blocks: Any, **named: Any) -> None:
        original(self, request, blocks[::-1], **named)

    return cache


def _positions_only(original: Any) -> Any:
    def hashed(value: Any) -> bytes:
        return bytes(original(value[1][0] & 0xFFFFFF if isinstance(value, tuple) else value))

    return hashed


def _some_are_lost(original: Any) -> Any:
    def insert(self: Any, block_hash: Any, block: Any, *rest: Any, **named: Any) -> None:
        if block.block_id % 50:
            original(self, block_hash, block, *rest, **named)

    return insert


def _miscounts(original: Any) -> Any:
    def append(self: Any, blocks: Any) -> None:
        original(self, blocks)
        self.num_free_blocks += 1

    return append


def _held_by_another(original: Any) -> Any:
    def new(self: Any, count: int) -> Any:
        blocks = original(self, count)
        for block in blocks[-1:]:
            block.ref_cnt += 1
        return blocks

    return new


def _nobody_is_lowest(original: Any) -> Any:
    """The victim keeps running, the first that runs is preempted in its place."""

    def preempt(self: Any, request: Any, *rest: Any, **named: Any) -> Any:
        if self.running and self.running[0] is not request:
            self.running.append(request)
            request = self.running.pop(0)
        return original(self, request, *rest, **named)

    return preempt


def _best_ranked(original: Any) -> Any:
    """The victim is the request that the policy serves first."""

    def greatest(*values: Any, **key: Any) -> Any:
        return min(*values, **key) if key else original(*values)

    return greatest


def _still_runs(original: Any) -> Any:
    def preempt(self: Any, request: Any, *rest: Any, **named: Any) -> None:
        original(self, request, *rest, **named)
        request.status = RequestStatus.RUNNING

    return preempt


def _skips_a_token(original: Any) -> Any:
    def update(self: Any, output: Any) -> None:
        original(self, output)
        for name in output.num_scheduled_tokens:
            self.requests[name].num_computed_tokens += 1

    return update


def _nothing(_original: Any) -> Any:
    return lambda *_arguments, **_named: None


def _never_stops(_original: Any) -> Any:
    return lambda request, max_model_len: False


def _last_comes_first(original: Any) -> Any:
    return lambda self, request: self.appendleft(request)


def _over_budget(original: Any) -> Any:
    def schedule(self: Any, *arguments: Any) -> Any:
        config = self.scheduler_config
        self.max_num_scheduled_tokens += 1000
        config.max_num_batched_tokens += 1000
        try:
            return original(self, *arguments)
        finally:
            self.max_num_scheduled_tokens -= 1000
            config.max_num_batched_tokens -= 1000

    return schedule


def _more_run(original: Any) -> Any:
    def schedule(self: Any, *arguments: Any) -> Any:
        self.max_num_running_reqs += 4
        self.max_num_active_reqs += 4
        try:
            return original(self, *arguments)
        finally:
            self.max_num_running_reqs -= 4
            self.max_num_active_reqs -= 4

    return schedule


def _counts_twice(original: Any) -> Any:
    def update(self: Any, output: Any) -> None:
        original(self, output)
        for name in output.num_scheduled_tokens:
            self.requests[name].num_in_flight_tokens += 1

    return update


CHANGES: dict[str, tuple[Any, str, Callable[[Any], Any], dict[str, Any]]] = {
    "nothing": (BlockPool, "free_blocks", lambda original: original, {}),
    "nothing, asynchronous": (BlockPool, "free_blocks", lambda original: original, {"depth": 2}),
    "free head first": (BlockPool, "free_blocks", _head_first, {}),
    "free head first, checked in full": (BlockPool, "free_blocks", _head_first, {"check_every": 1}),
    "keep hashes of reused blocks": (BlockPool, "_maybe_evict_cached_block", _never, {}),
    "keep a reference": (BlockPool, "free_blocks", _keeps_a_reference, {}),
    "hit a block less": (KVCacheManager, "get_computed_blocks", _without_its_last_block, {}),
    "publish backwards": (BlockPool, "cache_full_blocks", _backwards, {}),
    "do not stop": (scheduler_module, "check_stop", _never_stops, {}),
    "last comes first": (FCFSRequestQueue, "add_request", _last_comes_first, {"max_requests": 2}),
    "exceed the budget": (Scheduler, "schedule", _over_budget, {"budget": 512}),
    "run too many": (Scheduler, "schedule", _more_run, {"max_requests": 2}),
    "hash positions only": (serving, "sha256", _positions_only, {}),
    "lose hashes": (BlockPool, "_insert_block_hash", _some_are_lost, {}),
    "miscount the free queue": (FreeKVCacheBlockQueue, "append_n", _miscounts, {}),
    "take a block that another holds": (BlockPool, "get_new_blocks", _held_by_another, {}),
    "preempt the first": (Scheduler, "_preempt_request", _nobody_is_lowest, {"pool": 250}),
    "preempt the best ranked": (
        scheduler_module,
        "max",
        _best_ranked,
        {"pool": 250, "policy": "priority"},
    ),
    "run on after preemption": (Scheduler, "_preempt_request", _still_runs, {"pool": 250}),
    "skip a token": (Scheduler, "_update_after_schedule", _skips_a_token, {}),
    "give no slots": (KVCacheManager, "allocate_slots", _nothing, {}),
    "count tokens in flight twice": (Scheduler, "_update_after_schedule", _counts_twice, {}),
}


@contextmanager
def _changed(owner: Any, name: str, change: Callable[[Any], Any]) -> Any:
    own = name in vars(owner)
    original = getattr(owner, name) if hasattr(owner, name) else getattr(builtins, name)
    setattr(owner, name, change(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def fallen(name: str) -> list[str] | None:
    """The invariant that falls with a change and what was seen, None if all hold."""
    owner, attribute, change, options = CHANGES[name]
    settings = Settings(**{**SMALL, **options})
    answers = serving.Serving()
    with _changed(owner, attribute, change):
        plain = msgspec.to_builtins
        answers.answer(["new", plain(settings), plain(draw(settings))])
        while answers.answer(["advance", 1000])[0]:
            pass
    broken: list[str] | None = answers.answer(["result"])["broken"]
    return broken


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps([INVARIANTS, {name: fallen(name) for name in sys.argv[1:] or CHANGES}]))
