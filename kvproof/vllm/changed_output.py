"""vLLM made to send its workers something else than it means, one change at a time.

Runs in vLLM's interpreter, `python -m kvproof.vllm.changed_output FD`, and answers as the driver
does. The move `["change", name]` makes the change of that name to each SchedulerOutput that is
returned from then on; None ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from kvproof.vllm.driver import Driver, serve_on

Change = Callable[[Any, Any], None]

CHANGES: dict[str, Change] = {}
"""By name: what is done to the output of a scheduler."""


def _change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


def _blocks_of_new(to: Callable[[list[int]], list[int]]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            new.block_ids = (to(new.block_ids[0]),)

    return change


def _new_blocks(to: Callable[[list[int]], list[int] | None]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        for i, blocks in enumerate(cached.new_block_ids):
            if blocks is not None:
                changed = to(blocks[0])
                cached.new_block_ids[i] = None if changed is None else (changed,)

    return change


def _of_new(field: str, to: Callable[[Any], Any]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            if getattr(new, field) is not None:
                setattr(new, field, to(getattr(new, field)))

    return change


def _column(field: str, to: Callable[[Any], Any]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        setattr(cached, field, [to(value) for value in getattr(cached, field)])

    return change


def _rotated(field: str) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        column = getattr(output.scheduled_cached_reqs, field)
        column[:] = column[1:] + column[:1]

    return change


def _all_tokens(to: Callable[[list[int]], list[int]]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        cached.all_token_ids = {name: to(line) for name, line in cached.all_token_ids.items()}

    return change


def _drafts(to: Callable[[list[int]], list[int]]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        drafts = output.scheduled_spec_decode_tokens
        drafts.update({name: to(tokens) for name, tokens in drafts.items()})

    return change


def _whole(field: str, to: Callable[[Any], Any]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        setattr(output, field, to(getattr(output, field)))

    return change


def _loads(**to: Callable[[Any], Any]) -> Change:
    def change(_scheduler: Any, output: Any) -> None:
        metadata = output.kv_connector_metadata
        metadata.loads = [
            load._replace(**{name: by(getattr(load, name)) for name, by in to.items()})
            for load in metadata.loads
        ]

    return change


def _shifted(values: list[int]) -> list[int]:
    return [value + 1 for value in values]


def _last_wrong(values: list[int]) -> list[int]:
    return [*values[:-1], *(value + 1 for value in values[-1:])]


def _without_last(values: list[int]) -> list[int]:
    return values[:-1]


def _backwards(values: list[int]) -> list[int]:
    return values[::-1]


def _zeros(values: list[int]) -> list[int]:
    return [0] * len(values)


def _one_more(value: int) -> int:
    return value + 1


CHANGES |= {
    "new_blocks_are_zero": _blocks_of_new(_zeros),
    "last_block_of_new_is_missing": _blocks_of_new(_without_last),
    "last_block_of_new_is_twice_there": _blocks_of_new(lambda blocks: blocks + blocks[-1:]),
    "last_block_of_new_is_wrong": _blocks_of_new(_last_wrong),
    "blocks_of_new_are_backwards": _blocks_of_new(_backwards),
    "more_blocks_are_zero": _new_blocks(_zeros),
    "more_blocks_are_never_sent": _new_blocks(lambda _blocks: None),
    "more_blocks_are_others": _new_blocks(_shifted),
    "more_blocks_are_sent_twice": _new_blocks(lambda blocks: blocks * 2),
    "last_of_more_blocks_is_missing": _new_blocks(_without_last),
    "more_blocks_are_another_requests": _rotated("new_block_ids"),
    "prompt_is_shifted": _of_new("prompt_token_ids", _shifted),
    "first_prompt_token_is_wrong": _of_new("prompt_token_ids", lambda p: [p[0] + 1, *p[1:]]),
    "last_prompt_token_is_missing": _of_new("prompt_token_ids", _without_last),
    "last_prompt_token_is_wrong": _of_new("prompt_token_ids", _last_wrong),
    "sampling_is_another": _of_new("sampling_params", lambda _params: None),
    "computed_of_new_is_one_more": _of_new("num_computed_tokens", _one_more),
    "computed_of_new_is_zero": _of_new("num_computed_tokens", lambda _computed: 0),
    "prefill_is_shifted": _of_new("prefill_token_ids", _shifted),
    "last_prefill_token_is_missing": _of_new("prefill_token_ids", _without_last),
    "last_prefill_token_is_wrong": _of_new("prefill_token_ids", _last_wrong),
    "prefill_is_not_sent": _of_new("prefill_token_ids", lambda _line: None),
    "features_are_sent": _of_new("mm_features", lambda _features: ["an image"]),
    "computed_is_one_more": _column("num_computed_tokens", _one_more),
    "computed_is_one_less": _column("num_computed_tokens", lambda computed: computed - 1),
    "computed_is_another_requests": _rotated("num_computed_tokens"),
    "outputs_are_99": _column("num_output_tokens", lambda _outputs: 99),
    "outputs_are_one_less": _column("num_output_tokens", lambda outputs: outputs - 1),
    "outputs_are_another_requests": _rotated("num_output_tokens"),
    "new_tokens_are_wrong": _column("new_token_ids", _shifted),
    "new_tokens_are_not_sent": _column("new_token_ids", lambda _tokens: []),
    "known_tokens_are_shifted": _all_tokens(_shifted),
    "known_tokens_are_one_place_on": _all_tokens(lambda line: [line[0], *line[:-1]]),
    "last_known_token_is_missing": _all_tokens(_without_last),
    "last_known_token_is_wrong": _all_tokens(_last_wrong),
    "ids_are_backwards": _whole(
        "scheduled_cached_reqs", lambda cached: replace(cached, req_ids=cached.req_ids[::-1])
    ),
    "drafts_are_shifted": _drafts(lambda tokens: [abs(token) - 1 for token in tokens]),
    "drafts_are_backwards": _drafts(_backwards),
    "total_is_one_more": _whole("total_num_scheduled_tokens", _one_more),
    "common_prefix_is_one_more": _whole("num_common_prefix_blocks", lambda blocks: [blocks[0] + 1]),
    "a_block_is_zeroed": _whole("new_block_ids_to_zero", lambda _blocks: [1]),
    "a_block_is_copied": _whole("kv_cache_block_copies", lambda _copies: [(1, 2)]),
    "synchronous_loads_are_denied": _whole("has_sync_kv_loads", lambda there: not there),
    "one_draft_more_is_wanted": _whole("num_spec_tokens_to_schedule", _one_more),
    "an_encoder_input_is_scheduled": _whole("scheduled_encoder_inputs", lambda _: {"r": [0]}),
    "loads_go_elsewhere": _loads(block_ids=_zeros),
    "loads_start_later": _loads(start=_one_more),
    "loads_are_short": _loads(tokens=lambda tokens: tokens - 1),
    "loads_are_of_the_other_kind": _loads(is_async=lambda is_async: not is_async),
}


@_change
def whole_table_is_sent_again(scheduler: Any, output: Any) -> None:
    """Running requests get their whole table as new blocks."""
    cached = output.scheduled_cached_reqs
    for i, name in enumerate(cached.req_ids):
        cached.new_block_ids[i] = scheduler.kv_cache_manager.get_block_ids(name)


@_change
def hit_blocks_are_missing(scheduler: Any, output: Any) -> None:
    """An admitted request's table lacks what it found in the cache."""
    for new in output.scheduled_new_reqs:
        hit = new.num_computed_tokens // scheduler.block_size
        new.block_ids = (new.block_ids[0][hit:],)


