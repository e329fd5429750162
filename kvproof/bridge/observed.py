"""Random runs of the real classes alone: what they show, written into a record of the model.

After every action a state record is filled from the observation of the real scheduler, and its
part of the ghost device from the real SchedulerOutput: block tables as of each step, tokens,
starts, loads. What may follow is read off that record, and the kernels of the invariants look at
it; the model's scheduler takes no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.model import connector, device, engine, scheduler
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.model.scope import STOP_TOKEN, Scope
from kvproof.model.state import Branch, Load, Phase, Status
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.spec import masks, step_invariants
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id
from kvproof.spec.verdicts import BROKEN
from kvproof.trace.actions import Action
from kvproof.trace.codes import name_action
from kvproof.trace.trace import Moment, Trace, TraceError, find_code, names_of, replay
from kvproof.vllm import protocol
from kvproof.walks.worlds import Tally, Violation, draw_code, settle

Prefix = tuple[str, tuple[int, ...]]

_SEEN_IN_STEPS: dict[Id, Callable[..., int]] = {
    one.id: getattr(step_invariants, one.kernel_name)
    for one in INVARIANTS
    if one.kind == "step" and one.observed
}
"""Step invariants that need no more than two observations and the step's output."""

_REQUEST_FIELDS = (
    "num_computed",
    "num_tokens",
    "placeholders",
    "in_flight",
    "stale",
    "drop_stale",
    "prefill_chunk",
    "was_preempted",
    "last_seq",
    "decode_wait",
    "num_published",
)
"""Fields of the record for the numbers of protocol.REQUEST, num_output_tokens left out."""

_OUTPUT_TOKENS = protocol.REQUEST.index("num_output_tokens") - 2

_QUEUES = {
    "running": "num_running",
    "waiting": "num_waiting",
    "kv_holding": "num_kv_holding",
    "free_queue": "num_free",
}
_FLAGS = {
    "load_done": "recved",
    "load_failed": "failed",
    "finished_note": "finished",
    "preempted_note": "reset_preempted",
    "inflight_prefill": "inflight_prefills",
}
_OBSERVED = (
    *_REQUEST_FIELDS,
    "num_drafts",
    *_QUEUES,
    *_FLAGS,
    *("num_blocks", "block_table", "ref_cnt", "block_hash", "hash_rank", "load_used", "asks_left"),
    *("deferred_fence", "deferred_len", "deferred_blocks"),
)
"""Fields with dimensions that an observation has; the others are the ghost device's and ours."""

NO_LEAK = "NoLeak"
"""No container keeps a request that is gone."""

NO_OLD_DRAFTS = "NoOldDrafts"
"""A request that is preempted keeps no drafts: what they follow is computed anew."""

FAILURES_AWAITED = "FailuresAwaited"
"""A flag of a failed load names a request that still waits for that load."""

_ENDS = {"stop": Status.FINISHED_STOPPED, "length": Status.FINISHED_LENGTH_CAPPED}


def fill(
    compiled: Compiled,
    state: Record,
    seen: list[Any],
    codes: Mapping[Prefix, int],
) -> None:
    """Write an observation into a record; the ghost device's fields stay as they are.

    `codes` has the model's number of each prefix; KeyError where a published one is nobody's. A
    request that is not known any more is gone.
    """
    values = dict(zip(protocol.OBSERVATION, seen, strict=True))
    for name in _OBSERVED:
        getattr(state, name)[...] = 0
    gone = state.status != Status.ABSENT
    state.status[gone] = int(Status.GONE)
    for r, status, *numbers, blocks, _tokens, _agree, drafts in values["requests"]:
        state.num_drafts[r] = len(drafts)
        del numbers[_OUTPUT_TOKENS]
        state.status[r] = int(Status[status])
        for name, number in zip(_REQUEST_FIELDS, numbers, strict=True):
            getattr(state, name)[r] = number
        state.num_blocks[r] = len(blocks)
        held = blocks[: state.block_table.shape[1]]
        state.block_table[r, : len(held)] = held
    queues = {**values, "kv_holding": values["kv_holding_waiting"], "free_queue": values["free"]}
    for name, length in _QUEUES.items():
        queue, first = queues[name], int(name != "free_queue")
        setattr(state, length, len(queue))
        getattr(state, name)[: len(queue)] = [number + first for number in queue]
    for name, listed in _FLAGS.items():
        getattr(state, name)[values[listed]] = 1
    state.ref_cnt[:] = values["ref_cnt"]
    for prefix, blocks in values["cached"]:
        state.block_hash[blocks] = codes[prefix[0], tuple(prefix[1:])]
        state.hash_rank[blocks] = range(1, len(blocks) + 1)
    state.num_deferred = len(values["deferred"])
    for q, (fence, blocks) in enumerate(values["deferred"]):
        state.deferred_fence[q], state.deferred_len[q] = fence, len(blocks)
        state.deferred_blocks[q, : len(blocks)] = blocks
    for r, used, asks_left in values["connector"]:
        state.load_used[r], state.asks_left[r] = used, asks_left
    state.seq_ahead, state.pause = values["seq_ahead"], values["pause"]


