"""A block pool of lists and dictionaries, as vLLM's source reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from kvproof.model.state import Assertion
from kvproof.proof.interpreted import Plain


class Asserted(Exception):
    """vLLM asserts or raises here."""


class PoolTwin:
    """A list for the free queue, and for each hash the list of its blocks, first published first.

    `length` is the number of tokens that a hash stands for.
    """

    def __init__(self, num_blocks: int, caching: bool, length: Callable[[Any], int]) -> None:
        self.num_blocks = num_blocks
        self.caching = caching
        self.length = length
        self.free = list(range(1, num_blocks))
        self.references = dict.fromkeys(self.free, 0)
        self.published: defaultdict[Hashable, list[int]] = defaultdict(list)

    def hash_of(self, block: int) -> Any:
        return next((code for code, blocks in self.published.items() if block in blocks), None)

    def look_up(self, code: Hashable) -> int:
        return next(iter(self.published[code]), 0)

    def withdraw(self, block: int) -> bool:
        code = self.hash_of(block)
        if code is not None:
            self.published[code].remove(block)
        return code is not None

    def publish(self, block: int, code: Hashable) -> None:
        old = self.hash_of(block)
        if old is not None and self.length(old) >= self.length(code):
            raise Asserted(Assertion.BLOCK_PUBLISHED_TWICE)
        self.withdraw(block)
        self.published[code].append(block)

    def take(self) -> int:
        if not self.free:
            raise Asserted(Assertion.NO_FREE_BLOCKS)
        block = self.free.pop(0)
        self.withdraw(block)
        self.references[block] += 1
        return block

    def touch(self, block: int) -> None:
        if self.references[block] == 0:
            self.free.remove(block)
        self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        first, last = [], []
        for block in blocks:
            self.references[block] -= 1
            if self.references[block] == 0:
                (last if self.hash_of(block) and self.caching else first).append(block)
        self.free = first + self.free + last

    def reset(self) -> bool:
        if len(self.free) != self.num_blocks - 1:
            return False
        self.published.clear()
        return True


def pool_differs(s: Plain, twin: PoolTwin, hash_of: Callable[[int], Hashable]) -> bool:
    """Whether the state's pool is another than the twin's, whose hash a code is by `hash_of`."""
    blocks = range(1, twin.num_blocks)
    wanted = {
        block: (code, rank)
        for code, published in twin.published.items()
        for rank, block in enumerate(published, 1)
    }
    ranks = {b: (hash_of(s.block_hash[b]), s.hash_rank[b]) for b in blocks if s.block_hash[b]}
    queue = twin.free + [0] * (twin.num_blocks - len(twin.free))
    return (
        s.free_queue != queue
        or s.num_free != len(twin.free)
        or [s.ref_cnt[b] for b in blocks] != [twin.references[b] for b in blocks]
        or ranks != wanted
        or any(s.hash_rank[b] for b in blocks if not s.block_hash[b])
        or s.ref_cnt[0] + s.block_hash[0] + s.hash_rank[0] != 0
    )
