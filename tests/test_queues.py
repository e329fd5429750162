"""Queues of requests against Python lists and a heap."""

from __future__ import annotations

import heapq
from random import Random
from typing import Any

import pytest
from small_model import SmallModel, small_scope

from kvproof.model.scope import RequestSpec

REQUESTS = tuple(
    RequestSpec(prompt=(1,), max_tokens=1, priority=priority, arrival=arrival)
    for priority, arrival in [(1, 0), (0, 3), (1, 0), (0, 1), (-1, 4), (0, 1)]
)


class Twin:
    """A deque, or a heap of (priority, arrival time, number) that ignores where one is put."""

    def __init__(self, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.content: list[Any] = []

    def _key(self, r: int) -> tuple[int, int | None, int]:
        return REQUESTS[r].priority, REQUESTS[r].arrival, r

    def add(self, r: int) -> None:
        if self.by_priority:
            heapq.heappush(self.content, self._key(r))
        else:
            self.content.append(r)

    def prepend(self, r: int) -> None:
        if self.by_priority:
            heapq.heappush(self.content, self._key(r))
        else:
            self.content.insert(0, r)

    def remove(self, r: int) -> None:
        if self.by_priority:
            self.content.remove(self._key(r))
            heapq.heapify(self.content)
        else:
            self.content.remove(r)

    def order(self) -> list[int]:
        """The requests as they are served."""
        if not self.by_priority:
            return list(self.content)
        heap = list(self.content)
        return [heapq.heappop(heap)[2] for _ in self.content]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_queue_serves_as_a_list_or_a_heap_does(policy: str) -> None:
    model = SmallModel(small_scope(requests=REQUESTS, policy=policy))
    for seed in range(100):
        random, twin = Random(seed), Twin(policy == "priority")
        queue, length = [0] * len(REQUESTS), 0
        for _ in range(30):
            r = random.randrange(len(REQUESTS))
            if r in twin.order():
                if random.random() < 0.5:
                    length = model.call("queues.remove_request", queue, length, r)
                else:
                    place = model.call("queues.find", queue, length, r)
                    length = model.call("queues.delete", queue, length, place)
                twin.remove(r)
            else:
                length = model.call("queues.remove_request", queue, length, r)
                name = random.choice(["add", "prepend"])
                length = model.call(f"queues.{name}_request", queue, length, r)
                getattr(twin, name)(r)
            order = twin.order()
            assert length == len(order)
            assert queue == [r + 1 for r in order] + [0] * (len(REQUESTS) - length)
            places = [model.call("queues.find", queue, length, r) for r in range(len(REQUESTS))]
            assert places == [order.index(r) if r in order else -1 for r in range(len(REQUESTS))]


def test_a_request_is_put_in_at_a_place_and_the_rest_moves_back() -> None:
    model = SmallModel(small_scope(requests=REQUESTS))
    for place in range(4):
        queue, wanted = [1, 2, 3, 0, 0, 0], [0, 1, 2]
        assert model.call("queues.insert", queue, 3, place, 4) == 4
        wanted.insert(place, 4)
        assert queue == [r + 1 for r in wanted] + [0, 0]
