"""What a model runner knows, from the steps that it is sent and from what it samples itself.

Stands for `_update_states` of vllm/v1/worker/gpu_model_runner.py (V1) and for `finish_requests`,
`add_requests` and `update_requests` of vllm/v1/worker/gpu/model_runner.py (V2), which are sent
different things. It never looks at the scheduler.

A token that a step in flight is going to sample is known by its place only: the token list has a
number below zero there, one for each step, until `answered` gives the values. Steps run first in,
first out, so what a step samples is there when the next one is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

ON_DEVICE = -1
"""Stands in a view for a token whose value only the device knows."""


class Kept(NamedTuple):
    """What the runner keeps of a request; never changed.

    `computed` is where its next step starts by the runner's own count: what it is sent for the V2
    runner to agree with, None after a failed load.
    """

    num_prompt: int
    tokens: tuple[int, ...]
    table: tuple[int, ...]
    computed: int | None


class View(NamedTuple):
    """What the runner is going to do for one request of a step.

    `tokens` are those at the positions from `start` on, the `drafts` behind them; ON_DEVICE where
    the value is not known here. `num_outputs` counts those that it has, on the device or not.
    """

    start: int
    tokens: list[int]
    drafts: list[int]
    table: list[int]
    num_outputs: int
    samples: bool


class Mismatch(NamedTuple):
    """What one request was sent does not fit what the runner keeps of it."""

    request_id: str
    field: str
    kept: Any
    sent: Any


class Saved(NamedTuple):
    """A copy of a worker."""

    requests: dict[str, Kept]
    batch: frozenset[str]
    newest: int
    in_flight: tuple[tuple[int, dict[str, int]], ...]


class Worker:
    """One pipeline stage: the last one, which samples, or the first one, which reads tokens."""

    def __init__(self, *, v2: bool, is_async: bool, is_last: bool) -> None:
        self.requests: dict[str, Kept] = {}
        self.batch: frozenset[str] = frozenset()
        self._v2 = v2
        self._is_async = is_async
        self._is_last = is_last
        # The first stage of the synchronous V1 runner does not see what the last one samples.
        self._is_told_tokens = not (v2 or is_async or is_last)
        self._newest = 0
        self._in_flight: tuple[tuple[int, dict[str, int]], ...] = ()

    def take(self, output: Any) -> tuple[dict[str, View], list[Mismatch]]:
        """Take a SchedulerOutput: the view of each scheduled request, in the order of the step."""
        wrong: list[Mismatch] = []
        self._forget(output)
        for new in output.scheduled_new_reqs:
            self._add(new, wrong)
        self._update(output, wrong)
        self.batch = frozenset(output.num_scheduled_tokens)
        return self._views(output, wrong), wrong

    def answered(self, sampled: Mapping[str, list[int]], invalid: Collection[int]) -> None:
        """The oldest step has run: what it sampled, and the blocks that failed to load.

        What a request samples from such a block is nobody's token. A failed load makes the
        scheduler go back to a position of its own choice; from then on the V2 runner's own count
        is taken from what it is sent.
        """
        (number, drafts), *rest = self._in_flight
        self._in_flight = tuple(rest)
        for name, num_drafts in drafts.items():
            kept = self.requests.get(name)
            if kept is None or number not in kept.tokens or set(kept.table) & set(invalid):
                continue
            values = sampled.get(name, [])
            first, places = kept.tokens.index(number), kept.tokens.count(number)
            self.requests[name] = kept._replace(
                tokens=(
                    *kept.tokens[:first],
                    *values[:places],
                    *kept.tokens[first + places :],
                ),
                computed=None
                if kept.computed is None
                else kept.computed - (1 + num_drafts - len(values)),
            )
        if invalid:
            for name, kept in self.requests.items():
                self.requests[name] = kept._replace(computed=None)

    def failed(self) -> None:
        """The step could not be taken: it is in flight and samples nothing."""
        self._in_flight = (*self._in_flight, (self._newest, {}))

    def save(self) -> Saved:
        """A copy of everything."""
        return Saved(self.requests.copy(), self.batch, self._newest, self._in_flight)

    def restore(self, saved: Saved) -> None:
        """Go back to a copy, which stays valid."""
        self.requests = saved.requests.copy()
        self.batch, self._newest, self._in_flight = saved[1:]

    def _forget(self, output: Any) -> None:
        for name in output.finished_req_ids:
            self.requests.pop(name, None)
        if self._v2:
            for name in output.preempted_req_ids or ():
                self.requests.pop(name, None)
        # The persistent batch of V1: those that are not scheduled leave it, and stay known.
        stays = output.num_scheduled_tokens.keys() - output.scheduled_cached_reqs.resumed_req_ids
        self.batch = (self.batch & stays) - output.finished_req_ids

    def _add(self, new: Any, wrong: list[Mismatch]) -> None:
        name = new.req_id
        if name in self.requests:
            wrong.append(Mismatch(name, "known", True, "sent as new"))
        tokens = new.prefill_token_ids if self._v2 else new.prompt_token_ids
        if tokens is None:
            wrong.append(Mismatch(name, "prefill_token_ids", "needed", None))
            tokens = new.prompt_token_ids or ()
        (table,) = new.block_ids
        self.requests[name] = Kept(
            len(new.prompt_token_ids or ()), tuple(tokens), tuple(table), new.num_computed_tokens
        )

    def _update(self, output: Any, wrong: list[Mismatch]) -> None:
        cached = output.scheduled_cached_reqs
        whole_tables = getattr(output, "block_table_updates", None) or {}
        for name, table in whole_tables.items():
            if name in self.requests:
                self.requests[name] = self.requests[name]._replace(table=tuple(table[0]))
        for i, name in enumerate(cached.req_ids):
            kept = self.requests.get(name)
            if kept is None:
                wrong.append(Mismatch(name, "known", False, "sent as cached"))
                continue
            num_computed = cached.num_computed_tokens[i]
            if self._v2:
                if kept.computed not in (num_computed, None):
                    wrong.append(Mismatch(name, "num_computed_tokens", kept.computed, num_computed))
            else:
                kept = self._with_tokens(name, kept, cached, i, wrong)
            (new_blocks,) = cached.new_block_ids[i] or ((),)
            if not self._v2 and name in cached.resumed_req_ids:
                if cached.new_block_ids[i] is None:
                    wrong.append(Mismatch(name, "new_block_ids", "needed: it is resumed", None))
                kept = kept._replace(table=tuple(new_blocks))
            elif name not in whole_tables:
                kept = kept._replace(table=(*kept.table, *new_blocks))
            self.requests[name] = kept._replace(computed=num_computed)

    def _with_tokens(
        self, name: str, kept: Kept, cached: Any, i: int, wrong: list[Mismatch]
    ) -> Kept:
        """V1: what the step says of a cached request's tokens, taken in."""
        prompt, tokens = kept.num_prompt, kept.tokens
        num_outputs = cached.num_output_tokens[i]
        if self._is_told_tokens:
            told = cached.new_token_ids[i] if cached.new_token_ids else []
            missing = cached.num_computed_tokens[i] + len(told) - len(tokens)
            if missing > 0:
                tokens = (*tokens, *told[-missing:])
        elif self._is_last:
            tokens = tokens[: prompt + num_outputs]
        if name not in self.batch and self._is_async and num_outputs > 0:
            whole = cached.all_token_ids.get(name)
            if whole is None:
                wrong.append(
                    Mismatch(name, "all_token_ids", "needed: it is not in the batch", None)
                )
            else:
                tokens = (*tokens[:prompt], *whole[-num_outputs:])
        return kept._replace(tokens=tokens)

    def _views(self, output: Any, wrong: list[Mismatch]) -> dict[str, View]:
        self._newest -= 1
        number = self._newest
        views: dict[str, View] = {}
        samples: dict[str, int] = {}
        sent = {new.req_id for new in output.scheduled_new_reqs}
        sent.update(output.scheduled_cached_reqs.req_ids)
        for name in sent ^ output.num_scheduled_tokens.keys():
            wrong.append(Mismatch(name, "scheduled", name in sent, name not in sent))
        for name, scheduled in output.num_scheduled_tokens.items():
            kept = self.requests.get(name)
            if kept is None or kept.computed is None:
                continue
            drafts = list(output.scheduled_spec_decode_tokens.get(name, ()))
            start, end = kept.computed, kept.computed + scheduled
            is_sampled = end >= len(kept.tokens)
            views[name] = View(
                start,
                [max(token, ON_DEVICE) for token in kept.tokens[start : end - len(drafts)]],
                drafts,
                list(kept.table),
                len(kept.tokens) - kept.num_prompt,
                is_sampled,
            )
            tokens = kept.tokens
            if is_sampled and not self._is_told_tokens:
                samples[name] = len(drafts)
                tokens += (number,) * (1 + len(drafts))
            self.requests[name] = kept._replace(tokens=tokens, computed=end)
        self._in_flight = (*self._in_flight, (number, samples))
        return views