@_change
def resumed_are_appended(_scheduler: Any, output: Any) -> None:
    """A resumed request's table is appended to the old one."""
    output.scheduled_cached_reqs.resumed_req_ids = set()


@_change
def running_are_resumed(_scheduler: Any, output: Any) -> None:
    """A running request's new blocks replace its table."""
    cached = output.scheduled_cached_reqs
    cached.resumed_req_ids = set(cached.req_ids)


@_change
def tables_are_swapped(_scheduler: Any, output: Any) -> None:
    """Two requests that come in get each other's table."""
    first, *_, last = output.scheduled_new_reqs * 2 or [None, None]
    if first is not last:
        first.block_ids, last.block_ids = last.block_ids, first.block_ids


@_change
def prefill_is_the_prompt_alone(_scheduler: Any, output: Any) -> None:
    """A request that comes back is sent without its outputs."""
    for new in output.scheduled_new_reqs:
        if new.prefill_token_ids is not None:
            new.prefill_token_ids = new.prompt_token_ids


@_change
def outputs_are_without_placeholders(scheduler: Any, output: Any) -> None:
    """What is on the device is not counted."""
    cached = output.scheduled_cached_reqs
    cached.num_output_tokens = [scheduler.requests[n].num_output_tokens for n in cached.req_ids]


@_change
def new_tokens_are_one_place_on(scheduler: Any, output: Any) -> None:
    """The first pipeline stage is told the tokens one position further."""
    cached = output.scheduled_cached_reqs
    for i, name in enumerate(cached.req_ids if cached.new_token_ids else ()):
        start = cached.num_computed_tokens[i] + 1
        line = scheduler.requests[name]._all_token_ids
        cached.new_token_ids[i] = line[start : start + output.num_scheduled_tokens[name]]


@_change
def known_tokens_are_sent_to_nobody(_scheduler: Any, output: Any) -> None:
    """A request that was not in the last step comes without its tokens."""
    output.scheduled_cached_reqs.all_token_ids = {}


@_change
def known_tokens_are_sent_to_all(scheduler: Any, output: Any) -> None:
    """Every request comes with its tokens."""
    cached = output.scheduled_cached_reqs
    cached.all_token_ids = {n: list(scheduler.requests[n]._all_token_ids) for n in cached.req_ids}