def _wrong(action: Action, result: Any, seen: list[Any]) -> tuple[tuple[str, ...], str] | None:
    """What the driver itself finds wrong: the invariants and where they fall."""
    leaks = seen[protocol.OBSERVATION.index("leaks")]
    rows = []
    if action.kind == Kind.SCHEDULE:
        rows = [
            f"{_of(r)}{field}: sent {a}, meant {b}" for r, field, a, b in result["disagreements"]
        ]
    elif action.kind == Kind.OUTPUT:
        rows = [f"{_of(r)}told {told[-1]}" for r, told in result.items() if r < 0 or told[-1]]
    if rows:
        return (Id.WorkerAgrees.name,), "; ".join(rows)
    if leaks:
        return (NO_LEAK,), "; ".join(f"{where} keeps R{r}" for r, where in leaks)
    return None


def _kept(state: Record) -> tuple[tuple[str, ...], str] | None:
    """What a state keeps that was to be forgotten: the facts that fall and for whom."""
    drafted = np.flatnonzero((state.status == Status.PREEMPTED) & (state.num_drafts > 0))
    failed = state.load_failed.astype(bool) & (state.status != Status.WAITING_FOR_REMOTE_KVS)
    for fact, requests in ((NO_OLD_DRAFTS, drafted), (FAILURES_AWAITED, np.flatnonzero(failed))):
        if requests.size:
            return (fact,), ", ".join(f"R{r}" for r in requests)
    return None


def _of(r: int | None) -> str:
    return "" if r is None or r < 0 else f"R{r} "


class Scheduling(Protocol):
    """What is run: takes an action, as the driver's operation and by name, and answers for it."""

    @property
    def release(self) -> str:
        """Of vLLM, as a trace says what it was recorded on."""
        ...

    def start(self, scope: Scope) -> None:
        """Begin anew."""
        ...

    def call(self, operation: list[Any], action: Action) -> list[Any]:
        """The result and the observation, in the form of the protocol."""
        ...


class RealClasses:
    """The real classes, behind the driver."""

    def __init__(self, client: Client, guards_out: tuple[str, ...] = ()) -> None:
        self._client = client
        self._guards_out = guards_out

    @property
    def release(self) -> str:
        """The release that the driver has."""
        return self._client.version

    def start(self, scope: Scope) -> None:
        """A fresh engine, without the guards of these rules."""
        self._client.run([observation.new_engine(scope, self._guards_out)])

    def call(self, operation: list[Any], action: Action) -> list[Any]:
        """One operation, there and back."""
        answer: list[Any] = self._client.run([operation])[0]
        return answer


