"""The fence read off the model: the blocks of every request and every deferred free."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

from kvproof.model.compiled import Compiled
from kvproof.proof.blocks import ALIVE
from kvproof.proof.fence import DEFERRED, HELD, NOTHING, RETURNED, fence
from kvproof.proof.tie.samples import Named, Row, Tie, rules_off
from kvproof.proof.tie.tie_blocks import life_of, step_ranks


class FenceTie(Tie):
    """Subjects are ("request", r) and ("deferred", place in the queue when the action began).

    The state does not keep which steps may write blocks that are deferred already: for those the
    fields that only remember are set to the fence and counted down like the relation does.
    """

    watched: ClassVar[tuple[str, ...]] = (
        "connector.free_request_blocks",
        "connector.step_processed",
        "kv_cache.free",
        "kv_cache.allocate_slots",
        "scheduler._update_after_schedule",
    )

    def __init__(self, compiled: Compiled) -> None:
        super().__init__(compiled, fence(rules_off(compiled)))
        self._drained = 0

    def parameters(self, subject: Hashable) -> Row:
        return ()

    def begin(self, state: Any, report: Any, action: int) -> None:
        self._drained = 0
        super().begin(state, report, action)

    def subjects(self) -> Iterable[Hashable]:
        s = self.state
        if not self.c.defer_block_free:
            return []
        alive = [("request", r) for r, status in enumerate(s.status) if life_of(status) > 0]
        return [*alive, *(("deferred", q) for q in range(s.num_deferred))]

    def project(self, subject: Any) -> Row:
        kind, number = subject
        s = self.state
        if kind == "request":
            fences = s.deferred_fence[: s.num_deferred]
            held = s.num_blocks[number] > 0
            return (
                s.seq_ahead,
                s.last_seq[number],
                self._writer(number) if held else 0,
                HELD if held else NOTHING,
                0,
                0,
                len(fences),
                max(fences, default=0),
            )
        place = number - self._drained
        if place < 0:
            return self._ended(subject, RETURNED)
        bound = s.deferred_fence[place]
        ahead = s.deferred_fence[:place]
        return (s.seq_ahead, bound, bound, DEFERRED, bound, bound, place, max(ahead, default=0))

    def _ended(self, subject: Hashable, place: int) -> Row:
        """A subject whose blocks have just come back: its past, one step further."""
        row = self.last[subject]
        return self.changed(
            row,
            seq_ahead=self.value(row, "seq_ahead") - 1,
            last_seq=max(self.value(row, "last_seq") - 1, 0),
            writer=max(self.value(row, "writer") - 1, 0),
            place=place,
            fence=0,
            due=self.value(row, "due") - 1,
            ahead=0,
            ahead_fence=0,
        )

    def _writer(self, r: int) -> int:
        """The last step in flight that was given the request's blocks."""
        s = self.state
        writer = 0
        for d, rank in enumerate(step_ranks(s)):
            if s.step_tokens[d, r] > 0 and s.step_table[d, r, 0] == s.block_table[r, 0]:
                writer = max(writer, rank)
        return writer

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if not self.last:
            return
        if name == "connector.step_processed":
            self._processed()
        elif name == "connector.free_request_blocks":
            self._freed(arguments[3])
        elif name == "kv_cache.free":
            self._given_back(arguments[3])
        elif name == "kv_cache.allocate_slots":
            r = arguments[3]
            self.step(
                lambda subject, old, new: (
                    ("take", (self.value(new, "writer"),))
                    if subject == ("request", r)
                    and (self.value(old, "place"), self.value(new, "place")) == (NOTHING, HELD)
                    else None
                )
            )
        else:
            self.step(self._dispatched)

    def _dispatched(self, subject: Any, old: Row, new: Row) -> Named | None:
        if self.value(new, "seq_ahead") == self.value(old, "seq_ahead"):
            return None
        kind, number = subject
        return "schedule", (int(kind == "request" and self.report.scheduled[number] > 0),)

    def _freed(self, r: int) -> None:
        """The request's blocks went to the pool or to the end of the queue."""
        s = self.state
        own: Hashable = ("request", r)
        before = self.last.pop(own, None)
        if before is None:
            return
        joined = s.num_deferred > self.value(before, "ahead")
        if self.value(before, "place") == HELD:
            place = s.num_deferred - 1
            ahead = s.deferred_fence[:place] if joined else s.deferred_fence[: s.num_deferred]
            after = self.changed(
                before,
                seq_ahead=s.seq_ahead,
                place=DEFERRED if joined else RETURNED,
                fence=s.deferred_fence[place] if joined else 0,
                due=s.seq_ahead,
                ahead=len(ahead),
                ahead_fence=max(ahead, default=0),
            )
            self.samples.add("free", (), before, (), after)
        if joined:
            inputs = (self.value(before, "last_seq"), s.deferred_fence[s.num_deferred - 1])
            self.step(
                lambda subject, _old, _new: (
                    ("free_other", inputs) if subject[0] == "request" else None
                )
            )
        if life_of(s.status[r]) == ALIVE:
            self.last[own] = self.project(own)

    def _given_back(self, r: int) -> None:
        """Freed without a look at the fence."""
        own: Hashable = ("request", r)
        before = self.last.pop(own)
        after = self.changed(before, place=RETURNED)
        self.samples.add("give_back", (), before, (), after)
        self.last[own] = self.project(own)

    def _processed(self) -> None:
        subjects: list[Any] = list(self.last)
        entries = sum(kind == "deferred" for kind, _number in subjects)
        self._drained = entries - self.state.num_deferred

        def process(_subject: Any, _old: Row, new: Row) -> Named:
            back = self.value(new, "place") == RETURNED
            return "process", (0, 0) if back else (
                self.value(new, "ahead"),
                self.value(new, "ahead_fence"),
            )

        self.step(process)
        self.last = {
            key: row for key, row in self.last.items() if self.value(row, "place") != RETURNED
        }
