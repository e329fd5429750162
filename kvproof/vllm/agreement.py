"""Whether what a scheduler sends to its workers is what it means: WorkerAgrees, on real classes.

After each step the workers' view of every scheduled request is held against the scheduler's own
objects, and each field that was sent against what it stands for. A disagreement is a row
`[request, field, worker's or sent value, scheduler's value]`; the request is None where the field
is the whole step's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from kvproof.vllm import worker
from kvproof.vllm.inventory import ALWAYS_DEFAULT
from kvproof.vllm.worker import ON_DEVICE, View, Worker

Row = list[Any]

_PER_CACHED_REQUEST = ("new_block_ids", "num_computed_tokens", "num_output_tokens")


class Before(NamedTuple):
    """What is needed of the scheduler as it was just before a step.

    Who ran, and whom it believes to be in the workers' batch.
    """

    running: frozenset[str]
    batch: frozenset[str]


class Saved(NamedTuple):
    """A copy of an agreement."""

    workers: tuple[worker.Saved, ...]
    untold: frozenset[str]
    preemptions: dict[str, int]
    proposed: dict[str, list[int]]


class Agreement:
    """The workers of a scheduler, told what it sends and what devices answer."""

    def __init__(self, scheduler: Scheduler, tables: Mapping[str, Any], numbers: dict[str, int]):
        self._scheduler = scheduler
        self._tables = tables
        self._numbers = numbers
        self._is_async = bool(scheduler.scheduler_config.async_scheduling)
        self._v2 = bool(scheduler.use_v2_model_runner)
        stages = (True, False) if scheduler.use_pp else (True,)
        self._workers = [
            Worker(v2=self._v2, is_async=self._is_async, is_last=is_last) for is_last in stages
        ]
        # Requests that have arrived and of whose end the workers were not told; preemptions and
        # drafts that were there when the last step was sent.
        self._untold: frozenset[str] = frozenset()
        self._preemptions: dict[str, int] = {}
        self._proposed: dict[str, list[int]] = {}

    def added(self, name: str) -> None:
        """A request has arrived."""
        self._untold |= {name}

    def proposed(self, drafts: Mapping[str, list[int]]) -> None:
        """The drafter has proposed these for the next step that the request is in."""
        self._proposed = self._proposed | {name: list(tokens) for name, tokens in drafts.items()}

    def before(self) -> Before:
        """To be taken just before a step."""
        return Before(
            frozenset(q.request_id for q in self._scheduler.running),
            frozenset(self._scheduler.prev_step_scheduled_req_ids),
        )

    def scheduled(
        self, before: Before, output: SchedulerOutput
    ) -> tuple[dict[str, View], list[Row]]:
        """A step is sent: the last stage's view of each of its requests, and what disagrees."""
        rows: list[Row] = []
        views: list[dict[str, View]] = []
        for stage in self._workers:
            try:
                view, wrong = stage.take(output)
                rows += [[self._number(name), *rest] for name, *rest in wrong]
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                stage.failed()
                view = {}
                rows.append([None, "step", f"{type(error).__name__}: {error}", "can be taken"])
            views.append(view)
        last, *first = views
        for name, of_last in last.items():
            rows += self._request(name, of_last, output, name not in before.running)
        for stage_views in first:
            rows += [
                [self._number(name), f"first stage {field}", ours, theirs]
                for name, of_first in stage_views.items()
                for field, ours, theirs in self._read(name, of_first, output)
                if ours != theirs
            ]
        rows += self._sent(before, output, last)
        rows += self._notes(output)
        return last, rows

    def answered(self, sampled: Mapping[str, list[int]], invalid: Collection[int]) -> None:
        """The oldest step has run; `invalid` are the blocks that failed to load."""
        for stage in self._workers:
            stage.answered(sampled, invalid)

    def save(self) -> Saved:
        """A copy of everything."""
        workers = tuple(stage.save() for stage in self._workers)
        return Saved(workers, self._untold, self._preemptions, self._proposed)

    def restore(self, saved: Saved) -> None:
        """Go back to a copy, which stays valid."""
        for stage, of_stage in zip(self._workers, saved.workers, strict=True):
            stage.restore(of_stage)
        _, self._untold, self._preemptions, self._proposed = saved

    def _number(self, name: str) -> int | None:
        return self._numbers.get(name)

    def _line(self, name: str, output: SchedulerOutput) -> tuple[int, list[int]]:
        """Where the scheduler starts a request in this step, and its tokens before the step."""
        q = self._scheduler.requests[name]
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        placeholders = q.num_output_placeholders
        if self._is_async and not q.is_prefill_chunk:
            placeholders -= 1 + drafts
        start = q.num_computed_tokens - output.num_scheduled_tokens[name]
        return start, q._all_token_ids + [ON_DEVICE] * placeholders

    def _read(
        self, name: str, view: View, output: SchedulerOutput
    ) -> Iterator[tuple[str, Any, Any]]:
        """What a stage computes for a request, and what the scheduler means it to."""
        start, line = self._line(name, output)
        scheduled = output.num_scheduled_tokens[name]
        end = start + scheduled - len(view.drafts)
        yield "table", view.table, [block.block_id for block in self._tables.get(name, ())]
        yield "start", view.start, start
        yield "tokens", view.tokens, line[start:end]
        yield "number of tokens", len(view.tokens) + len(view.drafts), scheduled

    def _request(
        self, name: str, view: View, output: SchedulerOutput, admitted: bool
    ) -> Iterable[Row]:
        q = self._scheduler.requests.get(name)
        if q is None:
            return [[self._number(name), "known", True, False]]
        _, line = self._line(name, output)
        if self._is_async or admitted:
            drafts = [ON_DEVICE] * len(view.drafts)
        else:
            drafts = self._proposed.get(name, [])[: len(view.drafts)]
        compared = (
            *self._read(name, view, output),
            ("drafts", view.drafts, drafts),
            ("num_output_tokens", view.num_outputs, len(line) - q.num_prompt_tokens),
            ("samples", view.samples, not q.is_prefill_chunk),
        )
        return [[self._numbers[name], *row] for row in compared if row[1] != row[2]]

    def _sent(
        self, before: Before, output: SchedulerOutput, views: Mapping[str, View]
    ) -> Iterator[Row]:
        """What was sent, field by field, against the objects that it is of."""
        requests = self._scheduler.requests
        scheduled, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
        known = [new for new in output.scheduled_new_reqs if new.req_id in scheduled]
        for new in known:
            q, name = requests[new.req_id], new.req_id
            start, _ = self._line(name, output)
            yield from self._rows(
                name,
                ("prompt_token_ids", new.prompt_token_ids, q.prompt_token_ids),
                (
                    "prefill_token_ids",
                    new.prefill_token_ids,
                    q._all_token_ids if self._v2 else None,
                ),
                ("num_computed_tokens", new.num_computed_tokens, start),
                ("sampling_params", new.sampling_params, q.sampling_params),
                *_odd(new, NewRequestData),
            )
        tells = self._scheduler.use_pp and not self._is_async
        lengths = [len(getattr(cached, name)) for name in _PER_CACHED_REQUEST]
        lengths.append(len(cached.new_token_ids) + (0 if tells else len(cached.req_ids)))
        if lengths != [len(cached.req_ids)] * len(lengths):
            yield [None, "lengths of scheduled_cached_reqs", lengths, len(cached.req_ids)]
            return
        resumed = {
            name
            for name in cached.req_ids
            if name not in before.running or self._was_preempted(name)
        }
        whole = (
            {}
            if self._v2
            else {
                name: requests[name]._all_token_ids
                for name in cached.req_ids
                if name in requests and name not in before.batch
            }
        )
        yield from self._rows(
            "",
            ("resumed_req_ids", cached.resumed_req_ids, set() if self._v2 else resumed),
            ("all_token_ids", cached.all_token_ids, whole),
            *_odd(cached, CachedRequestData),
        )
        for i, name in enumerate(cached.req_ids):
            if name not in scheduled or name not in requests:
                continue
            start, line = self._line(name, output)
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            yield from self._rows(
                name,
                ("num_computed_tokens", cached.num_computed_tokens[i], start),
                (
                    "num_output_tokens",
                    cached.num_output_tokens[i],
                    len(line) - requests[name].num_prompt_tokens,
                ),
                (
                    "new_token_ids",
                    cached.new_token_ids[i] if tells else None,
                    line[start : start + scheduled[name] - drafts] if tells else None,
                ),
            )
        yield from self._rows("", *self._whole_step(output, views), *_odd(output, SchedulerOutput))

    def _whole_step(
        self, output: SchedulerOutput, views: Mapping[str, View]
    ) -> Iterator[tuple[str, Any, Any]]:
        loads = getattr(output.kv_connector_metadata, "loads", [])
        yield (
            "total_num_scheduled_tokens",
            output.total_num_scheduled_tokens,
            sum(output.num_scheduled_tokens.values()),
        )
        yield (
            "num_spec_tokens_to_schedule",
            output.num_spec_tokens_to_schedule,
            (self._scheduler.num_spec_tokens),
        )
        yield "has_sync_kv_loads", output.has_sync_kv_loads, any(not x.is_async for x in loads)
        for load in loads:
            table = [block.block_id for block in self._tables.get(load.request_id, ())]
            yield f"blocks of {load.request_id}'s load", load.block_ids, table
        yield "drafts without tokens", output.scheduled_spec_decode_tokens.keys() - views, set()
        # vLLM counts the blocks of a deferred free as held though they are in nobody's table, and
        # then claims a common prefix that a scheduled request does not share.
        common = 0 if self._scheduler.defer_block_free else common_prefix_blocks(output)
        heads = {tuple(view.table[:common]) for view in views.values()}
        yield "num_common_prefix_blocks", len(heads) > 1, False

    def _notes(self, output: SchedulerOutput) -> Iterator[Row]:
        """Who has ended and who was preempted: told of, each once."""
        requests = self._scheduler.requests
        ended = {
            name for name in self._untold if name not in requests or requests[name].is_finished()
        }
        preempted = {
            name
            for name, q in requests.items()
            if not q.is_finished() and self._was_preempted(name)
        }
        told = {name for name in output.preempted_req_ids or () if name not in ended}
        known = self._workers[0].requests.keys()
        yield from self._rows(
            "",
            ("finished_req_ids", output.finished_req_ids, ended),
            ("preempted_req_ids", told, preempted),
            ("kept after its end", {name for name in known if name not in requests}, set()),
        )
        self._untold -= ended
        self._preemptions = {name: q.num_preemptions for name, q in requests.items()}
        taken = output.num_scheduled_tokens
        self._proposed = {name: d for name, d in self._proposed.items() if name not in taken}

    def _was_preempted(self, name: str) -> bool:
        """Whether a request was preempted since the last step was sent."""
        q = self._scheduler.requests.get(name)
        return q is not None and q.num_preemptions > self._preemptions.get(name, 0)

    def _rows(self, name: str, *compared: tuple[str, Any, Any]) -> Iterator[Row]:
        for field, ours, theirs in compared:
            if ours != theirs:
                yield [self._number(name), field, self._plain(ours), self._plain(theirs)]

    def _plain(self, value: Any) -> Any:
        """A value as it can be written: numbers of requests for ids, lists for sets."""
        if isinstance(value, str):
            return self._numbers.get(value, value)
        if isinstance(value, dict):
            return {self._plain(key): self._plain(one) for key, one in value.items()}
        if isinstance(value, (set, frozenset)):
            return sorted(map(self._plain, value), key=str)
        if isinstance(value, (list, tuple)):
            return [self._plain(one) for one in value]
        return value if value is None or isinstance(value, (bool, int)) else repr(value)


def _odd(data: Any, of: type) -> list[tuple[str, Any, Any]]:
    """The fields that text with full attention never sets, where they are set all the same."""
    return [
        (name, getattr(data, name), default)
        for name, default in _DEFAULTS[of]
        if getattr(data, name, default) != default
    ]


def _defaults(of: type) -> list[tuple[str, Any]]:
    """The fields that this release has, with their own defaults; what is empty where one has none.

    The test of the inventory holds that the reference has all of them.
    """
    always = ALWAYS_DEFAULT[of.__name__]
    return [
        (field.name, always[field.name] if field.default is MISSING else field.default)
        for field in fields(of)
        if field.name in always
    ]


_DEFAULTS = {of: _defaults(of) for of in (SchedulerOutput, NewRequestData, CachedRequestData)}

SENDS_COMMON_PREFIX = any(
    field.name == "num_common_prefix_blocks" and field.default_factory is MISSING
    for field in fields(SchedulerOutput)
)
"""Whether every step says how many blocks its requests share: a release may leave it empty."""


def common_prefix_blocks(output: SchedulerOutput) -> int:
    """The blocks that all running requests share, as the step says; 0 where it need not say."""
    return output.num_common_prefix_blocks[0] if SENDS_COMMON_PREFIX else 0
