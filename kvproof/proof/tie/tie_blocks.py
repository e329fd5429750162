"""Block accounting read off the model: every block is a subject."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar

from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Load, Status
from kvproof.proof.blocks import (
    ALIVE,
    FINISHED,
    LANDED,
    NO_LOAD,
    NONE,
    PENDING,
    blocks,
)
from kvproof.proof.interpreted import Plain
from kvproof.proof.tie.samples import Named, Row, Tie, rules_off


def life_of(status: int) -> int:
    """0: not there, 1: alive, 2: finished."""
    if status in (Status.ABSENT, Status.GONE):
        return NONE
    return ALIVE if status <= Status.PREEMPTED else FINISHED


def step_ranks(s: Plain) -> list[int]:
    """The number of each in-flight step, counted from the last processed one with tokens."""
    ranks = []
    rank = s.seq_ahead
    for d in range(s.num_steps - 1, -1, -1):
        ranks.append(rank)
        rank -= s.step_len[d] > 0
    return ranks[::-1]


class BlocksTie(Tie):
    """One relation for the scope's number of requests."""

    watched: ClassVar[tuple[str, ...]] = (
        "scheduler.add_request",
        "scheduler.finish_request",
        "scheduler.free_request",
        "scheduler.preempt_request",
        "scheduler._skip",
        "scheduler._update_after_schedule",
        "kv_cache.allocate_slots",
        "kv_cache.cache_blocks",
        "connector.handle_blocked_waiting_request",
        "connector.handle_invalid_blocks",
        "connector.step_processed",
        "connector.forget_transfer",
        "device.transfer_lands",
        "block_pool.reset_prefix_cache",
    )

    def __init__(self, compiled: Compiled) -> None:
        super().__init__(
            compiled, blocks(rules_off(compiled), requests=len(compiled.scope.requests))
        )
        self.requests = len(compiled.scope.requests)
        self._loading: int | None = None
        self._hits: list[int] = []

    def parameters(self, subject: Hashable) -> Row:
        return (self.c.defer_block_free,)

    def subjects(self) -> Iterable[Hashable]:
        return range(1, self.c.num_blocks)

    def look(self) -> None:
        s = self.state
        numbers = range(self.requests)
        load = [(NO_LOAD, PENDING)[v] if v < Load.LANDED else LANDED for v in s.load]
        self._free = s.free_queue[: s.num_free]
        self._tables = [s.block_table.row(r)[: s.num_blocks[r]] for r in numbers]
        self._deferred = [
            (s.deferred_fence[q], s.deferred_blocks.row(q)[: s.deferred_len[q]])
            for q in range(s.num_deferred)
        ]
        self._given = [
            (rank, s.step_order[d, k] - 1, s.step_table.row(d, s.step_order[d, k] - 1))
            for d, rank in enumerate(step_ranks(s))
            if rank > 0
            for k in range(s.step_len[d])
        ]
        self._moving = [self._loaded(r) if load[r] != NO_LOAD else [] for r in numbers]
        self._sent_from = [s.transfer_table.row(r) if s.sending[r] > 0 else [] for r in numbers]
        self._of_requests = (*s.last_seq, *map(life_of, s.status), *load, *s.sending)
        self._waiting = (
            *(int(status == Status.WAITING_FOR_REMOTE_KVS) for status in s.status),
            *s.load_done,
        )

    def project(self, subject: Any) -> Row:
        s, b = self.state, subject
        deferred, fence = 0, 0
        for bound, freed in self._deferred:
            if b in freed:
                deferred += freed.count(b)
                fence = max(fence, bound)
        wrote = [0] * self.requests
        for rank, r, table in self._given:
            if b in table:
                wrote[r] = rank
        return (
            s.ref_cnt[b],
            self._free.count(b),
            int(s.block_hash[b] != 0),
            s.seq_ahead,
            deferred,
            fence,
            *(table.count(b) for table in self._tables),
            *wrote,
            *self._of_requests,
            *self._waiting,
            *(int(b in written) for written in self._moving),
            *(int(b in read) for read in self._sent_from),
        )

    def _loaded(self, r: int) -> list[int]:
        """The blocks that the request's load writes."""
        s, size = self.state, self.c.block_size
        first = s.load_start[r] // size
        last = (s.load_start[r] + s.load_tokens[r] - 1) // size
        written: list[int] = s.transfer_table.row(r)[first : last + 1]
        return written

    def _table(self, row: Row, r: int) -> int:
        return self.value(row, f"table{r}")

    def _live(self, row: Row, r: int) -> int:
        return self.value(row, f"live{r}")

    def end(self, action: int) -> None:
        if engine.kind_of(action) == Kind.SENT:
            self.step(lambda _b, _before, _after: (f"sent R{action // engine.KINDS}", ()))
        super().end(action)

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        explain = getattr(self, "_" + name.rpartition(".")[2].lstrip("_"))
        explain(arguments, result)

    def _of(self, operation: str, r: int, inputs: Callable[[Any, Row, Row], Row]) -> None:
        self.step(lambda b, old, new: (f"{operation} R{r}", inputs(b, old, new)))

    def _add_request(self, arguments: tuple[Any, ...], _result: Any) -> None:
        self._of("add", arguments[2], lambda *_: ())

    def _finish_request(self, arguments: tuple[Any, ...], _result: Any) -> None:
        r = arguments[3]
        self.step(lambda _b, old, _new: (f"abort R{r}", ()) if self._live(old, r) != NONE else None)

    def _preempt_request(self, arguments: tuple[Any, ...], _result: Any) -> None:
        self._of("preempt", arguments[3], lambda *_: ())

    def _published(self, r: int, old: Row, new: Row) -> int:
        return int(self.value(new, "published") and not self.value(old, "published"))

    def _free_request(self, arguments: tuple[Any, ...], _result: Any) -> None:
        r = arguments[3]
        sends = int(self.state.sending[r] == 1)
        self._of("finish", r, lambda _b, old, new: (sends, self._published(r, old, new)))

    def _cache_blocks(self, arguments: tuple[Any, ...], _result: Any) -> None:
        r = arguments[3]
        if self.state.status[r] == Status.RUNNING:
            self._of("publish", r, lambda _b, old, new: (self._published(r, old, new),))

    def _allocate_slots(self, arguments: tuple[Any, ...], granted: Any) -> None:
        r, num_hits, delays = arguments[3], arguments[5], arguments[8]
        self._hits = self.report.hits[:num_hits] if granted else []
        if granted and delays:
            self._loading = r
        else:
            self._of("allocate", r, lambda b, old, new: self._allocation(r, b, old, new))

    def _allocation(self, r: int, b: int, old: Row, new: Row) -> Row:
        gained = self._table(new, r) - self._table(old, r)
        hit = int(gained > 0 and b in self._hits)
        taken = gained - hit
        return (
            hit,
            taken,
            int(self.value(new, "published") and (taken > 0 or not self.value(old, "published"))),
        )

    def _skip(self, arguments: tuple[Any, ...], _result: Any) -> None:
        r = arguments[3]
        if self._loading == r:
            self._loading = None
            self._of("load", r, lambda b, old, new: self._allocation(r, b, old, new))

    def _handle_blocked_waiting_request(self, arguments: tuple[Any, ...], _result: Any) -> None:
        r = arguments[3]

        def wake(_b: int, old: Row, new: Row) -> Named | None:
            if not self.value(old, f"waits{r}") or self.value(new, f"waits{r}"):
                return None
            frees = int(self._table(old, r) > 0 and self._table(new, r) == 0)
            return f"wake R{r}", (frees, self._published(r, old, new))

        self.step(wake)

    def _handle_invalid_blocks(self, _arguments: tuple[Any, ...], _result: Any) -> None:
        self.step(
            lambda _b, old, new: (
                "withdraw",
                (int(self.value(old, "published") and not self.value(new, "published")),),
            )
        )

    def _step_processed(self, _arguments: tuple[Any, ...], _result: Any) -> None:
        self.step(
            lambda _b, old, new: (
                "process",
                (self.value(old, "deferred") - self.value(new, "deferred"),),
            )
        )

    def _forget_transfer(self, arguments: tuple[Any, ...], _result: Any) -> None:
        self._of("report", arguments[2], lambda *_: ())

    def _transfer_lands(self, arguments: tuple[Any, ...], _result: Any) -> None:
        self._of("land", arguments[2], lambda *_: ())

    def _reset_prefix_cache(self, _arguments: tuple[Any, ...], done: Any) -> None:
        self.step(lambda *_: ("reset", (int(done),)))

    def _update_after_schedule(self, _arguments: tuple[Any, ...], _result: Any) -> None:
        def dispatch(_b: int, old: Row, new: Row) -> Named:
            counted = int(self.value(new, "seq_ahead") > self.value(old, "seq_ahead"))
            inside = (int(counted and n > 0) for n in self.report.scheduled)
            return "dispatch", (counted, *inside)

        self.step(dispatch)
