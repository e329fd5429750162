"""Worlds of the relations: small states of the model with fields that Z3 chose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import z3

from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.model.state import Load, Pause, Phase, Status
from kvproof.proof import counters as lives
from kvproof.proof.blocks import ALIVE, FINISHED, LANDED, NONE, PENDING, SENT, blocks
from kvproof.proof.counters import counters
from kvproof.proof.fence import DEFERRED, HELD, NOTHING, RETURNED, fence
from kvproof.proof.relation import Operation, Term, every, is_flag, name_of
from kvproof.proof.tie.calls import BudgetWorld
from kvproof.proof.tie.made import Filled, Made, Values, World, made
from kvproof.proof.tie.samples import Tie
from kvproof.proof.tie.tie_blocks import BlocksTie
from kvproof.proof.tie.tie_counters import CountersTie
from kvproof.proof.tie.tie_fence import FenceTie

_ELSE = int(Kind.SCHEDULE)
"""The action of a call that is no action by itself."""

_BLOCK = 1
_OTHERS = range(2, 12)


def _deep_scope(requests: int, consumer: bool, delay_free: Sequence[bool] = ()) -> Scope:
    """Three steps in flight, blocks of two slots; a consumer defers its frees."""
    held = list(delay_free) or [False] * requests
    return Scope(
        name="made-by-z3",
        requests=tuple(
            RequestSpec((1,) * 4, max_tokens=4, external=External(2), delay_free=held[r])
            for r in range(requests)
        ),
        num_blocks=12,
        max_num_seqs=requests,
        max_num_batched_tokens=16,
        max_model_len=8,
        async_scheduling=True,
        v2_model_runner=True,
        pipeline_parallel_size=2,
        kv_role="kv_consumer" if consumer else "kv_producer",
        kv_load_failure_policy="fail",
    )


def _hold(world: Filled, r: int, held: Sequence[int]) -> None:
    """The request's table, with a reference for each block."""
    s = world.state
    for i, b in enumerate(held):
        s.block_table[r, i] = b
        s.ref_cnt[b] += 1
    s.num_blocks[r] = len(held)


def _defer(world: Filled, bound: int, b: int) -> None:
    """A deferred free of one block at the end of the queue."""
    s = world.state
    q = s.num_deferred
    s.deferred_fence[q], s.deferred_len[q], s.deferred_blocks[q, 0] = bound, 1, b
    s.num_deferred = q + 1
    s.ref_cnt[b] += 1


def _give_step(world: Filled, d: int, r: int, table: Sequence[int]) -> None:
    """Request r is in in-flight step d with a block table."""
    s = world.state
    s.step_order[d, s.step_len[d]] = r + 1
    s.step_len[d] += 1
    s.step_tokens[d, r] = 1
    for i, b in enumerate(table):
        s.step_table[d, r, i] = b


def _queue_free(world: Filled, first: Sequence[int], most: int) -> None:
    """The free queue: `first`, then all other blocks without a reference."""
    s = world.state
    free = [b for b in range(1, world.c.num_blocks) if s.ref_cnt[b] == 0]
    free = [b for b in first if b in free] + [b for b in free if b not in first]
    s.free_queue[:] = free + [0] * (most - len(free))
    s.num_free = len(free)


def _let_run(world: Filled, r: int) -> None:
    """Request r runs and has one token to compute."""
    s = world.state
    s.status[r], s.num_tokens[r], s.num_computed[r] = Status.RUNNING, 1, 0
    s.running[s.num_running] = r + 1
    s.num_running += 1


def _schedule(world: Filled) -> None:
    """A call of schedule() that admits nobody."""
    world.state.pause = Pause.PAUSED_NEW
    world.begin(_ELSE)
    world.call("scheduler.schedule")


