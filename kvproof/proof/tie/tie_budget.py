"""The budget arithmetic read off the model: one subject, the call of schedule()."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar

from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Assertion, Pause, Status
from kvproof.proof.budget import budget
from kvproof.proof.tie.samples import Named, Row, Tie, rules_off

_CALL = "call"


class BudgetTie(Tie):
    """One relation for the scope's number of requests."""

    watched: ClassVar[tuple[str, ...]] = (
        "kv_cache.allocate_slots",
        "kv_cache.get_computed_blocks",
        "scheduler._put_in_step",
        "scheduler.preempt_request",
    )

    def __init__(self, compiled: Compiled) -> None:
        self.requests = len(compiled.scope.requests)
        super().__init__(compiled, budget(rules_off(compiled), requests=self.requests))
        self._victims: set[int] = set()
        self._asking: Row = (0, 0, 0)
        self._looked_up = 0
        self._parameters: Row = ()

    def parameters(self, subject: Hashable) -> Row:
        return self._parameters

    def subjects(self) -> Iterable[Hashable]:
        return ()

    def begin(self, state: Any, report: Any, action: int) -> None:
        super().begin(state, report, action)
        if engine.kind_of(action) != Kind.SCHEDULE:
            return
        c = self.c
        self._victims = set()
        self._asking = (0, 0, 0)
        several = state.num_running + state.num_waiting + state.num_kv_holding > 1
        granted = 0 if state.pause == Pause.PAUSED_ALL else c.token_budget
        self._parameters = (
            c.token_budget,
            granted,
            c.input_budget,
            c.draft_slots,
            c.max_model_len,
            c.long_prefill_token_threshold if several else 0,
            c.num_speculative_tokens,
            c.priority_policy,
            c.chunked_prefill,
        )
        nothing = (0,) * len(self.relation.fields)
        self.last = {
            _CALL: self.changed(nothing, token_left=granted, input_left=c.input_budget),
        }

    def project(self, subject: Hashable) -> Row:
        s, e = self.state, self.report
        inside = set(e.order[: e.num_scheduled])
        numbers = range(self.requests)
        return (
            e.token_budget,
            e.input_budget,
            *self._asking,
            int(s.assertion == Assertion.NOTHING_TO_SCHEDULE),
            *e.scheduled,
            *e.start,
            *(int(r + 1 in inside) for r in numbers),
            *(int(r in self._victims) for r in numbers),
        )

    def end(self, action: int) -> None:
        if not self.last:
            return
        self._asking = (0, 0, 0)
        if self.state.assertion == Assertion.NOTHING_TO_SCHEDULE:
            r = self._looked_up
            computed = self.report.num_hits * self.c.block_size
            self._takes(f"ask waiting R{r}", (self.state.num_tokens[r], computed, 0))
        self._takes("end", ())

    def _takes(self, operation: str, inputs: Row) -> None:
        def explain(*_: Any) -> Named:
            return operation, inputs

        self.step(explain)

    def called(self, name: str, arguments: tuple[Any, ...], _result: Any) -> None:
        if not self.last:
            return
        r = arguments[3]
        if name == "kv_cache.allocate_slots":
            self._asked(*arguments[3:9])
        elif name == "kv_cache.get_computed_blocks":
            self._looked_up = r
        elif name == "scheduler._put_in_step":
            self._asking = (0, 0, 0)
            self._takes(f"put R{r}", ())
        else:
            self._victims.add(r)
            if self._asking[0] == r + 1:
                self._asking = (0, 0, 0)
            self._takes(f"evict R{r}", ())

    def _asked(
        self, r: int, tokens: int, hits: int, _lookahead: int, external: int, loads: int
    ) -> None:
        """A request asks for slots; a load asks for no tokens, and who asks again asks the same."""
        s = self.state
        computed = s.num_computed[r] + external
        if loads or self._asking[0] == r + 1:
            return
        if self._asking[0]:  # who asked before got nothing, and nobody could be preempted
            self._asking = (0, 0, 0)
            self._takes("end", ())
        if s.status[r] == Status.RUNNING:
            self._asking = (r + 1, tokens, computed)
            wanted = s.num_tokens[r] + s.num_drafts[r] + s.placeholders[r] - computed
            self._takes(f"ask R{r}", (wanted, computed))
            return
        if s.num_computed[r] == 0:
            computed += self.report.num_hits * self.c.block_size
        self._asking = (r + 1, tokens, computed)
        padded = (
            self.c.num_speculative_tokens > 0 and s.num_tokens[r] - computed == 1 and tokens > 1
        )
        self._takes(f"ask waiting R{r}", (s.num_tokens[r], computed, int(padded)))
