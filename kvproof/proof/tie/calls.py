"""The world of the budget's proof: one whole call of schedule() that begins as Z3 chose."""

from __future__ import annotations

import z3

from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.scope import RequestSpec, Scope
from kvproof.model.state import Pause, Status
from kvproof.proof.budget import budget
from kvproof.proof.relation import Operation, Term, every, name_of
from kvproof.proof.tie.made import Filled, Values, World
from kvproof.proof.tie.samples import Tie
from kvproof.proof.tie.tie_budget import BudgetTie

_SIZE = 8
_SCHEDULE = int(Kind.SCHEDULE)
_ASKS, _FIRST, _HOLDER = 0, 1, 2


class BudgetWorld(World):
    """Request 0 asks, request 1 was served before it, request 2 holds blocks and waits.

    The pool is full where somebody is to be evicted: request 0 needs a second block then.
    """

    def __init__(self) -> None:
        self.relation = budget(requests=3)
        self.operations = tuple(
            self.relation.operation(name)
            for name in ("ask R0", "ask waiting R0", "put R0", "evict R0", "evict R1", "end")
        )

    def fits(self, operation: Operation) -> Term:
        field = {
            name_of(f): f
            for f in (*self.relation.fields, *self.relation.parameters, *operation.inputs)
        }
        length, k, slots = field["max_model_len"], field["num_spec_tokens"], field["draft_slots"]
        name = operation.name
        served = field["in_step1"]
        parts = [
            every((length >= 2 * _SIZE + 1, length <= 3 * _SIZE, k <= 3, slots <= 1)),
            z3.Implies(slots == 1, k > 0),
            every((field["token_budget"] <= 40, field["input_budget"] <= 40)),
            field["input_budget"] >= 3,
            field["threshold"] <= length,
            z3.Or(field["chunked_prefill"], field["input_budget"] >= length),
            # Nobody else is in the step, and nobody was evicted.
            every(z3.Not(field[f"victim{r}"]) for r in range(3)),
            every(z3.Not(field[f"in_step{r}"]) for r in (_ASKS, _HOLDER)),
            every(field[f"start{r}"] == 0 for r in (_ASKS, _HOLDER)),
            z3.Implies(z3.Not(served), field["start1"] == 0),
            served if name == "evict R1" else z3.Not(served),
            field["asking"] == (1 if name in ("put R0", "evict R0", "evict R1") else 0),
            z3.Implies(
                field["asking"] == 0, every((field["asked"] == 0, field["asked_start"] == 0))
            ),
        ]
        if name.startswith("ask"):
            parts.append(field["num_computed"] <= _SIZE)
            parts.append(field[operation.inputs[0].decl().name()] <= 2 * _SIZE)
        if name == "ask waiting R0":
            # A decode that could be padded is padded.
            may = every(
                (
                    k > 0,
                    field["num_tokens"] - field["num_computed"] == 1,
                    field["num_computed"] > 0,
                    field["num_computed"] + k + 2 <= length,
                )
            )
            parts.append(field["padded"] == may)
        if name.startswith("evict"):
            parts += [
                field["priority_policy"],
                field["asked_start"] == _SIZE,
                field["start1"] >= 0,
                field["start1"] + field["scheduled1"] + k <= _SIZE,
            ]
        parts += [field["asked"] <= _SIZE, field["asked_start"] <= _SIZE]
        return every(parts)

    def scope(self, values: Values) -> Scope:
        speculates = values["num_spec_tokens"] > 0
        return Scope(
            name="made-by-z3",
            requests=tuple(
                RequestSpec((1,) * 2, max_tokens=32, priority=priority) for priority in (0, 1, 0)
            ),
            num_blocks=4,
            block_size=_SIZE,
            max_num_seqs=3,
            max_num_batched_tokens=int(values["input_budget"]),
            max_num_scheduled_tokens=int(values["token_budget"]),
            max_model_len=int(values["max_model_len"]),
            policy="priority" if values["priority_policy"] else "fcfs",
            prefix_caching=False,
            chunked_prefill=bool(values["chunked_prefill"]),
            long_prefill_token_threshold=int(values["threshold"]),
            reserve_full_isl=False,
            num_speculative_tokens=int(values["num_spec_tokens"]),
            spec_method="draft_model" if speculates and values["draft_slots"] else "ngram",
            kv_role="kv_consumer",
        )

    def tie(self, compiled: Compiled) -> Tie:
        return BudgetTie(compiled)

    def fill(self, world: Filled, values: Values) -> None:
        s = world.state
        s.status[_HOLDER] = Status.WAITING_FOR_REMOTE_KVS
        s.kv_holding[0], s.num_kv_holding = _HOLDER + 1, 1
        if values["granted"] == 0:
            s.pause = Pause.PAUSED_ALL
        if values["in_step1"]:
            start = int(values["start1"])
            self._let_run(world, _FIRST, start, int(values["scheduled1"]), [2])
        if values["asking"]:
            start = int(values["asked_start"])
            self._let_run(world, _ASKS, start, int(values["asked"]), [1] if start else [])
        elif "wanted" in values:
            start = int(values["num_computed"])
            self._let_run(world, _ASKS, start, int(values["wanted"]), [1] if start else [])
        elif "num_tokens" in values:
            self._let_wait(world, int(values["num_computed"]), int(values["num_tokens"]))
        held = {b for r in (_ASKS, _FIRST) for b in s.block_table.row(r) if b}
        if values["in_step1"]:
            held.add(3)
            s.block_table[_HOLDER, 0], s.num_blocks[_HOLDER], s.ref_cnt[3] = 3, 1, 1
        free = [b for b in range(1, world.c.num_blocks) if b not in held]
        s.free_queue[:] = free + [0] * (world.c.num_blocks - len(free))
        s.num_free = len(free)

    def _let_run(self, world: Filled, r: int, computed: int, wanted: int, held: list[int]) -> None:
        s = world.state
        s.status[r] = Status.RUNNING
        s.running[s.num_running] = r + 1
        s.num_running += 1
        self._give(world, r, computed, computed + wanted, held)

    def _let_wait(self, world: Filled, computed: int, tokens: int) -> None:
        s = world.state
        s.status[_ASKS] = Status.WAITING
        if computed:
            s.kv_holding[1], s.num_kv_holding = _ASKS + 1, 2
        else:
            s.waiting[0], s.num_waiting = _ASKS + 1, 1
        self._give(world, _ASKS, computed, tokens, [1] if computed else [])

    def _give(self, world: Filled, r: int, computed: int, tokens: int, held: list[int]) -> None:
        s = world.state
        s.num_computed[r], s.num_tokens[r] = computed, tokens
        for i, b in enumerate(held):
            s.block_table[r, i] = b
            s.ref_cnt[b] = 1
        s.num_blocks[r] = len(held)

    def run(self, world: Filled, operation: str, values: Values) -> int:
        s = world.state
        if operation == "evict R0":
            # Nobody else runs, and the rest of the pool is held by the one that waits.
            for i in range(s.num_free):
                s.block_table[_HOLDER, i] = s.free_queue[i]
                s.ref_cnt[s.free_queue[i]] = 1
            s.num_blocks[_HOLDER], s.num_free = s.num_free, 0
        world.begin(_SCHEDULE)
        world.call("scheduler.schedule")
        return _SCHEDULE
