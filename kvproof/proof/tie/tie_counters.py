"""The counters read off the model: every request is a subject."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Status
from kvproof.proof.counters import ABSENT, FINISHED, LOADING, RUNNING, WAITING, counters
from kvproof.proof.tie.samples import Named, Row, Tie, rules_off

_DEPTH = 3


def life_of(status: int) -> int:
    """The life of the counters' relation that a status stands for."""
    if status in (Status.ABSENT, Status.GONE):
        return ABSENT
    if status in (Status.WAITING, Status.PREEMPTED):
        return WAITING
    if status == Status.RUNNING:
        return RUNNING
    return LOADING if status == Status.WAITING_FOR_REMOTE_KVS else FINISHED


class CountersTie(Tie):
    """One relation with three steps in flight, or with their sums (`depth` is None)."""

    watched: ClassVar[tuple[str, ...]] = (
        "scheduler.add_request",
        "scheduler.preempt_request",
        "scheduler.finish_request",
        "scheduler._skip",
        "scheduler._update_after_schedule",
        "connector.handle_blocked_waiting_request",
        "connector.handle_invalid_blocks",
        "connector.forget_transfer",
    )

    def __init__(self, compiled: Compiled, depth: int | None = _DEPTH) -> None:
        super().__init__(compiled, counters(rules_off(compiled), depth))
        self.depth = depth
        self._oldest: dict[int, Row] = {}

    def parameters(self, subject: Any) -> Row:
        c, r = self.c, subject
        return (
            c.prompt_len[r],
            c.max_tokens[r],
            c.max_model_len,
            c.num_speculative_tokens,
            c.async_scheduling,
        )

    def subjects(self) -> Iterable[Hashable]:
        return range(self.c.num_requests)

    def begin(self, state: Any, report: Any, action: int) -> None:
        super().begin(state, report, action)
        self._oldest = {}
        if engine.kind_of(action) == Kind.OUTPUT:
            for r in range(self.c.num_requests):
                if state.step_tokens[0, r] > 0:
                    self._oldest[r] = self._steps(r)[0][:3]

    def _steps(self, r: int) -> list[Row]:
        """Tokens, drafts, samples and staleness of the request's steps in flight."""
        s = self.state
        return [
            (
                s.step_tokens[d, r],
                s.step_drafts[d, r] if s.step_samples[d, r] else 0,
                s.step_samples[d, r],
                int(s.step_stale[d, r] > 0),
            )
            for d in range(s.num_steps)
            if s.step_tokens[d, r] > 0
        ]

    def project(self, subject: Any) -> Row:
        s, r = self.state, subject
        life = life_of(s.status[r])
        steps = self._steps(r) if life != ABSENT else []
        return (
            life,
            s.num_tokens[r],
            s.num_computed[r],
            s.placeholders[r],
            s.in_flight[r],
            s.stale[r],
            s.num_drafts[r],
            s.num_published[r] * self.c.block_size,
            s.drop_stale[r],
            s.prefill_chunk[r],
            s.drafting[r],
            *(self._slots(steps) if self.depth is not None else self._sums(steps)),
        )

    def _slots(self, steps: list[Row]) -> Iterable[int]:
        padding = [(0, 0, 0, 0)] * (_DEPTH - len(steps))
        return (value for step in (*steps, *padding) for value in step)

    def _sums(self, steps: list[Row]) -> Row:
        sampling = [drafts for _tokens, drafts, samples, stale in steps if samples and not stale]
        return (
            len(steps),
            sum(step[0] for step in steps),
            sum(step[0] for step in steps if step[3]),
            sum(sampling),
            sum(1 + drafts for drafts in sampling),
            len(sampling),
        )

    def end(self, action: int) -> None:
        kind = engine.kind_of(action)
        if kind == Kind.OUTPUT:
            self.step(self._output)
        elif kind == Kind.DRAFTS:
            self.step(
                lambda _r, old, new: (
                    ("drafts", (self.value(new, "num_drafts"),))
                    if self.value(old, "drafting")
                    else None
                )
            )
        else:
            super().end(action)

    def _output(self, r: int, old: Row, new: Row) -> Named | None:
        if self.value(old, "life") == ABSENT or r not in self._oldest:
            return None
        e = self.report
        published = (
            self.value(old, "published")
            if self.value(new, "life") == ABSENT
            else self.value(new, "published")
        )
        held = int(self.value(new, "life") == FINISHED)
        oldest = self._oldest[r] if self.depth is None else ()
        return "output", (e.accepted[r], e.stop_at[r], published, held, *oldest)

    def called(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        if name == "scheduler._update_after_schedule":
            self.step(self._dispatched)
        elif name == "connector.handle_invalid_blocks":
            self.step(
                lambda _r, old, new: (
                    ("load_fails", (self.value(new, "num_computed"),))
                    if self.value(old, "life") == LOADING
                    else None
                )
            )
        else:
            subject = arguments[2 if name in _WITHOUT_REPORT else 3]
            explain = getattr(self, "_" + name.rpartition(".")[2].lstrip("_"))
            after = self.project(subject)
            named = explain(subject, self.last[subject], after, arguments)
            if named is not None:
                before, self.last[subject] = self.last[subject], after
                operation, inputs = named
                self.samples.add(operation, self.parameters(subject), before, inputs, after)

    def _dispatched(self, r: int, old: Row, new: Row) -> Named | None:
        e = self.report
        if e.scheduled[r] == 0:
            return None
        if not e.admitted[r]:
            return "serve", (e.scheduled[r], self.value(new, "published"))
        adopted = (
            e.adopted[r] * self.c.block_size
            if self.value(old, "num_computed") == 0
            else self.value(old, "published")
        )
        inputs = (e.scheduled[r], e.start[r], adopted, self.value(new, "published"), e.padded[r])
        return "admit", inputs

    def _add_request(self, _r: int, _old: Row, _new: Row, _arguments: Any) -> Named:
        return "add", ()

    def _preempt_request(self, _r: int, _old: Row, _new: Row, arguments: Any) -> Named:
        return "preempt", (int(arguments[4]),)

    def _finish_request(self, _r: int, old: Row, new: Row, _arguments: Any) -> Named | None:
        if self.value(old, "life") in (ABSENT, FINISHED):
            return None
        return "abort", (int(self.value(new, "life") == FINISHED),)

    def _skip(self, r: int, _old: Row, new: Row, _arguments: Any) -> Named | None:
        if not self.report.new_load[r]:
            return None
        return "load", (self.value(new, "num_computed"), self.value(new, "published"))

    def _handle_blocked_waiting_request(
        self, _r: int, old: Row, new: Row, _arguments: Any
    ) -> Named | None:
        if self.value(old, "life") != LOADING or self.value(new, "life") == LOADING:
            return None
        return "wake", (self.value(new, "published"),)

    def _forget_transfer(self, _r: int, old: Row, _new: Row, _arguments: Any) -> Named | None:
        return ("report", ()) if self.value(old, "life") == FINISHED else None


_WITHOUT_REPORT = frozenset({"scheduler.add_request", "connector.forget_transfer"})
