"""A KV cache manager of lists and dictionaries, as vLLM's source reads, and random calls of one."""

from __future__ import annotations

from random import Random
from typing import Any

from pool_twin import Asserted, PoolTwin

from kvproof.model.compiled import Compiled
from kvproof.model.state import Assertion, Status

MAX_LOOKAHEAD = 2


class CacheTwin:
    """Tables of requests over a pool in which a block's hash is the tuple of its prefix."""

    def __init__(self, compiled: Compiled) -> None:
        scope = compiled.scope
        self.scope = scope
        self.pool = PoolTwin(scope.num_blocks, scope.prefix_caching, len)
        self.watermark = int(scope.watermark * scope.num_blocks)
        self.line = compiled.tokens
        requests = range(len(scope.requests))
        self.num_tokens = [len(request.prompt) for request in scope.requests]
        self.computed = [0 for _ in requests]
        self.waits = [True for _ in requests]
        self.tables: list[list[int]] = [[] for _ in requests]
        self.published = [0 for _ in requests]

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.scope.block_size)

    def look_up(self, r: int) -> list[int]:
        """The longest published run of blocks that leaves a token to compute."""
        hits: list[int] = []
        size = self.scope.block_size
        if not self.scope.prefix_caching:
            return hits
        while (len(hits) + 1) * size < self.num_tokens[r]:
            block = self.pool.look_up(self.line[r][: (len(hits) + 1) * size])
            if not block:
                break
            hits.append(block)
        if self.scope.num_speculative_tokens and self.scope.spec_method == "eagle":
            return hits[:-1]
        return hits

    def needed(self, r: int, tokens: int, hits: list[int]) -> int:
        """Blocks that leave the free queue for a request to hold so many tokens."""
        new = self.blocks_of(tokens) - len(self.tables[r]) - len(hits)
        return max(new, 0) + sum(not self.pool.references[block] for block in hits)

    def allocate(
        self,
        r: int,
        hits: list[int],
        new: int,
        lookahead: int,
        external: int,
        delay: bool,
        whole: bool,
        reserved: int,
        others: bool,
    ) -> bool:
        if not new and not external and not hits:
            raise Asserted(Assertion.NO_SLOTS_ASKED)
        longest = self.scope.max_model_len
        local = self.computed[r] + len(hits) * self.scope.block_size
        known = local + external + new
        watermark = self.watermark if others and self.waits[r] else 0
        free = len(self.pool.free)
        if whole and self.needed(r, min(self.num_tokens[r], longest), hits) + watermark > free:
            return False
        slots = min(known + lookahead, longest)
        if self.needed(r, slots, hits) + watermark > free - reserved:
            return False
        table = self.tables[r]
        for block in hits:
            self.pool.touch(block)
            table.append(block)
        if hits:
            self.published[r] = len(hits)
        while len(table) < self.blocks_of(slots):
            table.append(self.pool.take())
        if not delay:
            self.publish(r, min(known, self.num_tokens[r]))
        return True

    def publish(self, r: int, tokens: int) -> None:
        """Publish the full blocks of the first tokens of a request."""
        size = self.scope.block_size
        if not self.scope.prefix_caching:
            return
        while (self.published[r] + 1) * size <= tokens:
            block = self.tables[r][self.published[r]]
            self.published[r] += 1
            self.pool.publish(block, self.line[r][: self.published[r] * size])

    def free(self, r: int) -> None:
        self.pool.release(reversed(self.tables[r]))
        self.tables[r].clear()
        self.published[r] = 0


class Call:
    """One call of a manager: its name, the request, its arguments by name."""

    def __init__(self, name: str, r: int, **arguments: Any) -> None:
        self.name = name
        self.r = r
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{self.name}({self.r}, {self.arguments})"


def next_call(twin: CacheTwin, random: Random) -> Call:
    """A call that a scheduler could make."""
    r = random.randrange(len(twin.tables))
    left = twin.num_tokens[r] - twin.computed[r]
    if not twin.tables[r]:
        hits = twin.look_up(r)
        rest = twin.num_tokens[r] - len(hits) * twin.scope.block_size
        external = random.choice([0, 0, random.randint(0, rest)])
        delay = external > 0 and random.random() < 0.5
        return Call(
            "admit",
            r,
            new=0 if delay else random.randint(0 if external or hits else 1, rest - external),
            lookahead=random.choice([0, random.randint(0, MAX_LOOKAHEAD)]),
            external=external,
            delay=delay,
            whole=random.random() < 0.5,
            reserved=random.choice([0, 0, 1, 2]),
            others=random.random() < 0.5,
            status=int(random.choice([Status.WAITING, Status.PREEMPTED])),
        )
    room = twin.scope.max_model_len - twin.num_tokens[r]
    if random.random() < 0.2 or left + room == 0:
        return Call("free", r)
    if random.random() < 0.2 and twin.computed[r] <= twin.num_tokens[r]:
        return Call("publish", r, tokens=twin.computed[r])
    grows = int(room > 0 and (left == 0 or random.random() < 0.3))
    drafts = min(random.choice([0, 0, 1, 2]), room - grows)
    return Call(
        "go_on",
        r,
        new=random.randint(1, left + grows + drafts),
        lookahead=random.choice([0, random.randint(0, MAX_LOOKAHEAD)]),
        grows=grows,
        others=random.random() < 0.5,
    )


def make(twin: CacheTwin, call: Call) -> tuple[bool, list[int]]:
    """Make a call of the twin; whether it was granted, and the hits that were adopted."""
    r, arguments = call.r, dict(call.arguments)
    if call.name == "free":
        twin.free(r)
        twin.computed[r] = 0
        twin.waits[r] = True
        return True, []
    if call.name == "publish":
        twin.publish(r, arguments["tokens"])
        return True, []
    if call.name == "go_on":
        twin.num_tokens[r] += arguments.pop("grows")
        granted = twin.allocate(
            r, [], external=0, delay=False, whole=False, reserved=0, **arguments
        )
        if granted:
            # Rejected drafts are computed no more.
            twin.computed[r] = min(twin.computed[r] + arguments["new"], twin.num_tokens[r])
        return granted, []
    del arguments["status"]
    hits = twin.look_up(r)
    granted = twin.allocate(r, hits, **arguments)
    if granted:
        found = len(hits) * twin.scope.block_size
        twin.computed[r] = found + arguments["external"] + arguments["new"]
        twin.waits[r] = False
    return granted, hits