@_change
def known_tokens_are_the_prompt_alone(scheduler: Any, output: Any) -> None:
    """A request that was not in the last step comes without its outputs."""
    cached = output.scheduled_cached_reqs
    cached.all_token_ids = {n: scheduler.requests[n].prompt_token_ids for n in cached.all_token_ids}


@_change
def last_cached_request_is_not_sent(_scheduler: Any, output: Any) -> None:
    """A scheduled request is missing among those that are sent."""
    cached = output.scheduled_cached_reqs
    for column in (
        cached.req_ids,
        cached.new_block_ids,
        cached.num_computed_tokens,
        cached.num_output_tokens,
        cached.new_token_ids,
    ):
        del column[-1:]


@_change
def computed_is_one_row_short(_scheduler: Any, output: Any) -> None:
    """A column lacks its last value."""
    del output.scheduled_cached_reqs.num_computed_tokens[-1:]


@_change
def new_are_sent_twice(_scheduler: Any, output: Any) -> None:
    """A request that comes in is there twice."""
    output.scheduled_new_reqs = output.scheduled_new_reqs * 2


@_change
def last_new_request_is_not_sent(_scheduler: Any, output: Any) -> None:
    """A request that comes in is missing."""
    output.scheduled_new_reqs = output.scheduled_new_reqs[:-1]


@_change
def drafts_are_another_requests(_scheduler: Any, output: Any) -> None:
    """Requests get each other's drafts, as many as they have."""
    drafts = output.scheduled_spec_decode_tokens
    if len(drafts) > 1:
        first, *_, last = drafts
        one, other = drafts[first], drafts[last]
        common = min(len(one), len(other))
        drafts[first] = other[:common] + one[common:]
        drafts[last] = one[:common] + other[common:]


@_change
def drafts_are_not_sent(_scheduler: Any, output: Any) -> None:
    """Nobody has drafts."""
    output.scheduled_spec_decode_tokens = {}


@_change
def ends_are_told_late(scheduler: Any, output: Any) -> None:
    """Ends are told one step late."""
    late: frozenset[str] = getattr(scheduler, "_told_late", frozenset())
    scheduler._told_late = frozenset(output.finished_req_ids)
    output.finished_req_ids = set(late)


@_change
def ends_are_told_twice(scheduler: Any, output: Any) -> None:
    """Ends are told again with the next step."""
    again: frozenset[str] = getattr(scheduler, "_told_late", frozenset())
    scheduler._told_late = frozenset(output.finished_req_ids)
    output.finished_req_ids = output.finished_req_ids | again


@_change
def ends_are_not_told(_scheduler: Any, output: Any) -> None:
    """Ends are told to nobody."""
    output.finished_req_ids = set()


@_change
def an_end_is_told_that_is_none(scheduler: Any, output: Any) -> None:
    """A running request is told to have ended."""
    output.finished_req_ids = output.finished_req_ids | {q.request_id for q in scheduler.running}


@_change
def preemptions_are_not_told(_scheduler: Any, output: Any) -> None:
    """Preemptions are told to nobody."""
    output.preempted_req_ids = set()


@_change
def preemptions_are_told_late(scheduler: Any, output: Any) -> None:
    """Preemptions are told one step late."""
    late: frozenset[str] = getattr(scheduler, "_preempted_late", frozenset())
    scheduler._preempted_late = frozenset(output.preempted_req_ids)
    output.preempted_req_ids = set(late)


@_change
def a_preemption_is_told_that_is_none(scheduler: Any, output: Any) -> None:
    """A running request is told to be preempted."""
    output.preempted_req_ids = output.preempted_req_ids | {q.request_id for q in scheduler.running}


@_change
def tables_are_sent_anew(scheduler: Any, output: Any) -> None:
    """Whole tables come apart, with a block too many."""
    names = output.scheduled_cached_reqs.req_ids
    output.block_table_updates = {
        n: ([*scheduler.kv_cache_manager.get_block_ids(n)[0], 1],) for n in names
    } or None


class ChangedDriver(Driver):
    """The driver over a scheduler whose output is changed."""

    def __init__(self) -> None:
        super().__init__()
        self._change: Change | None = None
        schedule = Scheduler.schedule

        def changed(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            output = schedule(scheduler, *args, **kwargs)
            if self._change is not None:
                self._change(scheduler, output)
            return output

        Scheduler.schedule = changed

    def answer(self, operation: list[Any]) -> list[Any] | None:
        """The answer to one operation; None for a change."""
        if operation[0] != "change":
            return super().answer(operation)
        self._change = None if operation[1] is None else CHANGES[operation[1]]
        return None


def main() -> None:
    """Serve standard input; the argument is the descriptor to answer on."""
    serve_on(int(sys.argv[1]), ChangedDriver().answer)


if __name__ == "__main__":
    main()