class FenceWorld(World):
    """Request 0 is followed, request 1 frees too, request 2 fills the steps."""

    def __init__(self) -> None:
        self.relation = fence()
        self.operations = self.relation.operations

    def fits(self, operation: Operation) -> Term:
        seq, last, writer, place, bound, due, ahead, ahead_fence = self.relation.fields
        left, left_fence, given = z3.Ints("left left_fence given")
        parts = [
            seq <= (2 if operation.name == "schedule" else 3),
            ahead <= 2,
            place != RETURNED,
            z3.If(
                place == DEFERRED,
                every((writer == bound, last == bound)),
                every((bound == 0, due == 0)),
            ),
            z3.Implies(place == NOTHING, writer == 0),
            z3.Implies(ahead == 0, ahead_fence == 0),
        ]
        if operation.name == "schedule":
            parts.append(z3.Implies(z3.Bool("mine"), place == HELD))
        elif operation.name == "take":
            parts.append(given == 0)
        elif operation.name == "process":
            parts.append(z3.Implies(left > 0, left_fence == ahead_fence - 1))
        return every(parts)

    def scope(self, values: Values) -> Scope:
        return _deep_scope(3, consumer=True)

    def tie(self, compiled: Compiled) -> Tie:
        return FenceTie(compiled)

    def fill(self, world: Filled, values: Values) -> None:
        s = world.state
        s.seq_ahead = s.num_steps = values["seq_ahead"]
        s.last_seq[0] = values["last_seq"] if values["place"] <= HELD else 0
        for d in range(s.num_steps):
            _give_step(world, d, 2, ())
        if values["place"] == HELD:
            _hold(world, 0, [_BLOCK])
            if values["writer"]:
                _give_step(world, int(values["writer"]) - 1, 0, [_BLOCK])
        s.status[:] = [Status.RUNNING] * 3
        s.num_tokens[0] = 1
        passed = values["ahead"] - values["left"] if "left" in values else 0
        for i in range(values["ahead"]):
            _defer(world, 1 if i < passed else int(values["ahead_fence"]), _OTHERS[i])
        if values["place"] == DEFERRED:
            _defer(world, int(values["fence"]), _BLOCK)
        _hold(world, 1, [_OTHERS[4]])
        _hold(world, 2, [_OTHERS[5]])
        _queue_free(world, (), world.c.num_blocks)

    def run(self, world: Filled, operation: str, values: Values) -> int:
        if operation == "schedule":
            _let_run(world, 0 if values["mine"] else 2)
            _schedule(world)
            return _ELSE
        if operation == "free_other":
            world.state.last_seq[1] = values["other_last"]
        world.begin(_ELSE)
        if operation == "free":
            world.call("connector.free_request_blocks", 0)
        elif operation == "free_other":
            world.call("connector.free_request_blocks", 1)
        elif operation == "give_back":
            world.call("kv_cache.free", 0)
        elif operation == "take":
            world.call("kv_cache.allocate_slots", 0, 1, 0, 0, 0, False, False, 0, False)
        else:
            world.call("connector.step_processed")
        return _ELSE


