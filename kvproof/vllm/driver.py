"""Drives vLLM's real scheduler: takes batches of operations, gives results and observations.

Runs in vLLM's interpreter, `python -m kvproof.vllm.driver FD`: batches arrive on standard input,
answers leave on the descriptor FD, so that nothing vLLM prints can get among them. The language is
kvproof/vllm/protocol.py's. No model runs: what it would sample comes with the operations.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, BinaryIO, NamedTuple, TypeVar

import torch
import vllm
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.sched.request_queue import PriorityRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvproof.vllm import agreement, protocol
from kvproof.vllm.agreement import SENDS_COMMON_PREFIX, Agreement, common_prefix_blocks
from kvproof.vllm.config import build_config
from kvproof.vllm.connector import External, ScriptedConnector
from kvproof.vllm.guards_out import GUARDS, taken_out
from kvproof.vllm.inventory import ALWAYS_DEFAULT
from kvproof.vllm.leaks import Leaks
from kvproof.vllm.transfers import Transfers

_VLLM_FILES = os.path.dirname(vllm.__file__) + os.sep

# A published hash is its prefix itself: the salt and then the tokens, two bytes each. The hash
# before the first block is the prefix without salt and tokens.
_TOKEN_BYTES = 2
_EMPTY_PREFIX = bytes(_TOKEN_BYTES)
_GROUP_ID_BYTES = 4

NOBODY = -1
"""Stands in an output's result for what is told to no request's client."""

_STATUS_NAMES = {int(status): status.name for status in RequestStatus}


def prefix_hash(value: tuple[bytes, tuple[int, ...], tuple[tuple[str, str], ...] | None]) -> bytes:
    """An injective hash of (parent's hash, tokens, extra keys) that can be read back."""
    parent, tokens, extra_keys = value
    if extra_keys:
        ((_, salt),) = extra_keys
        name = salt.encode()
        parent = len(name).to_bytes(_TOKEN_BYTES, "big") + name
    return parent + b"".join(token.to_bytes(_TOKEN_BYTES, "big") for token in tokens)


def prefix_of(block_hash: bytes) -> list[str | int]:
    """The salt ("" without one) and the tokens that a published hash stands for."""
    end = _TOKEN_BYTES + int.from_bytes(block_hash[:_TOKEN_BYTES], "big")
    tokens = block_hash[end:-_GROUP_ID_BYTES]
    return [
        block_hash[_TOKEN_BYTES:end].decode(),
        *(
            int.from_bytes(tokens[i : i + _TOKEN_BYTES], "big")
            for i in range(0, len(tokens), _TOKEN_BYTES)
        ),
    ]


class Unfit(Exception):
    """An answer that the oldest step cannot have: of the device, or about transfers."""


class DoesNotReturn(BaseException):
    """A call has run for too long; no handler of vLLM's takes it for an error that it knows."""


SECONDS = 10.0
"""Time that a call may take before it counts as one that does not return."""


class InOrder(set[Any]):
    """A set that is walked in the order of its elements, in whatever order they came."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))


# vLLM frees the requests that fail together in the order of a set of their ids.
scheduler_module.set = InOrder


class _NoStructuredOutput:
    """A StructuredOutputManager without requests that need one."""

    def validate_tokens(self, request: Request, tokens: list[int]) -> list[int]:
        return tokens

    def accept_tokens(self, request: Request, tokens: list[int]) -> bool:
        return True


def build_scheduler(config: VllmConfig) -> Scheduler:
    """The scheduler of a model with one kind of layer, full attention."""
    block_size = config.cache_config.block_size
    layer = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    scheduler_class = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=config.cache_config.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
        ),
        structured_output_manager=_NoStructuredOutput(),
        block_size=block_size,
        log_stats=False,
    )


class _Step(NamedTuple):
    """A scheduled step in flight; never changed."""

    output: SchedulerOutput
    order: list[list[int]]
    sampling: frozenset[int]


class _Snapshot(NamedTuple):
    """Everything that an operation can change, copied; restoring leaves it valid."""

    scheduler: dict[str, Any]
    requests: list[tuple[Request, dict[str, Any], Any, int, int, int]]
    blocks: list[tuple[Any, ...]]
    free_list: tuple[Any, Any, int]
    published: dict[bytes, Any]
    more_published: dict[int, set[bytes]]
    tables: dict[str, list[Any]]
    num_cached_block: dict[str, int]
    partial_hits: dict[str, Any]
    connector: Any
    agreement: agreement.Saved
    transfers: Transfers
    steps: tuple[_Step, ...]


def _copied(container: Any) -> Any:
    if isinstance(container, PriorityRequestQueue):
        queue = PriorityRequestQueue()
        queue._heap = container._heap.copy()
        return queue
    return container.copy()


_Method = TypeVar("_Method", bound=Callable[..., Any])

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Calls of the engine by name: answered with a result and an observation."""


def operation(method: _Method) -> _Method:
    """Make a method of the engine one of the driver's operations."""
    OPERATIONS[method.__name__] = method
    return method


class Engine:
    """A scope's real scheduler and the steps in flight: what EngineCore is to a scheduler.

    Its operations are those of the driver; `observation` reads the state, `save` and `restore` copy
    it.
    """

    def __init__(self, scope: dict[str, Any]) -> None:
        config = build_config(scope, ScriptedConnector.__module__)
        self.scheduler = build_scheduler(config)
        self._steps: deque[_Step] = deque()
        self._pool = self.scheduler.kv_cache_manager.block_pool
        (self._manager,) = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        self._containers = [
            name
            for name, value in vars(self.scheduler).items()
            if isinstance(value, (dict, list, set, deque, PriorityRequestQueue))
        ]
        self._prefixes: dict[bytes | None, list[str | int] | None] = {None: None}
        self._specs = scope["requests"]
        # In the order of their numbers, which priority ties fall back on.
        self._names = [f"r{r:03}" for r in range(len(self._specs))]
        self._numbers = {name: r for r, name in enumerate(self._names)}
        self._sampling_params = [
            SamplingParams(
                max_tokens=spec["max_tokens"],
                temperature=0.0,
                stop_token_ids=[scope["stop_token"]],
                ignore_eos=True,
            )
            for spec in self._specs
        ]
        connector = self.scheduler.connector
        self._hasher = None
        if scope["prefix_caching"] or connector is not None:
            kv_cache_utils.NONE_HASH = _EMPTY_PREFIX
            self._hasher = kv_cache_utils.get_request_block_hasher(scope["block_size"], prefix_hash)
        if connector is not None:
            named = list(zip(self._names, self._specs, strict=True))
            connector.externals = {
                name: External(**spec["external"]) for name, spec in named if spec["external"]
            }
            connector.delay_free = frozenset(name for name, spec in named if spec["delay_free"])
        self._agreement = Agreement(self.scheduler, self._manager.req_to_blocks, self._numbers)
        self._transfers = Transfers()
        self._leaks = Leaks(self.scheduler)

    def request(self, r: int) -> Request:
        """Request r as it arrives."""
        spec = self._specs[r]
        return Request(
            request_id=self._names[r],
            prompt_token_ids=list(spec["prompt"]),
            sampling_params=self._sampling_params[r],
            pooling_params=None,
            arrival_time=spec["arrival"],
            cache_salt=spec["salt"],
            priority=spec["priority"],
            block_hasher=self._hasher,
        )

    def name(self, r: int) -> str:
        """The id of request r."""
        return self._names[r]

    @operation
    def add(self, r: int) -> None:
        """A request arrives."""
        self.scheduler.add_request(self.request(r))
        self._agreement.added(self._names[r])

    @operation
    def abort(self, r: int) -> None:
        """Its client goes away."""
        self.scheduler.finish_requests(self._names[r], RequestStatus.FINISHED_ABORTED)

    @operation
    def schedule(self) -> dict[str, Any]:
        """Plan a step and put it in flight."""
        number = self._numbers
        before = self._agreement.before()
        output = self.scheduler.schedule()
        views, disagreements = self._agreement.scheduled(before, output)
        order = [[number[name], count] for name, count in output.num_scheduled_tokens.items()]
        seen = [(number[name], view) for name, view in views.items()]
        metadata = output.kv_connector_metadata
        loads = [] if metadata is None else metadata.loads
        requests = self.scheduler.requests
        sampling = frozenset(r for r, _ in order if not requests[self._names[r]].is_prefill_chunk)
        self._steps.append(_Step(output, order, sampling))
        return {
            "disagreements": disagreements,
            "scheduled": order,
            "start": {r: view.start for r, view in seen},
            "tokens": {r: view.tokens for r, view in seen},
            "drafts": {r: view.drafts for r, view in seen if view.drafts},
            "num_outputs": {r: view.num_outputs for r, view in seen},
            "samples": {r: view.samples for r, view in seen},
            "tables": {r: view.table for r, view in seen},
            "sent_new": [
                [
                    number[new.req_id],
                    new.prompt_token_ids,
                    None if new.prefill_token_ids is None else new.prefill_token_ids.copy(),
                    *new.block_ids,
                    new.num_computed_tokens,
                ]
                for new in output.scheduled_new_reqs
            ],
            "sent_cached": self._cached(output.scheduled_cached_reqs),
            "resumed": self._sorted(output.scheduled_cached_reqs.resumed_req_ids),
            "preempted": self._sorted(output.preempted_req_ids),
            "finished": self._sorted(output.finished_req_ids),
            "loads": sorted([number[load[0]], *load[1:]] for load in loads),
            "has_sync_loads": output.has_sync_kv_loads,
            "common": common_prefix_blocks(output) if SENDS_COMMON_PREFIX else protocol.UNSEEN,
            "total": output.total_num_scheduled_tokens,
            "num_drafts_next": output.num_spec_tokens_to_schedule,
        }

    def _cached(self, cached: CachedRequestData) -> list[list[Any]]:
        """What a step sends of each request that its workers know."""
        new_tokens = cached.new_token_ids or [None] * len(cached.req_ids)
        columns = (
            cached.req_ids,
            cached.new_block_ids,
            cached.num_computed_tokens,
            cached.num_output_tokens,
            new_tokens,
        )
        return [
            [
                self._numbers[name],
                None if blocks is None else blocks[0],
                computed,
                outputs,
                tokens,
                cached.all_token_ids.get(name),
            ]
            for name, blocks, computed, outputs, tokens in zip(*columns, strict=False)
        ]

    @operation
    def output(
        self, tokens: dict[int, list[int]], recved: list[int], sent: list[int], invalid: list[int]
    ) -> dict[int, list[Any]]:
        """The oldest step in flight returns: sampled tokens, loads and sends over, bad blocks."""
        step = self._steps.popleft()
        if not tokens.keys() <= step.sampling:
            raise Unfit(
                f"output for {sorted(tokens)}: the step samples for {sorted(step.sampling)} only"
            )
        loaded, delivered = ([self._names[r] for r in of] for of in (recved, sent))
        told = self._transfers.told(step.output)
        breach = told.broken_by(loaded, delivered, invalid)
        if breach is not None:
            raise Unfit(breach)
        self._transfers = told.reported(loaded, delivered)
        answer = self.runner_output(step.output, tokens, recved, sent, invalid)
        self._agreement.answered(
            {self._names[r]: sampled.copy() for r, sampled in tokens.items()},
            invalid,
        )
        outputs = self.scheduler.update_from_output(step.output, answer)
        results = {
            self._numbers[one.request_id]: _told(one)
            for of_client in outputs.values()
            for one in of_client.outputs
        }
        odd = [_odd(of_client) for of_client in outputs.values()]
        if any(odd):
            results[NOBODY] = odd
        return results

    def runner_output(
        self,
        step: SchedulerOutput,
        tokens: dict[int, list[int]],
        recved: list[int],
        sent: list[int],
        invalid: list[int],
    ) -> ModelRunnerOutput:
        """What the model runner returns for a step."""
        names = self._names
        transfers = None
        if recved or sent or invalid:
            transfers = KVConnectorOutput(
                finished_recving=InOrder(names[r] for r in recved),
                finished_sending=InOrder(names[r] for r in sent),
                invalid_block_ids=set(invalid),
            )
        scheduled = list(step.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=scheduled,
            req_id_to_index={name: i for i, name in enumerate(scheduled)},
            sampled_token_ids=[tokens.get(self._numbers[name], []) for name in scheduled],
            kv_connector_output=transfers,
        )

    def draft_token_ids(self, drafts: dict[int, list[int]]) -> DraftTokenIds:
        """The drafter's proposals as the executor hands them over."""
        return DraftTokenIds([self._names[r] for r in drafts], list(drafts.values()))

    @operation
    def drafts(self, drafts: dict[int, list[int]]) -> None:
        """The drafter's proposals for the next step."""
        self._agreement.proposed({self._names[r]: tokens for r, tokens in drafts.items()})
        self.scheduler.update_draft_token_ids(self.draft_token_ids(drafts))

    @operation
    def reset_prefix_cache(self, running: bool, connector: bool = False) -> bool | str:
        """Reset the prefix cache, preempting what runs if `running`; whether it was reset.

        With `connector` the connector's cache is reset too.
        """
        try:
            return bool(
                self.scheduler.reset_prefix_cache(
                    reset_running_requests=running, reset_connector=connector
                )
            )
        except RuntimeError:
            # The engine fails the call and goes on.
            return "raised"

    @operation
    def set_pause_state(self, state: str) -> None:
        """Set the pause state, by its name."""
        self.scheduler.set_pause_state(PauseState[state])

    @operation
    def observe(self) -> None:
        """Nothing but the observation."""

    def observation(self) -> list[Any]:
        """The state in the order of protocol.OBSERVATION, sorted where vLLM has sets."""
        s, pool, number = self.scheduler, self._pool, self._numbers
        processed = s.processed_step_seq
        blocks = pool.blocks
        queue = pool.free_block_queue
        free = _walk(queue.fake_free_list_head, "next_free_block", len(blocks))
        back = _walk(queue.fake_free_list_tail, "prev_free_block", len(blocks))
        ref_cnt = [block.ref_cnt for block in blocks]
        ref_cnt[pool.null_block.block_id] = 0
        prefix = self._prefix
        values = {
            "requests": self._requests(),
            "running": [number[q.request_id] for q in s.running],
            "waiting": [number[q.request_id] for q in s.waiting],
            "kv_holding_waiting": [number[q.request_id] for q in s.kv_holding_waiting],
            "free": free,
            "free_back": back,
            "num_free": queue.num_free_blocks,
            "ref_cnt": ref_cnt,
            "cached": sorted(
                [prefix(block_hash), list(found) if type(found) is dict else [found.block_id]]
                for block_hash, found in pool.cached_block_hash_to_block._cache.items()
            ),
            "block_hash": [prefix(block.block_hash) for block in blocks],
            "deferred": [
                [fence - processed, [block.block_id for block in deferred]]
                for fence, deferred in s.deferred_frees
            ],
            "seq_ahead": s.sched_step_seq - processed,
            "recved": self._sorted(s.finished_recving_kv_req_ids),
            "failed": self._sorted(s.failed_recving_kv_req_ids),
            "finished": self._sorted(s.finished_req_ids),
            "reset_preempted": self._sorted(s.reset_preempted_req_ids),
            "inflight_prefills": sorted([number[q.request_id] for q in s._inflight_prefills]),
            "in_flight": [step.order for step in self._steps],
            "pause": int(s.pause_state),
            "has_requests": s.has_requests(),
            "connector": self._scripts(),
            "leaks": [[number[n], where] for n, where in self._leaks.find() if n in number],
        }
        return [values[name] for name in protocol.OBSERVATION]

    def _requests(self) -> list[list[Any]]:
        s, number = self.scheduler, self._numbers
        processed, step = s.processed_step_seq, s.current_step
        tables, num_cached_block = self._manager.req_to_blocks, self._manager.num_cached_block
        return sorted(
            [
                number[name],
                _STATUS_NAMES[q.status],
                q.num_computed_tokens,
                q.num_tokens,
                q.num_output_tokens,
                q.num_output_placeholders,
                q.num_in_flight_tokens,
                q.num_stale_output_tokens,
                q.drop_stale_output,
                q.is_prefill_chunk,
                q.num_preemptions > 0,
                max(0, q.last_sched_seq - processed),
                max(0, q.next_decode_eligible_step - step),
                num_cached_block.get(name, 0),
                [block.block_id for block in tables.get(name, ())],
                q._all_token_ids.copy(),
                q._output_token_ids == q._all_token_ids[q.num_prompt_tokens :],
                q.spec_token_ids,
            ]
            for name, q in s.requests.items()
        )

    def _scripts(self) -> list[list[Any]]:
        connector = self.scheduler.connector
        if connector is None:
            return []
        return sorted(
            [self._numbers[name], name in connector.used, connector.asks_left[name]]
            for name, q in self.scheduler.requests.items()
            if name in connector.externals and not q.is_finished()
        )

    def _prefix(self, block_hash: bytes | None) -> list[str | int] | None:
        try:
            return self._prefixes[block_hash]
        except KeyError:
            assert block_hash is not None
            prefix = self._prefixes[block_hash] = prefix_of(block_hash)
            return prefix

    def _sorted(self, names: Any) -> list[int]:
        return sorted([self._numbers[name] for name in names]) if names else []

    def save(self) -> _Snapshot:
        """Copy everything that an operation can change.

        A request's token and hash lists only grow, so that their lengths are enough as long as
        snapshots are restored last in, first out.
        """
        s, pool, manager = self.scheduler, self._pool, self._manager
        scheduler = vars(s).copy()
        for name in self._containers:
            scheduler[name] = _copied(scheduler[name])
        queue = pool.free_block_queue
        return _Snapshot(
            scheduler=scheduler,
            requests=[
                (
                    q,
                    vars(q).copy(),
                    None if q.prefill_stats is None else vars(q.prefill_stats).copy(),
                    len(q._output_token_ids),
                    len(q._all_token_ids),
                    len(q.block_hashes),
                )
                for q in s.requests.values()
            ],
            blocks=[
                (
                    block.ref_cnt,
                    block._block_hash,
                    block._block_hash_num_tokens,
                    block.prev_free_block,
                    block.next_free_block,
                )
                for block in pool.blocks
            ],
            free_list=(
                queue.fake_free_list_head.next_free_block,
                queue.fake_free_list_tail.prev_free_block,
                queue.num_free_blocks,
            ),
            published=_copied_hashes(pool.cached_block_hash_to_block._cache),
            more_published={b: s.copy() for b, s in pool.cached_block_hashes_by_block.items()},
            tables={name: table.copy() for name, table in manager.req_to_blocks.items()},
            num_cached_block=manager.num_cached_block.copy(),
            partial_hits=manager._partial_hit_reqs.copy(),
            connector=None if s.connector is None else s.connector.save(),
            agreement=self._agreement.save(),
            transfers=self._transfers,
            steps=tuple(self._steps),
        )

    def restore(self, saved: _Snapshot) -> None:
        """Go back to a snapshot."""
        s, pool, manager = self.scheduler, self._pool, self._manager
        attributes = vars(s)
        attributes.update(saved.scheduler)
        for name in self._containers:
            attributes[name] = _copied(attributes[name])
        for q, values, stats, num_output, num_tokens, num_hashes in saved.requests:
            vars(q).update(values)
            if stats is not None:
                vars(q.prefill_stats).update(stats)
            del q._output_token_ids[num_output:]
            del q._all_token_ids[num_tokens:]
            del q.block_hashes[num_hashes:]
        for block, values_of_block in zip(pool.blocks, saved.blocks, strict=True):
            (
                block.ref_cnt,
                block._block_hash,
                block._block_hash_num_tokens,
                block.prev_free_block,
                block.next_free_block,
            ) = values_of_block
        queue = pool.free_block_queue
        (
            queue.fake_free_list_head.next_free_block,
            queue.fake_free_list_tail.prev_free_block,
            queue.num_free_blocks,
        ) = saved.free_list
        pool.cached_block_hash_to_block._cache = _copied_hashes(saved.published)
        pool.cached_block_hashes_by_block = {b: s.copy() for b, s in saved.more_published.items()}
        manager.req_to_blocks.clear()
        manager.req_to_blocks.update((name, table.copy()) for name, table in saved.tables.items())
        manager.num_cached_block = saved.num_cached_block.copy()
        manager._partial_hit_reqs = saved.partial_hits.copy()
        if s.connector is not None:
            s.connector.restore(saved.connector)
        self._agreement.restore(saved.agreement)
        self._transfers = saved.transfers
        self._steps = deque(saved.steps)


def _walk(end: Any, link: str, most: int) -> list[int]:
    """The free blocks from one end of their list on, and at most one more than there are blocks."""
    block_ids: list[int] = []
    block = getattr(end, link)
    while block is not None and block.block_id >= 0 and len(block_ids) <= most:
        block_ids.append(block.block_id)
        block = getattr(block, link)
    return block_ids


def _told(one: EngineCoreOutput) -> list[Any]:
    """What the client of a request is told, in the order of protocol.OUTPUT."""
    stats = one.prefill_stats
    return [
        one.new_token_ids,
        None if one.finish_reason is None else str(one.finish_reason),
        one.stop_reason,
        None if stats is None else [getattr(stats, name) for name in protocol.PREFILL_STATS],
        one.kv_transfer_params,
        _odd(one),
    ]


def _odd(data: Any) -> dict[str, str]:
    """The fields that text with full attention never sets, where they are set all the same."""
    return {
        name: repr(value)
        for name, default in ALWAYS_DEFAULT[type(data).__name__].items()
        if (value := getattr(data, name)) != default
    }


def _copied_hashes(published: dict[bytes, Any]) -> dict[bytes, Any]:
    """A copy of the map from hashes to a block or to several, which keep their order."""
    return {
        block_hash: found.copy() if type(found) is dict else found
        for block_hash, found in published.items()
    }


class Driver:
    """Answers operations on one engine at a time, with a stack of its snapshots.

    After an operation that raised, the state is broken: operations are skipped until a move leads
    out of it. A broken state is saved as None, which keeps the stack in step. After a call that did
    not return, which may have stopped anywhere, everything is skipped up to the next `new`.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._engine: Engine | None = None
        self._stack: list[_Snapshot | None] = []
        self._broken = True
        self._untold: list[Any] | None = None
        self._guards_out = ExitStack()
        signal.signal(signal.SIGALRM, _out_of_time)

    def answer(self, operation: list[Any]) -> list[Any] | None:
        """The answer to one operation, as kvproof/vllm/protocol.py has it.

        What a call or a look at vLLM's objects raises is an answer too; what a move does is the
        next operation's. An unknown operation, or a scope that vLLM's configuration refuses, is
        raised and ends the driver.
        """
        name, *arguments = operation
        if name in protocol.MOVES:
            self._untold = self._taken(getattr(self, f"_{name}"), arguments) or self._untold
            return None
        if name not in OPERATIONS:
            allowed = ", ".join((*OPERATIONS, *protocol.MOVES))
            raise ValueError(f"operation {name!r}: allowed are {allowed}")
        if self._untold is not None:
            told, self._untold = self._untold, None
            return told
        if self._broken or self._engine is None:
            return [["skipped"], None]
        return self._taken(self._call, [OPERATIONS[name], *arguments])

    def _taken(self, method: Callable[..., Any], arguments: list[Any]) -> list[Any] | None:
        """What a method returns, or the answer that tells what came of it instead."""
        try:
            # Again and again, for one that is raised where nothing can be raised is lost.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            try:
                done: list[Any] | None = method(*arguments)
                return done
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (Exception, DoesNotReturn) as error:
            if build_config.__code__ in _codes(error):
                raise
            self._broken = True
            if isinstance(error, DoesNotReturn):
                self._engine = None
            message = str(error).partition("\n")[0]
            where = vllm_location(error) or _short(_codes(error)[-1])
            return [["error", type(error).__name__, message, where], None]

    def _call(self, method: Callable[..., Any], *arguments: Any) -> list[Any]:
        assert self._engine is not None
        result = method(self._engine, *arguments)
        return [result, self._engine.observation()]

    def _new(
        self, scope: dict[str, Any], guards_out: Sequence[str] = (), mends: Sequence[str] = ()
    ) -> None:
        self._stack.clear()
        self._engine, self._broken, self._untold = None, True, None
        self._guards_out.close()
        self._guards_out.enter_context(taken_out(guards_out, mends))
        self._engine = Engine(scope)
        self._broken = False

    def _push(self) -> None:
        self._stack.append(None)
        if self._engine is not None and not self._broken:
            self._stack[-1] = self._engine.save()

    def _pop(self) -> None:
        self._go_to(self._stack.pop())

    def _peek(self) -> None:
        self._go_to(self._stack[-1])

    def _go_to(self, saved: _Snapshot | None) -> None:
        self._broken = True
        if saved is not None and self._engine is not None:
            self._engine.restore(saved)
            self._broken = False


def _out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise DoesNotReturn("has run for too long")


def _codes(error: BaseException) -> list[CodeType]:
    """What the error went through, outermost first."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [code for code in frames if code is not _out_of_time.__code__]


def _short(code: CodeType) -> str:
    return f"{os.path.basename(code.co_filename)}:{code.co_name}"


def vllm_location(error: BaseException) -> str | None:
    """The innermost of vLLM's frames that the error went through, as "file.py:function"."""
    inside = [code for code in _codes(error) if code.co_filename.startswith(_VLLM_FILES)]
    return _short(inside[-1]) if inside else None


def serve(
    batches: BinaryIO, answers: BinaryIO, answer: Callable[[list[Any]], Any] | None = None
) -> None:
    """Answer batches until their stream ends; operations go to a new Driver, or to `answer`."""
    if answer is None:
        answer = Driver().answer
    unseen = [] if SENDS_COMMON_PREFIX else ["num_common_prefix_blocks"]
    protocol.write_frame(answers, [vllm.__version__, list(GUARDS), unseen])
    while (body := protocol.read_body(batches)) is not None:
        protocol.write_frame(answers, [answer(op) for op in protocol.decode(body)])


def serve_on(descriptor: int, answer: Callable[[list[Any]], Any] | None = None) -> None:
    """Serve standard input, quietly, and answer on a descriptor."""
    # A reset that fails or a load that is lost is logged each time: noise here.
    logging.disable(logging.CRITICAL)
    # What the imports made lives as long as the process.
    gc.collect()
    gc.freeze()
    with open(descriptor, "wb") as answers:
        serve(sys.stdin.buffer, answers, answer)


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]))


if __name__ == "__main__":
    main()
