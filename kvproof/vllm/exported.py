"""What an exported test is made of: vLLM's real scheduler, and what must hold of its objects.

kvproof/bridge/export.py copies the definitions that a trace needs into a file of its own, which
imports vLLM and nothing else. `SCOPE` is there a dictionary of plain values.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvproof.vllm.config import build_config

SCOPE: dict[str, Any] = {}


def name_of(r: int) -> str:
    """The id of request r; ids are in the order of their numbers."""
    return f"{r:02}"


class Loads(KVConnectorMetadata):  # type: ignore[misc]
    """The loads that start with a step."""

    def __init__(self, loads: list[tuple[str, int, int, bool]]) -> None:
        self.loads = loads


class ScriptedConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's side of a KV connector that has a given part of each request's prefix."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.asked: Counter[str] = Counter()
        self.put_off = 0
        self.used: set[str] = set()
        self.loads: list[tuple[str, int, int, bool]] = []

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens that it has beyond the local ones, and whether they load asynchronously."""
        external = SCOPE["requests"][int(request.request_id)]["external"]
        if external is None or request.request_id in self.used:
            return 0, False
        self.asked[request.request_id] += 1
        if self.asked[request.request_id] <= external["ask_later"]:
            self.put_off += 1
            return None, False
        tokens = min(external["tokens"], request.num_tokens) - num_computed_tokens
        return max(tokens, 0), tokens > 0 and external["is_async"]

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Note the load to start."""
        external = SCOPE["requests"][int(request.request_id)]["external"]
        if external is not None and external["once"]:
            self.used.add(request.request_id)
        if external is not None and num_external_tokens > 0:
            start = min(external["tokens"], request.num_tokens) - num_external_tokens
            load = (request.request_id, start, num_external_tokens, external["is_async"])
            self.loads.append(load)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Loads:
        """Hand the noted loads to the step."""
        loads, self.loads = self.loads, []
        return Loads(loads)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks are kept until they are sent."""
        ended_by_itself = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        delay_free = SCOPE["requests"][int(request.request_id)]["delay_free"]
        return delay_free and ended_by_itself and bool(block_ids), None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def wait_for_save(self) -> None:
        """Worker side: not driven."""
        raise NotImplementedError


def prefix_hash(value: tuple[Any, tuple[int, ...], Any]) -> bytes:
    """A block's hash that is its prefix itself, salt first, so that it can be read back."""
    parent, tokens, extra_keys = value
    if extra_keys:
        parent = extra_keys[0][1].encode() + parent[-1:]
    return bytes(parent) + bytes(tokens)


@dataclass
class Step:
    """A step in flight, by request number: what the device was told when it was scheduled."""

    output: SchedulerOutput
    tokens: dict[int, int]
    start: dict[int, int]
    drafts: dict[int, int]
    samples: set[int]
    known: dict[int, int]
    tables: dict[int, list[int]]
    preemptions: dict[int, int]
    loads: dict[int, range] = field(default_factory=dict)


