"""NoLeak, on real classes: nothing keeps a request that is gone.

A container is a dictionary, a set, a list or a queue that an object of the scheduler has as an
attribute; what it keeps are request ids and requests, as keys or as elements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

TOLD_OF_LATER = frozenset(
    {"requests", "finished_req_ids", "reset_preempted_req_ids", "prev_step_scheduled_req_ids"}
)
"""What the scheduler keeps of the gone until its next step; the worker checks the three sets then.
And the requests themselves."""

OF_OTHERS = frozenset({"blocks", "cached_block_hashes_by_block", "deferred_frees", "externals"})
"""Containers of blocks, and the connector's script."""


class Leaks:
    """The containers of a scheduler's objects, looked through again and again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        manager = scheduler.kv_cache_manager
        objects: list[Any] = [
            scheduler,
            manager,
            manager.coordinator,
            *manager.coordinator.single_type_managers,
            manager.block_pool,
        ]
        if scheduler.connector is not None:
            objects.append(scheduler.connector)
        kinds = (dict, list, set, deque, PriorityRequestQueue)
        self._containers = [
            (vars(one), name, f"{type(one).__name__}.{name}")
            for one in objects
            for name, value in vars(one).items()
            if isinstance(value, kinds) and name not in TOLD_OF_LATER | OF_OTHERS
        ]

    def find(self) -> Iterator[tuple[str, str]]:
        """Each id that is kept though its request is gone, with the container."""
        requests = self._scheduler.requests
        for attributes, name, where in self._containers:
            kept: Iterable[Any] = attributes[name]
            if not kept:
                continue
            if isinstance(kept, PriorityRequestQueue):
                kept = kept._heap
            for one in kept:
                if isinstance(one, Request):
                    if requests.get(one.request_id) is not one:
                        yield one.request_id, where
                elif isinstance(one, str) and one not in requests:
                    yield one, where
        s = self._scheduler
        if s.deferred_waiting:
            waiting = {*s.waiting, *s.kv_holding_waiting}
            for one in s.deferred_waiting - waiting:
                yield one.request_id, f"{type(s).__name__}.deferred_waiting, and does not wait"
