"""Request queues: running, waiting and kv_holding_waiting (vllm/v1/core/sched/request_queue.py).

A queue is a field of the state with its length beside it; it stores request numbers plus one.
A priority queue is kept sorted: vLLM's heap pops in this order whatever its inner layout.
"""

from __future__ import annotations

from kvproof.native.jit import kernel


@kernel
def find(queue, length, r):
    """Place of request r in the queue, or -1."""
    for i in range(length):
        if queue[i] == r + 1:
            return i
    return -1


@kernel
def insert(queue, length, place, r):
    """Put request r at a place; returns the new length."""
    for i in range(length, place, -1):
        queue[i] = queue[i - 1]
    queue[place] = r + 1
    return length + 1


@kernel
def append(queue, length, r):
    """Put request r at the end; returns the new length."""
    queue[length] = r + 1
    return length + 1


@kernel
def delete(queue, length, place):
    """Take out what stands at a place; returns the new length."""
    for i in range(place, length - 1):
        queue[i] = queue[i + 1]
    queue[length - 1] = 0
    return length - 1


@kernel
def remove_request(queue, length, r):
    """Take out request r where the queue has it; returns the new length."""
    place = find(queue, length, r)
    if place < 0:
        return length
    return delete(queue, length, place)


@kernel
def comes_before(c, a, b):
    """Whether a is served before b under the priority policy (vllm/v1/request.py, __lt__)."""
    if c.priority[a] != c.priority[b]:
        return c.priority[a] < c.priority[b]
    if c.arrival[a] != c.arrival[b]:
        return c.arrival[a] < c.arrival[b]
    return a < b


@kernel
def _insert_sorted(c, queue, length, r):
    place = length
    while place > 0 and comes_before(c, r, queue[place - 1] - 1):
        place -= 1
    return insert(queue, length, place, r)


@kernel
def add_request(c, queue, length, r):
    """Enqueue request r by the policy; returns the new length."""
    if c.priority_policy:
        return _insert_sorted(c, queue, length, r)
    return append(queue, length, r)


@kernel
def prepend_request(c, queue, length, r):
    """Put request r first (a priority queue sorts it in); returns the new length."""
    if c.priority_policy:
        return _insert_sorted(c, queue, length, r)
    return insert(queue, length, 0, r)
