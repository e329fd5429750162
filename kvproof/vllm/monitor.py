"""Invariants of the real scheduler at the size of a real pool, checked step by step.

A whole observation of 10,000 blocks at every step would cost more than the scheduler. So the
monitor keeps its own account (the free queue, the tables, what a device would have written into
every block) and brings it forward by what a step changed; every so many steps, after every
preemption and at the end it compares the whole account with the real classes' state.

Within a step that preempts, the order of frees and allocations cannot be told from outside: there
the account is taken over from the real state, after a full check that does not need it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from vllm.v1.request import RequestStatus

from kvproof.workload.clock import Broken
from kvproof.workload.sessions import token

INVARIANTS = (
    "BlockConservation",
    "BudgetRespected",
    "CountersConsistent",
    "EvictionOrder",
    "FreedExactlyOnce",
    "HitMaximal",
    "Isolation",
    "NoAssertion",
    "NoStall",
    "OutputExact",
    "PolicyOrder",
    "PublishedSound",
    "QueueStatusAgree",
    "ReadsCorrect",
    "ScheduleSet",
    "SlotsRespected",
    "VictimIsLowest",
    "WrittenSlotsOwned",
)
"""What is checked; the names are those of docs/invariants.md."""


class Before(NamedTuple):
    """What a step's check needs of the state before it: those that ran, those that may not yet.

    A preempted request may not be admitted before its stale outputs have drained.
    """

    running: list[str]
    stale: set[str]


class Monitor:
    """Checks one scheduler; raises Broken at the first invariant that falls."""

    def __init__(self, scheduler: Any, block_size: int, budget: int, check_every: int) -> None:
        self.full_checks = 0
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        (self._manager,) = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._size = block_size
        self._budget = budget
        self._check_every = check_every
        self._by_priority = scheduler.policy.value == "priority"
        self._steps = 0
        blocks = self._pool.blocks
        # The token of each block's first slot, and the number of slots that are written.
        self._content: list[int | None] = [None] * len(blocks)
        self._filled = [0] * len(blocks)
        self._free: OrderedDict[int, None] = OrderedDict()
        self._tables: dict[str, list[int]] = {}
        self._published: dict[int, int] = {}
        self._num_published: dict[str, int] = {}
        self._in_flight: Counter[str] = Counter()
        self._sessions: dict[str, int] = {}
        self._waiting: list[str] = []
        self._take_over()

    def added(self, name: str, session: int) -> None:
        """A request of a session has arrived."""
        self._sessions[name] = session
        self._waiting.append(name)

    def before(self) -> Before:
        """To be taken just before `schedule`."""
        s = self._scheduler
        return Before(
            [q.request_id for q in s.running],
            {q.request_id for q in s.waiting if q.num_stale_output_tokens} if s.waiting else set(),
        )

    def scheduled(self, before: Before, output: Any, hits: dict[str, int]) -> None:
        """Check a step; `hits` are the cached tokens of the requests that it admitted."""
        self._steps += 1
        self._check_selection(before, output, hits)
        victims = output.preempted_req_ids or ()
        if victims:
            self._check_victims(before, victims)
            self._adopt()
        for name, count in output.num_scheduled_tokens.items():
            request = self._scheduler.requests[name]
            if not victims:
                self._grow(name, hits.get(name))
            self._write(name, request.num_computed_tokens - count, count)
            self._in_flight[name] += count
            if request.num_in_flight_tokens != self._in_flight[name]:
                self._fall(
                    "CountersConsistent",
                    f"{name} counts {request.num_in_flight_tokens} tokens in flight of "
                    f"{self._in_flight[name]}",
                )
            if request.num_computed_tokens > request.num_tokens + request.num_output_placeholders:
                self._fall("CountersConsistent", f"{name} computed more tokens than it has")
            self._publish(name, self._manager.num_cached_block.get(name, 0))
        if victims or (self._check_every and self._steps % self._check_every == 0):
            self.check_all()

    def processed(self, scheduled: dict[str, int], order: Sequence[str]) -> None:
        """Check after the output of a step, which had so many tokens of each request, in order."""
        requests = self._scheduler.requests
        for name in order:
            self._in_flight[name] -= scheduled[name]
            if not self._in_flight[name]:
                del self._in_flight[name]
            if name in requests:
                if name in self._tables:
                    self._publish(name, self._manager.num_cached_block.get(name, 0))
            elif name in self._tables:
                self._release(name)
            elif name in self._waiting:
                # A stale output ended it.
                self._waiting.remove(name)
                del self._sessions[name]

    def check_all(self) -> None:
        """Compare everything with the real state."""
        self.full_checks += 1
        queue = self._queue()
        if queue != list(self._free):
            at = next(
                (i for i, (a, b) in enumerate(zip(queue, self._free, strict=False)) if a != b),
                min(len(queue), len(self._free)),
            )
            self._fall(
                "BlockConservation",
                f"the free queue has {len(queue)} blocks, {len(self._free)} are accounted for; "
                f"they differ from place {at} on",
            )
        self._check_conservation(queue)
        self._check_published()
        self._check_queues()

    def _fall(self, invariant: str, seen: str) -> NoReturn:
        raise Broken(invariant, seen)

    def _check_selection(self, before: Before, output: Any, hits: dict[str, int]) -> None:
        scheduler = self._scheduler
        counts = output.num_scheduled_tokens
        total = sum(counts.values())
        if total != output.total_num_scheduled_tokens or total > self._budget:
            self._fall(
                "BudgetRespected",
                f"{total} tokens scheduled ({output.total_num_scheduled_tokens} reported) of "
                f"{self._budget}",
            )
        if any(count <= 0 for count in counts.values()):
            self._fall("BudgetRespected", f"{counts}")
        if len(scheduler.running) > scheduler.max_num_running_reqs:
            self._fall(
                "SlotsRespected",
                f"{len(scheduler.running)} run, {scheduler.max_num_running_reqs} may",
            )
        running = {q.request_id for q in scheduler.running}
        victims = set(output.preempted_req_ids or ())
        if not counts.keys() <= running or victims & counts.keys():
            self._fall(
                "ScheduleSet", f"scheduled {list(counts)}, running {running}, victims {victims}"
            )
        admitted = [name for name in counts if name in hits]
        if admitted:
            self._check_admissions(before, admitted)
        # Victims go to the front in the order in which they ran; priority sorts anyway.
        self._waiting[:0] = [name for name in before.running if name in victims]

    def _check_admissions(self, before: Before, admitted: list[str]) -> None:
        """They are the first of those that wait, in the policy's order."""
        eligible = [name for name in self._waiting if name not in before.stale]
        if self._by_priority:
            eligible.sort(key=self._rank)
        if admitted != eligible[: len(admitted)]:
            self._fall("PolicyOrder", f"admitted {admitted}, waiting were {eligible[:20]}")
        self._waiting = [name for name in self._waiting if name not in admitted]

    def _rank(self, name: str) -> tuple[int, float]:
        request = self._scheduler.requests[name]
        return request.priority, request.arrival_time

    def _check_victims(self, before: Before, victims: Any) -> None:
        ranked = sorted(before.running, key=self._rank) if self._by_priority else before.running
        lowest = ranked[len(ranked) - len(victims) :]
        if set(lowest) != set(victims):
            self._fall("VictimIsLowest", f"preempted {sorted(victims)}, lowest were {lowest}")

    def _grow(self, name: str, hit: int | None) -> None:
        """Bring the account of a request's table forward: its hit, then its new blocks."""
        ids = [block.block_id for block in self._manager.req_to_blocks[name][self._known(name) :]]
        table = self._tables.setdefault(name, [])
        if hit is not None:
            cached, ids = ids[: hit // self._size], ids[hit // self._size :]
            self._take_hit(name, cached)
        for block in ids:
            head = next(iter(self._free), None)
            if block != head:
                self._fall("EvictionOrder", f"{name} got block {block}, next was {head}")
            del self._free[block]
            self._forget(block)
        table.extend(ids)

    def _known(self, name: str) -> int:
        return len(self._tables.get(name, ()))

    def _take_hit(self, name: str, cached: list[int]) -> None:
        session, size = self._sessions[name], self._size
        request = self._scheduler.requests[name]
        for i, block in enumerate(cached):
            self._check_content(name, block, i)
            self._free.pop(block, None)
        self._tables[name].extend(cached)
        self._num_published[name] = len(cached)
        n = len(cached)
        if (n + 1) * size < request.num_tokens and token(session, n * size) in self._published:
            self._fall("HitMaximal", f"{name} hit {n} blocks, the next one was published too")

    def _check_content(self, name: str, block: int, place: int) -> None:
        """The block that stands at a place of a table has all of the session's KV there."""
        wanted = token(self._sessions[name], place * self._size)
        if self._content[block] != wanted:
            self._fall("Isolation", f"block {block} at place {place} of {name} has foreign KV")
        if self._filled[block] != self._size:
            self._fall(
                "ReadsCorrect",
                f"block {block} at place {place} of {name} has {self._filled[block]} written slots",
            )

    def _forget(self, block: int) -> None:
        content = self._content[block]
        if content is not None and self._published.get(content) == block:
            del self._published[content]
        self._content[block] = None
        self._filled[block] = 0

    def _write(self, name: str, start: int, count: int) -> None:
        """A device runs the step: it fills these positions, and reads all before them.

        What is before them was right when it was taken over or written, and only its owner writes
        a block; so the reads are right if no position is skipped.
        """
        table, size, session = self._tables[name], self._size, self._sessions[name]
        for place in range(start // size, -(-(start + count) // size)):
            if place >= len(table):
                self._fall("WrittenSlotsOwned", f"{name} writes past its {len(table)} blocks")
            block = table[place]
            if self._pool.blocks[block].ref_cnt != 1:
                self._fall(
                    "WrittenSlotsOwned",
                    f"{name} writes block {block}, which {self._pool.blocks[block].ref_cnt} hold",
                )
            first = max(start - place * size, 0)
            if first == 0:
                self._content[block] = token(session, place * size)
            if self._content[block] != token(session, place * size) or self._filled[block] < first:
                self._fall("ReadsCorrect", f"{name} reads unwritten KV before {start}")
            self._filled[block] = max(self._filled[block], min(start + count - place * size, size))

    def _publish(self, name: str, until: int) -> None:
        """Check the blocks of a request that were published since the last time."""
        table, request = self._tables[name], self._scheduler.requests.get(name)
        for place in range(self._num_published.get(name, 0), until):
            block = table[place]
            self._check_published_block(name, block, place)
            if request is not None and not self._hash_of(block).startswith(
                request.block_hashes[place]
            ):
                self._fall("PublishedSound", f"block {block} of {name} has another place's hash")
            self._published.setdefault(token(self._sessions[name], place * self._size), block)
        self._num_published[name] = max(self._num_published.get(name, 0), until)

    def _check_published_block(self, name: str, block: int, place: int) -> None:
        if not self._hash_of(block):
            self._fall("PublishedSound", f"block {block} of {name} counts as published, is not")
        if (
            self._content[block] != token(self._sessions[name], place * self._size)
            or self._filled[block] != self._size
        ):
            self._fall("PublishedSound", f"block {block} of {name} is published, not written")

    def _hash_of(self, block: int) -> bytes:
        return self._pool.blocks[block].block_hash or b""

    def _release(self, name: str) -> None:
        """A request is gone: its blocks return tail first, unpublished ones to the front."""
        table = self._tables.pop(name)
        unpublished = []
        published = self._num_published.pop(name, 0)
        while published < len(table) and self._hash_of(table[published]):
            self._check_published_block(name, table[published], published)
            self._published.setdefault(
                token(self._sessions[name], published * self._size), table[published]
            )
            published += 1
        for place, block in reversed(list(enumerate(table))):
            if self._pool.blocks[block].ref_cnt or block in self._free:
                self._fall("FreedExactlyOnce", f"block {block} of {name} after its end")
            if place < published:
                self._free[block] = None
            else:
                unpublished.append(block)
        for block in reversed(unpublished):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        del self._sessions[name]

    def _queue(self) -> list[int]:
        queue = []
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not None and block.next_free_block is not None:
            queue.append(block.block_id)
            block = block.next_free_block
        return queue

    def _take_over(self) -> None:
        self._free = OrderedDict.fromkeys(self._queue())

    def _adopt(self) -> None:
        """After a step that preempted: take the tables and the free queue over."""
        tables = {
            name: [block.block_id for block in blocks]
            for name, blocks in self._manager.req_to_blocks.items()
            if blocks
        }
        for name in [name for name in self._tables if name not in tables]:
            del self._tables[name]
            self._num_published.pop(name, None)
        for name, table in tables.items():
            for block in table[self._known(name) :]:
                self._forget(block)
            self._tables[name] = table
        self._take_over()

    def _check_conservation(self, queue: list[int]) -> None:
        pool = self._pool
        holders = Counter(
            block.block_id for table in self._manager.req_to_blocks.values() for block in table
        )
        null = pool.null_block.block_id
        if len(set(queue)) != len(queue) or null in holders or null in queue:
            self._fall("BlockConservation", "a block is free twice, or the null block is out")
        if pool.free_block_queue.num_free_blocks != len(queue):
            self._fall("BlockConservation", "the free queue miscounts")
        free = set(queue)
        for block in pool.blocks:
            b = block.block_id
            if b != null and (block.ref_cnt != holders[b] or (b in free) != (holders[b] == 0)):
                self._fall(
                    "BlockConservation",
                    f"block {b}: {block.ref_cnt} references, {holders[b]} holders, "
                    f"{'' if b in free else 'not '}free",
                )

    def _check_published(self) -> None:
        published = self._pool.cached_block_hash_to_block._cache
        if len(published) != len(self._published):
            self._fall(
                "PublishedSound",
                f"{len(published)} hashes are published, {len(self._published)} accounted for",
            )
        for block_hash, found in published.items():
            for block in found.values() if type(found) is dict else (found,):
                b = block.block_id
                if block.block_hash != block_hash or self._filled[b] != self._size:
                    self._fall("PublishedSound", f"block {b} is published, not written")

    def _check_queues(self) -> None:
        scheduler = self._scheduler
        running = {q.request_id for q in scheduler.running}
        waiting = {q.request_id for q in scheduler.waiting}
        for name, request in scheduler.requests.items():
            wanted = name in running
            if (request.status == RequestStatus.RUNNING) != wanted or wanted == (name in waiting):
                self._fall("QueueStatusAgree", f"{name} is {request.status.name}")
