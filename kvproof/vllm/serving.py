"""Serves a simulated workload with vLLM's real scheduler, in vLLM's interpreter.

Runs as `python -m kvproof.vllm.serving FD` and answers as the driver does (kvproof/vllm/driver.py):
`["new", settings, sessions]` builds a simulation, `["advance", rounds]` runs it on and is answered
with [whether there is more, simulated time, requests so far], `["result"]` gives the observations.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

import msgspec
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from kvproof.vllm.config import build_config
from kvproof.vllm.driver import build_scheduler, serve_on, vllm_location
from kvproof.vllm.monitor import Monitor
from kvproof.workload import clock
from kvproof.workload.sessions import Session, token
from kvproof.workload.settings import Settings


def _scope(settings: Settings) -> dict[str, Any]:
    """The settings as the driver takes a scope."""
    return {
        "block_size": settings.block_size,
        "num_blocks": settings.pool + 1,
        "max_num_seqs": settings.max_requests,
        "max_num_batched_tokens": settings.budget,
        "max_num_scheduled_tokens": None,
        "max_model_len": settings.longest,
        "policy": settings.policy,
        "prefix_caching": True,
        "chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "async_scheduling": settings.depth > 1,
        "pipeline_parallel_size": 1,
        "v2_model_runner": False,
        "num_speculative_tokens": 0,
        "kv_role": None,
    }


class _Step(NamedTuple):
    output: SchedulerOutput
    sampled: list[list[int]]


class RealEngine:
    """vLLM's scheduler as the clock's engine, watched by a monitor.

    A request ends at a stop token, the session's token at its last position, so that the scheduler
    does not know its length beforehand.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_model_len = settings.longest
        self._block_size = settings.block_size
        self._priority = settings.policy == "priority"
        self._scheduler = build_scheduler(build_config(_scope(settings)))
        kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(settings.block_size, sha256)
        (manager,) = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        self._tables = manager.req_to_blocks
        self.monitor = Monitor(
            self._scheduler, settings.block_size, settings.budget, settings.check_every
        )
        self._steps: deque[_Step] = deque()
        self._requests: dict[str, clock.Request] = {}
        self._delivered: dict[str, int] = {}

    def add(self, request: clock.Request) -> None:
        """A request arrives."""
        name = str(request.number)
        first = token(request.session, 0)
        stop = token(request.session, request.prompt + request.out - 1)
        self._requests[name] = request
        self._delivered[name] = 0
        self.monitor.added(name, request.session)
        self._scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(range(first, first + request.prompt)),
                sampling_params=SamplingParams(
                    max_tokens=self._max_model_len - request.prompt,
                    temperature=0.0,
                    stop_token_ids=[stop],
                    ignore_eos=True,
                ),
                pooling_params=None,
                arrival_time=request.sent,
                # Sessions under way go before new ones.
                priority=int(self._priority and request.turn == 0),
                block_hasher=self._hasher,
            )
        )

    def has_requests(self) -> bool:
        """Whether there is anything to schedule or to clean up."""
        return bool(self._scheduler.has_requests())

    def schedule(self) -> clock.Step:
        """Plan a step and put it in flight."""
        scheduler = self._scheduler
        before = self.monitor.before()
        output = scheduler.schedule()
        cached = output.scheduled_cached_reqs
        hits = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        if cached.resumed_req_ids:
            for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
                if name in cached.resumed_req_ids:
                    hits[name] = computed
        sampled, blocks = [], 0
        for name in output.num_scheduled_tokens:
            request = scheduler.requests[name]
            blocks += len(self._tables[name])
            last = request.num_computed_tokens
            session = self._requests[name].session
            sampled.append([] if request.is_prefill_chunk else [token(session, last)])
        self._steps.append(_Step(output, sampled))
        self.monitor.scheduled(before, output, hits)
        return clock.Step(
            output.total_num_scheduled_tokens,
            blocks * self._block_size,
            [
                clock.Admission(int(name), scheduler.requests[name].num_tokens, hit)
                for name, hit in hits.items()
            ],
            sorted(int(name) for name in output.preempted_req_ids or ()),
        )

    def output(self) -> list[clock.Delivery]:
        """Process the output of the oldest step in flight."""
        output, sampled = self._steps.popleft()
        counts = output.num_scheduled_tokens
        names = list(counts)
        outputs = self._scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=sampled,
            ),
        )
        self.monitor.processed(counts, names)
        return [self._deliver(one) for group in outputs.values() for one in group.outputs]

    def _deliver(self, one: Any) -> clock.Delivery:
        name = one.request_id
        request = self._requests[name]
        known = request.prompt + self._delivered[name]
        count = len(one.new_token_ids)
        self._delivered[name] += count
        wanted = [token(request.session, known + i) for i in range(count)]
        finished = one.finish_reason is not None
        over = self._delivered[name] == request.out or known + count == self._max_model_len
        if one.new_token_ids != wanted or finished != over:
            raise clock.Broken(
                "OutputExact",
                f"{name} got {one.new_token_ids} for {wanted} after {known} tokens of "
                f"{request.prompt} + {request.out}, {'finished' if finished else 'not finished'}",
            )
        if finished:
            del self._requests[name], self._delivered[name]
        return clock.Delivery(request.number, count, finished)


class Serving:
    """Answers the operations on one simulation."""

    def __init__(self) -> None:
        self._engine: RealEngine | None = None
        self._simulation: clock.Simulation | None = None
        self._broken: list[Any] | None = None

    def answer(self, operation: list[Any]) -> Any:
        """The answer to one operation."""
        name, *arguments = operation
        if name == "new":
            settings = msgspec.convert(arguments[0], Settings)
            sessions = msgspec.convert(arguments[1], list[Session])
            self._engine = RealEngine(settings)
            self._simulation = clock.Simulation(self._engine, sessions, settings)
            return None
        assert self._engine is not None and self._simulation is not None, "`new` comes first"
        if name == "advance":
            more = self._broken is None and self._advance(*arguments)
            return [more, self._simulation.now, len(self._simulation.records)]
        return {
            "broken": self._broken,
            "records": msgspec.to_builtins(self._simulation.records),
            "totals": msgspec.to_builtins(self._simulation.totals),
            "full_checks": self._engine.monitor.full_checks,
        }

    def _advance(self, rounds: int) -> bool:
        assert self._engine is not None and self._simulation is not None
        try:
            more = self._simulation.advance(rounds)
            if not more:
                self._engine.monitor.check_all()
            return more
        except clock.Broken as broken:
            self._broken = [broken.invariant, broken.seen]
        except Exception as error:
            where = vllm_location(error)
            if where is None:
                raise
            self._broken = ["NoAssertion", f"{type(error).__name__} in {where}: {error}"]
        return False


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]), Serving().answer)


if __name__ == "__main__":
    main()