class BlocksWorld(World):
    """Two requests and block 1; a request that needs a block besides it takes another."""

    def __init__(self) -> None:
        self.relation = blocks(requests=2)
        self.operations = self.relation.operations

    def fits(self, operation: Operation) -> Term:
        field = self.named(operation)
        seq = field["seq_ahead"]
        name, _, request = operation.name.partition(" R")
        parts = [seq <= (2 if name == "dispatch" else 3), field["deferred"] <= 2]
        ranks = [field[f"{what}{r}"] for what in ("last", "wrote") for r in range(2)]
        for rank in range(1, 4):
            parts.append(z3.Implies(rank <= seq, z3.Or(*(ranked == rank for ranked in ranks))))
        for r in range(2):
            parts.append(z3.Implies(field[f"live{r}"] == NONE, field[f"last{r}"] == 0))
            parts.append(z3.Implies(field["deferred"] == 0, field["fence"] == 0))
            for what in ("load", "sending"):
                if name == "report" and request != str(r):
                    parts.append(field[f"{what}{r}"] != (LANDED if what == "load" else SENT))
        if name in ("allocate", "load", "wake", "publish", "finish"):
            publishes = field["publishes"]
            parts.append(z3.Implies(publishes, z3.Not(field["published"])))
            if name == "load":
                parts.append(z3.Not(publishes))
        if name == "allocate":
            parts += [
                z3.Implies(field["publishes"], field[f"table{request}"] <= 1),
                z3.Implies(field["hit"], z3.Not(field["publishes"])),
            ]
        if name == "wake":
            parts.append(z3.Implies(field["frees"], field[f"table{request}"] > 0))
        if name == "add":
            parts.append(field[f"wrote{request}"] == 0)
        if name == "dispatch":
            inside = z3.Or(field["in_step0"], field["in_step1"])
            parts.append(field["has_tokens"] == inside)
        if name == "withdraw":
            parts.append(z3.Implies(field["withdraws"], _first_runs_on_it(field)))
        if name == "reset":
            parts.append(field["done"] == (field["ref_cnt"] == 0))
        return every(parts)

    def scope(self, values: Values) -> Scope:
        sends = [bool(values[f"sending{r}"]) or bool(values.get("sends")) for r in range(2)]
        return _deep_scope(2, consumer=bool(values["defer_block_free"]), delay_free=sends)

    def tie(self, compiled: Compiled) -> Tie:
        return BlocksTie(compiled)

    def fill(self, world: Filled, values: Values) -> None:
        s, c = world.state, world.c
        s.seq_ahead = s.num_steps = values["seq_ahead"]
        for r in range(2):
            self._fill_request(world, r, values)
        drained = values.get("drained", 0)
        for i in range(values["deferred"]):
            _defer(world, 1 if i < drained else int(values["fence"]), _BLOCK)
        if values["published"]:
            s.block_hash[_BLOCK], s.hash_rank[_BLOCK] = c.prefix_hash[0, c.block_size], 1
        first = [_BLOCK] if values.get("taken") else [*_OTHERS]
        _queue_free(world, first, c.num_blocks)

    def _fill_request(self, world: Filled, r: int, values: Values) -> None:
        s = world.state
        live, waits = values[f"live{r}"], values[f"waits{r}"]
        known = {NONE: Status.ABSENT, ALIVE: Status.RUNNING, FINISHED: Status.FINISHED_STOPPED}
        s.status[r] = Status.WAITING_FOR_REMOTE_KVS if waits else known[live]
        s.num_tokens[r] = 4 if live else 0
        s.last_seq[r], s.load_done[r] = values[f"last{r}"], int(values[f"done{r}"])
        if values[f"table{r}"]:
            _hold(world, r, [_BLOCK])
        for rank in range(1, values["seq_ahead"] + 1):
            if rank == values[f"wrote{r}"]:
                _give_step(world, rank - 1, r, [_BLOCK])
            elif rank == values[f"last{r}"]:
                _give_step(world, rank - 1, r, ())
        load = values[f"load{r}"]
        if load:
            s.load[r] = Load.PENDING if load == PENDING else Load.LANDED
            s.load_tokens[r] = 2
        s.sending[r] = values[f"sending{r}"]
        if values[f"moving{r}"] or values[f"sent_from{r}"]:
            s.transfer_table[r, 0] = _BLOCK

    def run(self, world: Filled, operation: str, values: Values) -> int:
        name, _, request = operation.partition(" R")
        return int(getattr(self, f"_{name}")(world, int(request or 0), values) or _ELSE)

    def _add(self, world: Filled, r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.model.call("scheduler.add_request", world.state, world.c, r)

    def _allocate(self, world: Filled, r: int, values: Values) -> None:
        """Two tokens fill a block, which is published; one does not."""
        world.begin(_ELSE)
        hits = int(values["hit"])
        world.report.hits[0] = _BLOCK
        tokens = 2 if values["publishes"] else 1
        world.call("kv_cache.allocate_slots", r, tokens, hits, 0, 0, False, False, 0, False)

    def _load(self, world: Filled, r: int, values: Values) -> None:
        s = world.state
        s.status[r] = Status.WAITING
        s.waiting[0], s.num_waiting = r + 1, 1
        world.begin(_ELSE)
        hits = int(values["hit"])
        world.report.hits[0] = _BLOCK
        world.call("kv_cache.allocate_slots", r, 0, hits, 0, 2, True, False, 0, False)
        world.call("connector.update_state_after_alloc", r, 2 * hits, 2, True)
        s.status[r] = Status.WAITING_FOR_REMOTE_KVS
        world.call("scheduler._skip", r)

    def _wake(self, world: Filled, r: int, values: Values) -> None:
        s = world.state
        s.load_failed[r] = int(values["frees"])
        s.num_computed[r] = 0 if values["frees"] else 2 if values["publishes"] else 1
        world.begin(_ELSE)
        world.call("connector.handle_blocked_waiting_request", r)

    def _publish(self, world: Filled, r: int, values: Values) -> None:
        world.begin(_ELSE)
        world.call("kv_cache.cache_blocks", r, 2 if values["publishes"] else 1)

    def _preempt(self, world: Filled, r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.call("scheduler.preempt_request", r, False)

    def _abort(self, world: Filled, r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.call("scheduler.finish_request", r, Status.FINISHED_ABORTED)

    def _finish(self, world: Filled, r: int, values: Values) -> None:
        s = world.state
        if values["sends"]:
            s.num_computed[r] = 1
            if not values[f"table{r}"]:
                _hold(world, r, [_OTHERS[8]])
                _queue_free(world, (), world.c.num_blocks)
        world.c.delay_free[r] = int(values["sends"])
        world.begin(_ELSE)
        s.status[r] = Status.FINISHED_STOPPED
        world.call("kv_cache.cache_blocks", r, 2 if values["publishes"] else 1)
        world.call("scheduler.free_request", r, False)

    def _land(self, world: Filled, r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.model.call("device.transfer_lands", world.state, world.c, r, -1)

    def _sent(self, world: Filled, r: int, _values: Values) -> int:
        action = int(Kind.SENT) + r * engine.KINDS
        world.begin(action)
        world.model.apply(world.state, world.report, action)
        return action

    def _report(self, world: Filled, _r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.call("connector.update_from_kv_xfer_finished")

    def _dispatch(self, world: Filled, _r: int, values: Values) -> None:
        for r in range(2):
            if values[f"in_step{r}"]:
                _let_run(world, r)
        _schedule(world)

    def _process(self, world: Filled, _r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.call("connector.step_processed")

    def _withdraw(self, world: Filled, _r: int, values: Values) -> None:
        s = world.state
        if values["withdraws"]:
            s.running[0], s.num_running, s.num_computed[0] = 1, 1, 2
        world.begin(_ELSE)
        world.report.invalid[_BLOCK] = int(values["withdraws"])
        for d in range(s.num_steps):
            s.step_tokens[d, 0] = 0
        world.call("connector.handle_invalid_blocks", 0)

    def _reset(self, world: Filled, _r: int, _values: Values) -> None:
        world.begin(_ELSE)
        world.call("block_pool.reset_prefix_cache")


def _first_runs_on_it(field: dict[str, Term]) -> Term:
    """Request 0 runs, and the block is in its table."""
    return every((field["live0"] == ALIVE, z3.Not(field["waits0"]), field["table0"] == 1))


class CountersWorld(World):
    """One request, blocks of one token, a pool in which everything fits."""

    open_fields = frozenset({"published"})

    def __init__(self) -> None:
        self.relation = counters()
        self.operations = self.relation.operations

    def fits(self, operation: Operation) -> Term:
        field = {
            name_of(f): f
            for f in (*self.relation.fields, *self.relation.parameters, *operation.inputs)
        }
        life, computed, tokens = field["life"], field["num_computed"], field["num_tokens"]
        limit = field["max_model_len"]
        k, is_async = field["num_spec_tokens"], field["async_scheduling"]
        parts = [
            limit <= 10,
            field["max_tokens"] <= 10,
            k <= 3,
            *(field[f"tokens{d}"] <= 10 for d in range(3)),
            field["published"] <= z3.If(computed > 0, computed, 0),
            z3.Implies(
                z3.Not(z3.Or(life == lives.RUNNING, life == lives.LOADING)),
                field["published"] <= computed,
            ),
            z3.Implies(life == lives.FINISHED, computed > 0),
            # A finished request's counters are of no account, and as large as they please.
            *(term <= 16 for term in field.values() if not is_flag(term)),
            field["published"] <= tokens,
        ]
        name = operation.name
        if name == "admit":
            hit, padded = field["hit"], field["padded"]
            alone = every((k > 0, tokens - hit == 1, z3.Not(padded)))
            parts += [
                z3.Implies(alone, z3.Or(hit == 0, hit + k + 2 > limit)),
                z3.Implies(padded, hit > 0),
                z3.Implies(computed == 0, field["adopted"] == hit),
            ]
        elif name == "load":
            room = every((field["tokens2"] == 0, z3.Or(is_async, k == 0, field["tokens0"] == 0)))
            parts += [field["adopted"] == 0, field["published"] == 0, room]
        elif name == "load_fails":
            parts.append(field["tokens0"] == 0)
        elif name == "wake":
            parts.append(z3.Implies(computed == 0, field["published_after"] == 0))
        elif name == "abort":
            parts.append(field["held"] == (life == lives.LOADING))
        elif name == "output":
            parts += self._outputs(field)
        return every((*parts, z3.Or(is_async, k == 0, field["tokens1"] == 0)))

    def _outputs(self, field: dict[str, Term]) -> list[Term]:
        """Only what is used has outcomes, and a stop where a limit ends the request is none."""
        life, accepted, stop_at = field["life"], field["accepted"], field["stop_at"]
        limit = z3.If(
            field["max_model_len"] < field["prompt_len"] + field["max_tokens"],
            field["max_model_len"],
            field["prompt_len"] + field["max_tokens"],
        )
        alive = every((life >= lives.WAITING, life <= lives.LOADING))
        used = every(
            (alive, field["samples0"], z3.Not(every((field["stale0"], field["drop_stale"]))))
        )
        return [
            z3.Implies(z3.Not(used), every((accepted == 0, stop_at == 0))),
            stop_at <= accepted + 1,
            stop_at <= limit - field["num_tokens"] - 1,
            z3.Implies(
                field["held"],
                every((life == lives.RUNNING, field["num_computed"] > field["drafts0"])),
            ),
            # A finished request without blocks is not held, and one that loads is not waiting.
            z3.Implies(used, life != lives.LOADING),
        ]

    def scope(self, values: Values) -> Scope:
        speculates = values["num_spec_tokens"] > 0
        is_async = bool(values["async_scheduling"])
        tokens = max(int(values.get("scheduled", 1)), 1)
        return Scope(
            name="made-by-z3",
            requests=(
                RequestSpec(
                    (1,) * int(values["prompt_len"]),
                    max_tokens=int(values["max_tokens"]),
                    may_stop=True,
                    delay_free=bool(values.get("held")) or values["life"] == lives.FINISHED,
                    external=External(int(values["hit"]))
                    if "kept" not in values and "hit" in values and "scheduled" not in values
                    else None,
                ),
            ),
            num_blocks=32,
            block_size=1,
            max_num_seqs=1,
            max_num_batched_tokens=64,
            max_num_scheduled_tokens=tokens,
            max_model_len=int(values["max_model_len"]),
            num_speculative_tokens=int(values["num_spec_tokens"]),
            spec_method="draft_model" if is_async else "ngram",
            async_scheduling=is_async,
            v2_model_runner=is_async,
            pipeline_parallel_size=2 if is_async else 1 if speculates else 3,
            kv_role="kv_producer",
        )

    def tie(self, compiled: Compiled) -> Tie:
        return CountersTie(compiled)

    def fill(self, world: Filled, values: Values) -> None:
        s, c = world.state, world.c
        life = values["life"]
        if life != lives.ABSENT:
            self._fill_request(world, values)
        if "hit" in values and life == lives.WAITING and values["num_computed"] == 0:
            for i in range(values["hit"] if "scheduled" in values else 0):
                s.block_hash[1 + i], s.hash_rank[1 + i] = c.prefix_hash[0, i + 1], 1
        _queue_free(world, [*range(20, c.num_blocks)], c.num_blocks)

    def _fill_request(self, world: Filled, values: Values) -> None:
        s, c = world.state, world.c
        life = values["life"]
        computed = int(values["num_computed"])
        s.status[0] = {
            lives.WAITING: Status.WAITING,
            lives.RUNNING: Status.RUNNING,
            lives.LOADING: Status.WAITING_FOR_REMOTE_KVS,
            lives.FINISHED: Status.FINISHED_STOPPED,
        }[life]
        if life == lives.RUNNING:
            s.running[0], s.num_running = 1, 1
        elif life == lives.LOADING or (life == lives.WAITING and computed > 0):
            s.kv_holding[0], s.num_kv_holding = 1, 1
        elif life == lives.WAITING:
            s.waiting[0], s.num_waiting = 1, 1
        s.sending[0] = int(life == lives.FINISHED)
        names = ("num_tokens", "num_computed", "placeholders", "in_flight", "stale", "num_drafts")
        for name in (*names, "drop_stale", "prefill_chunk", "drafting"):
            getattr(s, name)[0] = int(values[name])
        s.num_published[0] = values["published"]
        _hold(world, 0, range(1, min(computed, c.table_len) + 1))
        for i in range(values["published"]):
            s.block_hash[1 + i], s.hash_rank[1 + i] = c.prefix_hash[0, i + 1], 1
        for d in range(c.depth):
            if values[f"tokens{d}"]:
                _give_step(world, d, 0, s.block_table.row(0))
                s.num_steps = d + 1
                s.step_tokens[d, 0] = values[f"tokens{d}"]
                s.step_drafts[d, 0] = s.step_acceptable[d, 0] = values[f"drafts{d}"]
                s.step_samples[d, 0] = int(values[f"samples{d}"])
                s.step_stale[d, 0] = int(values[f"stale{d}"])

    def run(self, world: Filled, operation: str, values: Values) -> int:
        s = world.state
        action = _ELSE
        if operation == "output":
            action = self._output_action(world, values)
            s.phase = Phase.OUTPUT
        elif operation == "drafts":
            action = int(Kind.DRAFTS) + int(values["proposed"]) * engine.KINDS
        elif operation == "report":
            s.sending[0] = 2
        elif operation == "wake":
            s.load_done[0] = 1
            s.load_failed[0] = int(values["num_computed"] == 0)
        world.begin(action)
        if operation in ("output", "drafts"):
            world.model.apply(s, world.report, action)
        elif operation in ("admit", "serve", "load"):
            world.call("scheduler.schedule")
        elif operation == "add":
            world.model.call("scheduler.add_request", s, world.c, 0)
        elif operation == "preempt":
            world.call("scheduler.preempt_request", 0, bool(values["drops"]))
        elif operation == "abort":
            world.call("scheduler.finish_request", 0, Status.FINISHED_ABORTED)
        elif operation == "report":
            world.call("connector.update_from_kv_xfer_finished")
        elif operation == "wake":
            world.call("connector.handle_blocked_waiting_request", 0)
        else:
            if values["kept"] < values["num_computed"]:
                world.report.invalid[1 + values["kept"]] = 1
            world.call("connector.handle_invalid_blocks", 0)
        return action

    def _output_action(self, world: Filled, values: Values) -> int:
        """The code of the output in which the device answers what Z3 chose."""
        wanted = (values["accepted"], values["stop_at"])
        e = world.report
        for choice in range(world.model.call("engine.num_output_choices", world.state, world.c)):
            world.call("engine.decode_output", choice)
            if (e.accepted[0], e.stop_at[0]) == wanted:
                return int(Kind.OUTPUT) + choice * engine.KINDS
        raise ValueError(f"no output accepts {wanted[0]} drafts and stops at {wanted[1]}")


WORLDS: tuple[type[World], ...] = (BlocksWorld, BudgetWorld, CountersWorld, FenceWorld)
"""A world for each relation."""


def make_all() -> Iterator[Made]:
    """Every operation of every world, run from the states that Z3 makes for it."""
    for build in WORLDS:
        world = build()
        for operation in world.operations:
            yield from made(world, operation)