class Device:
    """Which KV is really in which slot: the prefix that it was computed for, or None (garbage).

    Steps run first in, first out, each on the block tables that it was given; the writes of a step
    come before its reads, as in a layer. An asynchronous load writes when it lands.
    """

    def __init__(self) -> None:
        self.kv: dict[tuple[int, int], list[int] | None] = {}

    def write(self, table: list[int], r: int, position: int, right: bool) -> None:
        """Write the KV of one position of request r, or garbage."""
        place, slot = divmod(position, SCOPE["block_size"])
        if place < len(table):
            prefix = prefix_of_request(r, position + 1) if right else None
            self.kv[table[place], slot] = prefix

    def run(self, step: Step, accepted: dict[int, int], invalid: tuple[int, ...]) -> set[int]:
        """Run a step; returns the requests that read KV of another prefix."""
        for r, loaded in step.loads.items():
            for position in loaded:
                block = step.tables[r][position // SCOPE["block_size"]]
                self.write(step.tables[r], r, position, block not in invalid)
        for r in step.tokens:
            self._compute(step, r, accepted.get(r, 0), garbage=False)
        misread: set[int] = set()
        while found := {r for r in step.tokens if r not in misread and self._misreads(step, r)}:
            misread |= found
            for r in found:
                self._compute(step, r, accepted.get(r, 0), garbage=True)
        return misread

    def _compute(self, step: Step, r: int, accepted: int, garbage: bool) -> None:
        certain = step.tokens[r] - step.drafts.get(r, 0)
        for j in range(step.tokens[r]):
            position = step.start[r] + j
            right = position < step.known[r] if j < certain else j - certain < accepted
            self.write(step.tables[r], r, position, right and not garbage)

    def _misreads(self, step: Step, r: int) -> bool:
        certain = step.tokens[r] - step.drafts.get(r, 0)
        if step.start[r] + certain > step.known[r]:
            return True
        return any(
            self.read(step.tables[r], position) != prefix_of_request(r, position + 1)
            for position in range(step.start[r])
        )

    def read(self, table: list[int], position: int) -> list[int] | None:
        """The prefix whose KV is in the slot of a position; None for garbage."""
        place, slot = divmod(position, SCOPE["block_size"])
        return self.kv.get((table[place], slot)) if place < len(table) else None


def prefix_of_request(r: int, length: int) -> list[int]:
    """The first tokens of request r, its salt (as bytes) before them."""
    request = SCOPE["requests"][r]
    return [*(request["salt"] or "").encode(), 0, *request["tokens"][:length]]


class Engine:
    """The real scheduler in the hands of the engine's loop; what the model answers is given.

    After each call `facts` has what can be seen from outside, and the invariants are checked.
    """

    def __init__(self, *invariants: Any) -> None:
        kv_cache_utils.NONE_HASH = bytes(1)
        spec = FullAttentionSpec(
            block_size=SCOPE["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        scheduler_class = AsyncScheduler if SCOPE["async_scheduling"] else Scheduler
        self.scheduler = scheduler_class(
            vllm_config=build_config(SCOPE, __name__),
            kv_cache_config=KVCacheConfig(
                num_blocks=SCOPE["num_blocks"],
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=SimpleNamespace(
                validate_tokens=lambda request, tokens: tokens,
                accept_tokens=lambda request, tokens: True,
            ),
            block_size=SCOPE["block_size"],
            log_stats=False,
        )
        self.hasher = None
        if SCOPE["prefix_caching"] or SCOPE["kv_role"]:
            self.hasher = kv_cache_utils.get_request_block_hasher(SCOPE["block_size"], prefix_hash)
        self.invariants = invariants
        self.pool = self.scheduler.kv_cache_manager.block_pool
        (self.manager,) = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        self.device = Device()
        # Block tables as the workers have them, by request number.
        self.workers: dict[int, list[int]] = {}
        self.steps: list[Step] = []
        # Transfers until they are reported; those in `landed` are over on the device's side.
        self.loading: dict[int, tuple[range, list[int]]] = {}
        self.sending: dict[int, list[int]] = {}
        self.landed: set[int] = set()
        self.delivered: dict[int, list[int]] = {}
        self.misread: set[int] = set()
        self.facts: dict[str, Any] = {}
        self.expected: dict[str, Any] = {}
        self._end_call()

    def _end_call(self, **seen: Any) -> None:
        """Look at everything and check the invariants; what only this call did is in `seen`."""
        s = self.scheduler
        waiting = [*s.kv_holding_waiting, *s.waiting]
        tables = {r: self.table(r) for r in range(len(SCOPE["requests"]))}
        self.facts = {
            "running": [int(request.request_id) for request in s.running],
            "waiting": [int(request.request_id) for request in waiting],
            "tables": {r: table for r, table in tables.items() if table},
            "free": self.free_blocks(),
            "published": {b: prefix[prefix.index(0) + 1 :] for b, prefix in self.published()},
            "awake": s.has_requests(),
        }
        for name in ("scheduled", "drafts", "preempted", "delivered", "returned"):
            if seen.get(name):
                self.facts[name] = seen[name]
        call = SimpleNamespace(step=None, ended=(), fenced=False, stalled=False, reset=False)
        vars(call).update(seen)
        for invariant in self.invariants:
            invariant(self, call)

    def expect(self, **facts: Any) -> None:
        """Compare the facts; those of the state that are not named are as they were."""
        lasting = ("running", "waiting", "tables", "free", "published", "awake")
        self.expected = {name: self.expected[name] for name in lasting if name in self.expected}
        self.expected |= facts
        assert self.facts == self.expected

    def add(self, r: int) -> None:
        """Request r arrives."""
        request = SCOPE["requests"][r]
        self.scheduler.add_request(
            Request(
                request_id=name_of(r),
                prompt_token_ids=request["tokens"][: request["prompt"]],
                sampling_params=SamplingParams(
                    max_tokens=request["max_tokens"],
                    temperature=0.0,
                    stop_token_ids=[SCOPE["stop_token"]],
                    ignore_eos=True,
                ),
                pooling_params=None,
                arrival_time=request["arrival"],
                cache_salt=request["salt"],
                priority=request["priority"],
                block_hasher=self.hasher,
            )
        )
        self._end_call()

    def abort(self, r: int) -> None:
        """The client of request r goes away."""
        self.scheduler.finish_requests(name_of(r), RequestStatus.FINISHED_ABORTED)
        self._end_call()

    def schedule(self) -> None:
        """Plan a step and put it in flight."""
        s = self.scheduler
        waits = bool(s.waiting or s.kv_holding_waiting)
        idle = not (s.running or self.steps or self.loading or self.sending)
        fenced = len(s.deferred_frees)
        put_off = s.connector.put_off if s.connector else 0
        output = s.schedule()
        step = self._step(output)
        self.steps.append(step)
        busy = step.tokens or self.loading or (s.connector and s.connector.put_off > put_off)
        self._end_call(
            step=step,
            scheduled=step.tokens,
            drafts=step.drafts,
            preempted=sorted(map(int, output.preempted_req_ids or ())),
            fenced=len(s.deferred_frees) > fenced,
            stalled=waits and idle and not busy,
        )

    def _step(self, output: SchedulerOutput) -> Step:
        """What the device is told, and the loads that the connector is told to start."""
        s = self.scheduler
        self._tell_workers(output)
        tokens = {int(name): n for name, n in output.num_scheduled_tokens.items()}
        cached = output.scheduled_cached_reqs
        start = {int(new.req_id): new.num_computed_tokens for new in output.scheduled_new_reqs}
        start.update(zip(map(int, cached.req_ids), cached.num_computed_tokens, strict=True))
        requests = {r: s.requests[name_of(r)] for r in tokens}
        step = Step(
            output=output,
            tokens=tokens,
            start=start,
            drafts={
                int(name): len(drafts)
                for name, drafts in output.scheduled_spec_decode_tokens.items()
            },
            samples={r for r, request in requests.items() if not request.is_prefill_chunk},
            known={r: request.num_tokens for r, request in requests.items()},
            tables={r: self.workers.get(r, []) for r in tokens},
            preemptions={r: request.num_preemptions for r, request in requests.items()},
        )
        metadata = output.kv_connector_metadata
        for name, first, count, is_async in [] if metadata is None else metadata.loads:
            loaded = range(first, first + count)
            if is_async:
                self.loading[int(name)] = loaded, self.table(int(name))
            else:
                step.loads[int(name)] = loaded
        return step

    def _tell_workers(self, output: SchedulerOutput) -> None:
        """Bring the workers' tables forward by what a step sends; V2 forgets who is preempted."""
        preempted = output.preempted_req_ids or set()
        for name in output.finished_req_ids | (preempted if SCOPE["v2_model_runner"] else set()):
            self.workers.pop(int(name), None)
        for new in output.scheduled_new_reqs:
            (self.workers[int(new.req_id)],) = map(list, new.block_ids)
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            r = int(name)
            (new_blocks,) = blocks or ((),)
            if name in cached.resumed_req_ids and not SCOPE["v2_model_runner"]:
                self.workers[r] = list(new_blocks)
            elif r in self.workers:
                self.workers[r] = [*self.workers[r], *new_blocks]

    def output(
        self,
        sampled: dict[int, list[int]],
        loaded: tuple[int, ...] = (),
        sent: tuple[int, ...] = (),
        invalid: tuple[int, ...] = (),
    ) -> None:
        """The oldest step returns with its sampled tokens and what the connector reports."""
        s = self.scheduler
        step = self.steps.pop(0)
        accepted = {r: len(tokens) - 1 for r, tokens in sampled.items()}
        misread = self.device.run(step, accepted, invalid)
        self._move_back(step, accepted)
        for r in (*loaded, *sent):
            self.loading.pop(r, None)
            self.sending.pop(r, None)
            self.landed.discard(r)
        names = list(step.output.num_scheduled_tokens)
        outputs = s.update_from_output(
            step.output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[sampled.get(int(name), []) for name in names],
                kv_connector_output=KVConnectorOutput(
                    finished_recving=[name_of(r) for r in loaded],
                    finished_sending=[name_of(r) for r in sent],
                    invalid_block_ids=set(invalid),
                )
                if s.connector
                else None,
            ),
        )
        delivered = {}
        ended = []
        for outputs_of_client in outputs.values():
            for one in outputs_of_client.outputs:
                r = int(one.request_id)
                if one.new_token_ids:
                    delivered[r] = one.new_token_ids
                    self.delivered.setdefault(r, []).extend(one.new_token_ids)
                if str(one.finish_reason) in ("stop", "length"):
                    ended.append(r)
                    if self.table(r):
                        self.sending[r] = self.table(r)
        self.misread |= misread & delivered.keys()
        self._end_call(delivered=delivered, ended=ended)

    def _move_back(self, step: Step, accepted: dict[int, int]) -> None:
        """Later steps of a request start earlier by the drafts that this one rejected."""
        for r in step.samples & accepted.keys():
            drafts = step.drafts.get(r, 0)
            known = step.start[r] + step.tokens[r] - drafts + accepted[r] + 1
            for later in self.steps:
                if later.preemptions.get(r) == step.preemptions[r]:
                    later.start[r] -= drafts - accepted[r]
                    later.known[r] = max(later.known[r], known)

    def drafts(self, drafts: dict[int, list[int]]) -> None:
        """The drafter's proposals for the next step."""
        names = [name_of(r) for r in drafts]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, list(drafts.values())))
        self._end_call()

    def transfer_lands(self, r: int, without: int | None = None) -> None:
        """The load of request r has written its blocks, all but block number `without` of it."""
        positions, table = self.loading[r]
        for position in positions:
            right = position // SCOPE["block_size"] != without
            self.device.write(table, r, position, right)
        self.landed.add(r)
        self._end_call()

    def sent(self, r: int) -> None:
        """The blocks of request r have been read."""
        self.landed.add(r)
        self._end_call()

    def reset_prefix_cache(self, running: bool) -> None:
        """Forget all prefixes, preempting what runs if `running`."""
        done: bool | str
        try:
            done = bool(self.scheduler.reset_prefix_cache(reset_running_requests=running))
        except RuntimeError:
            done = "raised"  # the engine fails the call and goes on
        self._end_call(reset=done, returned=done)

    def set_pause_state(self, state: str) -> None:
        """Pause or resume."""
        self.scheduler.set_pause_state(PauseState[state])
        self._end_call()

    def table(self, r: int) -> list[int]:
        """Ids of the blocks of request r, in order."""
        return [block.block_id for block in self.manager.req_to_blocks.get(name_of(r), ())]

    def free_blocks(self) -> list[int]:
        """Ids of the blocks in the free queue, next to be used first."""
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def published(self) -> list[tuple[int, list[int]]]:
        """Each published block with its prefix: salt, 0, tokens."""
        return [
            (block.block_id, list(kv_cache_utils.get_block_hash(block.block_hash)))
            for block in self.pool.blocks
            if block.block_hash is not None
        ]


def block_conservation(e: Engine, call: Any) -> None:
    """Tables and deferred frees hold each block as often as it is referenced; the rest is free."""
    holders: Counter[int] = Counter()
    for r in range(len(SCOPE["requests"])):
        holders.update(e.table(r))
        assert len(e.table(r)) <= -(-SCOPE["max_model_len"] // SCOPE["block_size"])
    for _fence, deferred in e.scheduler.deferred_frees:
        holders.update(block.block_id for block in deferred)
    null = e.pool.null_block.block_id
    assert holders[null] == 0
    references = {block.block_id: block.ref_cnt for block in e.pool.blocks}
    del references[null]
    assert references == {b: holders[b] for b in references}
    assert sorted(e.free_blocks()) == [b for b in references if not holders[b]]


def published_sound(e: Engine, call: Any) -> None:
    """A published block holds its prefix, or will once the steps in flight have run in order."""
    later = Device()
    later.kv = dict(e.device.kv)
    behind: Counter[tuple[int, int]] = Counter()
    for step in e.steps:
        start = {r: step.start[r] - behind[r, step.preemptions[r]] for r in step.tokens}
        later.run(Step(**{**vars(step), "start": start}), {}, ())
        for r in step.samples:
            behind[r, step.preemptions[r]] += step.drafts.get(r, 0)
    for b, prefix in e.published():
        for i in range(SCOPE["block_size"]):
            length = len(prefix) - SCOPE["block_size"] + i + 1
            assert later.kv.get((b, i)) == prefix[:length], f"block {b} is published as {prefix}"


def reads_correct(e: Engine, call: Any) -> None:
    """A step whose output is delivered finds the KV of its own request's prefix."""
    assert not e.misread


def no_reuse_in_flight(e: Engine, call: Any) -> None:
    """The blocks of a transfer under way belong to its request, and no step writes them."""
    size = SCOPE["block_size"]
    for r in e.loading.keys() - e.landed:
        positions, table = e.loading[r]
        for place in {position // size for position in positions}:
            b = table[place]
            assert e.table(r)[place : place + 1] == [b], f"block {b} of request {r}'s load"
            assert e.pool.blocks[b].ref_cnt == 1, f"block {b} of request {r}'s load"
            assert e.pool.blocks[b].block_hash is None, f"block {b} of request {r}'s load"
            for step in e.steps:
                for other, start in step.start.items():
                    written = range(start, start + step.tokens[other])
                    places = {position // size for position in written}
                    assert b not in {step.tables[other][i] for i in places}
    for r in e.sending.keys() - e.landed:
        assert e.table(r) == e.sending[r], f"blocks of request {r}, which are being sent"


def counters_consistent(e: Engine, call: Any) -> None:
    """In-flight and stale tokens are those of the steps in flight, and nothing is negative."""
    for name, q in e.scheduler.requests.items():
        r = int(name)
        steps = [step for step in e.steps if r in step.tokens]
        assert q.num_in_flight_tokens == sum(step.tokens[r] for step in steps)
        assert q.num_computed_tokens >= 0
        assert q.num_output_placeholders >= 0
        if q.is_finished():
            continue
        current = [step for step in steps if step.preemptions[r] == q.num_preemptions]
        tokens = sum(step.tokens[r] for step in current)
        assert q.num_stale_output_tokens == q.num_in_flight_tokens - tokens
        drafts = len(q.spec_token_ids)
        if not SCOPE["async_scheduling"]:
            drafts += sum(step.drafts.get(r, 0) for step in current)
        assert q.num_computed_tokens <= q.num_tokens + q.num_output_placeholders + drafts
        assert q.status == RequestStatus.RUNNING or q.num_output_placeholders == 0


def slots_respected(e: Engine, call: Any) -> None:
    """At most max_num_seqs requests run."""
    assert len(e.scheduler.running) <= SCOPE["max_num_seqs"]


def queue_status_agree(e: Engine, call: Any) -> None:
    """Each live request stands in exactly one queue, the one that its status names."""
    s = e.scheduler
    queues = [*s.running, *s.waiting, *s.kv_holding_waiting]
    live = [name for name, q in s.requests.items() if not q.is_finished()]
    assert sorted(q.request_id for q in queues) == sorted(live)
    for q in queues:
        assert (q.status == RequestStatus.RUNNING) == (q in s.running)
        if e.table(int(q.request_id)):
            assert q in s.running or q in list(s.kv_holding_waiting)


def output_exact(e: Engine, call: Any) -> None:
    """Every token is delivered once and in its place, and none past the end."""
    for r, tokens in e.delivered.items():
        request = SCOPE["requests"][r]
        expected = request["tokens"][request["prompt"] :][: len(tokens)]
        if tokens[-1] == SCOPE["stop_token"]:
            expected[-1] = SCOPE["stop_token"]
        assert tokens == expected
        assert len(tokens) <= request["max_tokens"]


def freed_exactly_once(e: Engine, call: Any) -> None:
    """A finished request is kept for a transfer that will report; a fence is a step in flight."""
    s = e.scheduler
    for name, q in s.requests.items():
        assert not q.is_finished() or int(name) in {*e.loading, *e.sending}
    for r in range(len(SCOPE["requests"])):
        assert not e.table(r) or name_of(r) in s.requests
    for fence, _deferred in s.deferred_frees:
        assert s.processed_step_seq < fence <= s.sched_step_seq


def isolation(e: Engine, call: Any) -> None:
    """Two requests share a block only if their prefixes, salt included, are equal up to its end."""
    tables = {r: e.table(r) for r in range(len(SCOPE["requests"]))}
    for a, table in tables.items():
        for b, other in tables.items():
            for i, block in enumerate(table):
                if a != b and block in other:
                    end = (i + 1) * SCOPE["block_size"]
                    assert other[i : i + 1] == [block]
                    assert prefix_of_request(a, end) == prefix_of_request(b, end)


def eviction_order(e: Engine, call: Any) -> None:
    """Unpublished blocks are used before published ones, and the end of a prefix first."""
    published = dict(e.published())
    free = e.free_blocks()
    kept = [b for b in free if b in published]
    if SCOPE["kv_load_failure_policy"] == "recompute":
        assert free[len(free) - len(kept) :] == kept
    for b in kept:
        parent = published[b][: -SCOPE["block_size"]]
        parents = [other for other, prefix in published.items() if prefix == parent]
        outlive = [p for p in parents if p not in free or free.index(p) > free.index(b)]
        assert outlive or not parents


def budget_respected(e: Engine, call: Any) -> None:
    """A step keeps to the token budget, with draft slots to the input budget, and to the length."""
    if call.step is None:
        return
    budget = SCOPE["max_num_scheduled_tokens"] or SCOPE["max_num_batched_tokens"]
    slots = int(SCOPE["num_speculative_tokens"] > 0 and SCOPE["spec_method"] == "draft_model")
    tokens = call.step.tokens
    assert sum(tokens.values()) <= budget
    assert sum(n + slots for n in tokens.values()) <= SCOPE["max_num_batched_tokens"]
    for r, n in tokens.items():
        assert n > 0
        assert call.step.start[r] + n <= SCOPE["max_model_len"]


def schedule_set(e: Engine, call: Any) -> None:
    """What a step schedules runs, and no victim is among it."""
    if call.step is not None:
        assert call.step.tokens.keys() <= {int(q.request_id) for q in e.scheduler.running}
        assert call.step.tokens.keys().isdisjoint(call.preempted)


def victim_freeable(e: Engine, call: Any) -> None:
    """No preemption for want of blocks leaves its victim's blocks behind a fence."""
    assert not call.fenced


def written_slots_owned(e: Engine, call: Any) -> None:
    """What a step may write, lookahead included, lies in blocks that nobody reads otherwise."""
    if call.step is None:
        return
    drafter_has_kv = SCOPE["spec_method"] in ("eagle", "draft_model")
    lookahead = SCOPE["num_speculative_tokens"] if drafter_has_kv else 0
    for r, start in call.step.start.items():
        end = start + call.step.tokens[r] + (lookahead if r in call.step.samples else 0)
        for position in range(start, min(end, SCOPE["max_model_len"])):
            place = position // SCOPE["block_size"]
            assert place < len(e.table(r))
            for other in range(len(SCOPE["requests"])):
                if other != r and e.table(other)[place : place + 1] == [e.table(r)[place]]:
                    prefix = prefix_of_request(r, position + 1)
                    assert prefix == prefix_of_request(other, position + 1)


def reset_sound(e: Engine, call: Any) -> None:
    """A reset does not raise; after a successful one no block is in use and none is published."""
    assert call.reset != "raised"
    if call.reset:
        assert not e.published()
        assert not any(e.table(r) for r in range(len(SCOPE["requests"])))


def no_stall(e: Engine, call: Any) -> None:
    """Who waits, runs or is held is a reason to step, and an idle engine schedules something."""
    if e.scheduler.pause_state != PauseState.UNPAUSED:
        return
    assert e.scheduler.has_requests() or e.steps or not e.scheduler.requests
    assert not call.stalled, "requests wait, nothing runs or moves, and nothing was scheduled"


def hand_over(e: Engine, call: Any) -> None:
    """A request that must hand over its KV still has its blocks when it ends by itself."""
    if SCOPE["kv_role"] in ("kv_producer", "kv_both"):
        for r in call.ended:
            assert e.table(r) or not SCOPE["requests"][r]["delay_free"]


def worker_agrees(e: Engine, call: Any) -> None:
    """A step is given its requests' own tables; the workers keep nobody who has ended."""
    if call.step is None:
        return
    for r, start in call.step.start.items():
        places = -(-(start + call.step.tokens[r]) // SCOPE["block_size"])
        assert call.step.tables[r][:places] == e.table(r)[:places]
    live = {int(name) for name, q in e.scheduler.requests.items() if not q.is_finished()}
    if SCOPE["v2_model_runner"]:
        live = {int(q.request_id) for q in e.scheduler.running}
    assert e.workers.keys() <= live


def publication_complete(e: Engine, call: Any) -> None:
    """A step leaves published what it fills with known tokens, and what comes before."""
    if call.step is None or not SCOPE["prefix_caching"]:
        return
    published = dict(e.published())
    for r, start in call.step.start.items():
        known = min(start + call.step.tokens[r], e.scheduler.requests[name_of(r)].num_tokens)
        for b in e.table(r)[: known // SCOPE["block_size"]]:
            assert b in published