class ObservedWorld:
    """Runs of something that is only observed, with the invariants that can be read off it."""

    def __init__(self, scope: Scope, tally: Tally, real: Scheduling) -> None:
        self.compiled: Compiled = compile_scope(scope)
        self.tally = tally
        self.over = False
        self.state: Record = self.compiled.initial()
        self._real = real
        self.report = self.compiled.new_report()
        self._workspace = masks.new_workspace(self.compiled.state.sizes)
        self._actions: list[Action] = []
        self._codes = {prefix: code for code, prefix in enumerate(self.compiled.prefixes)}
        real.start(scope)
        tally.runs += 1

    def burst(self, steps: int, seed: int, *, guided: bool) -> None:
        """Take at most so many enabled actions; there is nothing here that could be guided."""
        choose = RandomChooser(seed)
        for _ in range(steps):
            code = draw_code(self.compiled, self.state, choose)
            if code is None:
                self.over = True
            if self.over or code is None:
                return
            self.take(code)

    def take(self, code: int) -> None:
        """Take one enabled action and look at what it did."""
        broken, what = self.look(code)
        if broken:
            self._ended(broken, what)

    def look(self, code: int) -> tuple[tuple[str, ...], str]:
        """Take one enabled action; what it broke, and how that shows."""
        c, e, before = self.compiled.c, self.report, self.state
        action = name_action(self.compiled, before, code)
        self._actions.append(action)
        self.tally.kinds[code % engine.KINDS] += 1
        e.clear()
        state = before.copy()
        self._prepare(state, code)
        operation = observation.operation(self.compiled, before, action, e)
        result, seen = self._real.call(operation, action)
        if seen is None:
            return (Id.NoAssertion.name,), f"{action} raised {result}"
        wrong = _wrong(action, result, seen)
        if wrong:
            return wrong
        try:
            fill(self.compiled, state, seen, self._codes)
        except KeyError as error:
            return (Id.PublishedSound.name,), f"nobody's prefix is published: {error}"
        if action.kind == Kind.SCHEDULE:
            self._scheduled(before, state, result)
        elif action.kind == Kind.OUTPUT:
            self._taken_in(before, state, result)
        elif action.kind == Kind.DRAFTS:
            state.drafting[:] = 0
            state.phase = int(Phase.TOP)
        elif action.kind == Kind.RESET_PREFIX_CACHE:
            self._reset(before, state, result)
        device.forget_unreadable(state, c)
        self.state = state
        self._measure(state)
        wrong = _kept(state)
        if wrong:
            return wrong
        broken = int(masks.check_state(state, c, self._workspace))
        for identity, holds in _SEEN_IN_STEPS.items():
            if holds(before, state, c, e, code % engine.KINDS) == BROKEN:
                broken |= 1 << identity
        return names_of(broken), ""

    def _prepare(self, state: Record, code: int) -> None:
        """The device's part of the action, before the scheduler hears of it."""
        c, e = self.compiled.c, self.report
        kind, argument = Kind(code % engine.KINDS), code // engine.KINDS
        if kind == Kind.OUTPUT:
            engine.decode_output(state, c, e, argument)
            device.execute(state, c, e)
        elif kind == Kind.TRANSFER_LANDS:
            requests = len(self.compiled.scope.requests)
            device.transfer_lands(state, c, argument % requests, argument // requests - 1)
        elif kind == Kind.SENT:
            state.sending[argument] = 2

    def _reset(self, before: Record, state: Record, result: Any) -> None:
        self.report.reset_ok = -1 if result == "raised" else int(result)
        if self._actions[-1].running:
            running = (before.running[: before.num_running] - 1).tolist()
            self._preempted(state, running, Branch.reset_preempted)

    def _preempted(self, state: Record, victims: list[int], how: Branch) -> None:
        """Steps in flight of a victim are from before its preemption."""
        self.tally.branches[how] += len(victims)
        for r in victims:
            for d in range(state.num_steps):
                state.step_stale[d, r] += int(state.step_tokens[d, r] > 0)

    def _scheduled(self, before: Record, state: Record, result: dict[str, Any]) -> None:
        """Put the step of a SchedulerOutput in flight."""
        c, e, scope = self.compiled.c, self.report, self.compiled.scope
        victims = [r for r in result["preempted"] if not before.preempted_note[r]]
        self._preempted(state, victims, Branch.preempted_other)
        e.num_victims = len(victims)
        for k, r in enumerate(victims):
            e.victims[k] = r + 1
        e.victim_misranked = int(self._spared(before, state, victims))
        # Whose blocks cannot be returned at once are freed later.
        e.victim_in_vain = int(bool(victims) and state.num_deferred > before.num_deferred)
        for r, start, tokens, is_async, blocks in result["loads"]:
            self._load(state, r, start, tokens, is_async, blocks)
        evicted = (before.block_hash != 0) & (state.block_hash != before.block_hash)
        self.tally.branches[Branch.evicted_published] += int(evicted.sum())
        d = state.num_steps
        state.num_steps = d + 1
        state.step_len[d] = len(result["scheduled"])
        e.num_scheduled = len(result["scheduled"])
        new = [r for r, *_ in result["sent_new"]]
        admitted = dict.fromkeys(new, 1) | dict.fromkeys(result["resumed"], 2)
        for k, (r, tokens) in enumerate(result["scheduled"]):
            drafts = len(result["drafts"].get(r, ()))
            e.order[k] = state.step_order[d, k] = r + 1
            e.scheduled[r] = state.step_tokens[d, r] = tokens
            e.start[r] = state.step_start[d, r] = result["start"][r]
            e.drafts[r] = state.step_drafts[d, r] = drafts
            e.admitted[r] = admitted.get(r, 0)
            # The drafts of a request that has just come in are padding: nothing proposed them.
            state.step_acceptable[d, r] = 0 if r in admitted else drafts
            state.step_samples[d, r] = result["samples"][r]
            state.step_known[d, r] = state.num_tokens[r]
            state.step_load_start[d, r] = e.sync_load_start[r]
            state.step_load_tokens[d, r] = e.sync_load[r]
            table = result["tables"][r][: state.step_table.shape[2]]
            state.step_table[d, r, : len(table)] = table
        self._hits(before, state)
        spent = int(sum(tokens for _, tokens in result["scheduled"]))
        e.token_budget = scope.token_budget - spent
        e.input_budget = scope.max_num_batched_tokens - spent - scope.draft_slots * e.num_scheduled
        goes_round = state.num_steps < scope.depth and (
            e.num_scheduled > 0 or bool(scheduler.has_requests(state, c))
        )
        state.phase = int(Phase.TOP if goes_round else Phase.OUTPUT)

    def _spared(self, before: Record, state: Record, victims: list[int]) -> bool:
        """Whether somebody goes on running whom the policy ranks behind a victim."""
        c = self.compiled.c
        running = (before.running[: before.num_running] - 1).tolist()
        rank = {
            r: (c.priority[r], c.arrival[r]) if c.priority_policy else (place,)
            for place, r in enumerate(running)
        }
        spared = [rank[r] for r in running if state.status[r] == Status.RUNNING]
        return any(rank[v] < last for v in victims if v in rank for last in spared)

    def _hits(self, before: Record, state: Record) -> None:
        """What those who came in have adopted, and what of their prefixes was published.

        A block that was published before and after the step was published all the while; what
        came or went in the step may have been there for an admission, or not.
        """
        c, e = self.compiled.c, self.report
        stayed = before.block_hash[before.block_hash == state.block_hash]
        ever = np.union1d(before.block_hash, state.block_hash)
        for r in np.flatnonzero((e.scheduled > 0) | (e.new_load > 0)).tolist():
            looked_up = before.status[r] in (Status.WAITING, Status.PREEMPTED)
            if not looked_up or before.num_computed[r] or before.num_blocks[r]:
                continue
            if e.new_load[r]:
                local = state.load_start[r]
            else:
                local = e.sync_load_start[r] if e.sync_load[r] else e.start[r]
            e.adopted[r] = local // c.block_size
            least, most = self._published(r, stayed), self._published(r, ever)
            e.adoptable[r] = min(max(e.adopted[r], least), most)

    def _published(self, r: int, hashes: NDArray[np.int32]) -> int:
        """Blocks that a request could adopt if these hashes were published."""
        c, size = self.compiled.c, self.compiled.scope.block_size
        ends = range(size, int(self.state.num_tokens[r]), size) if c.prefix_caching else ()
        found = [int(c.prefix[r, end]) in hashes for end in ends]
        run = found.index(False) if False in found else len(found)
        return run - 1 if run and c.drop_last_hit else run

    def _load(
        self, state: Record, r: int, start: int, tokens: int, is_async: bool, blocks: list[int]
    ) -> None:
        """A load begins: beside the steps, or with this one."""
        e = self.report
        if not is_async:
            e.sync_load_start[r], e.sync_load[r] = start, tokens
            return
        e.new_load[r] = 1
        state.load[r] = int(Load.PENDING)
        state.load_start[r], state.load_tokens[r] = start, tokens
        state.load_wait[r] = state.num_steps
        state.transfer_table[r, : len(blocks)] = blocks

    def _taken_in(self, before: Record, state: Record, result: dict[int, list[Any]]) -> None:
        """What the scheduler made of an output, and what became of the transfers it reported."""
        c, e, scope = self.compiled.c, self.report, self.compiled.scope
        for r, (tokens, reason, *_) in result.items():
            e.delivered[r] = len(tokens)
            if reason is not None:
                e.finished[r] = int(_ENDS.get(reason, Status.FINISHED_ERROR))
            if tokens and e.misread[r] and not state.misread:
                state.misread = r + 1
            if tokens and not self._is_next(before, r, tokens):
                state.wrong_output = r + 1
        for r in range(len(scope.requests)):
            if connector.is_load_reported(before, r) or before.sending[r] == 2:
                connector.forget_transfer(state, c, r)
            by_itself = state.status[r] in (Status.FINISHED_STOPPED, Status.FINISHED_LENGTH_CAPPED)
            if by_itself and not before.sending[r] and scope.requests[r].delay_free:
                state.sending[r] = 1
                state.sending_wait[r] = state.num_steps
                state.transfer_table[r] = state.block_table[r]
        drafts_follow = (
            scope.num_speculative_tokens > 0
            and not scope.async_scheduling
            and int(before.step_len[0]) > 0
        )
        if drafts_follow:
            for r in (before.step_order[0, : int(before.step_len[0])] - 1).tolist():
                if state.status[r] == Status.RUNNING and before.step_samples[0, r]:
                    state.drafting[r] = int(not state.prefill_chunk[r])
        device.pop_step(state, c)
        connector.step_returned(state, c)
        state.phase = int(Phase.DRAFTS if drafts_follow else Phase.TOP)

    def _is_next(self, before: Record, r: int, tokens: list[int]) -> bool:
        """Whether the delivered tokens are the request's next ones, up to a stop or a limit."""
        first = int(before.num_tokens[r])
        line = list(self.compiled.tokens[r][first : first + len(tokens)])
        if tokens[-1] == STOP_TOKEN:
            line[-1] = STOP_TOKEN
        request, scope = self.compiled.scope.requests[r], self.compiled.scope
        limit = min(len(request.prompt) + request.max_tokens, scope.max_model_len)
        alive = Status.ABSENT < before.status[r] <= Status.PREEMPTED
        return bool(alive) and tokens == line and first + len(tokens) <= limit

    def _measure(self, state: Record) -> None:
        peaks = (
            int((state.ref_cnt > 1).sum()),
            state.num_steps,
            int(state.stale.sum()),
        )
        np.maximum(self.tally.peaks, peaks, out=self.tally.peaks)

    def _ended(self, broken: tuple[str, ...], what: str) -> None:
        """The run is over: with an open finding, as the model shows too, or with news."""
        self.over = True
        of_states = tuple(name for name in broken if name in Id.__members__)
        trace = Trace(
            self.compiled.scope, tuple(self._actions), of_states, recorded_on=self._real.release
        )
        try:
            *_, last = replay(trace)
        except TraceError as error:
            raise Violation(trace, f"{' and '.join(broken)} broken; the model: {error}") from None
        if not set(broken) & set(last.broken):
            says = " and ".join(last.broken) or "nothing"
            raise Violation(trace, f"{' and '.join(broken)} broken, by the model {says}; {what}")
        settle(Trace(trace.scope, trace.actions, last.broken), self.tally)


def moments_on(real: Scheduling, trace: Trace) -> Iterator[Moment]:
    """A trace's actions on something that is observed, up to the first that breaks something.

    TraceError where an action is not enabled by what is seen there.
    """
    world = ObservedWorld(trace.scope, Tally(), real)
    for number, action in enumerate(trace.actions, 1):
        before = world.state
        code = find_code(world.compiled, before, action, number)
        broken, _how = world.look(code)
        yield Moment(number, action, code, before, world.state, world.report.copy(), broken)
        if broken:
            return
