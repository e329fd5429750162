"""What the model and vLLM must agree on, read off the model.

`observe` gives the same flat list that the driver reads off the real classes, `operation` the call
that stands for an action, `expected_result` what that call must return. Block numbers are compared
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvproof.model import connector, scheduler
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.mends import Mend
from kvproof.model.options import driver_values
from kvproof.model.rules import Rule
from kvproof.model.scope import STOP_TOKEN, Scope
from kvproof.model.state import Status
from kvproof.native.record import Record
from kvproof.trace.action_kinds import ACTION_KINDS, draft_tokens, sampled_tokens
from kvproof.trace.actions import Action
from kvproof.vllm import protocol

_UNKNOWN = (Status.ABSENT, Status.GONE)
UNSTATED = "unstated"
"""In the place of something that the model does not state."""

WORKERS_OWN = ("disagreements", "tokens", "num_outputs", "samples")
"""What the worker makes of a step; without a rule that may be something else than is meant."""


_ON_DEVICE = [-1]
_REASONS = {
    Status.FINISHED_STOPPED: "stop",
    Status.FINISHED_LENGTH_CAPPED: "length",
    Status.FINISHED_ERROR: "error",
}


_NOTHING: Mapping[int, Any] = {}


class Past(NamedTuple):
    """What a run has come by that its state does not tell and that is sent or told later.

    `batch` are the requests of the last step, `hits` the local and external tokens that each
    request had at its last admission before it was ever preempted, `outputs` the tokens that it
    was given. Never changed.
    """

    batch: frozenset[int] = frozenset()
    hits: Mapping[int, tuple[int, int]] = _NOTHING
    outputs: Mapping[int, tuple[int, ...]] = _NOTHING


EVERYTHING_IN_LINE = Past()
"""The past of a run of which no more is known than that each request was given its next tokens."""


def scope_values(scope: Scope) -> dict[str, Any]:
    """The scope as the driver takes it, each request with its time of arrival."""
    values = driver_values(scope) | {"stop_token": STOP_TOKEN}
    for r, request in enumerate(values["requests"]):
        if request["arrival"] is None:
            request["arrival"] = r
    return values


def new_engine(scope: Scope, rules_off: Sequence[str] = ()) -> list[Any]:
    """The driver's move to a fresh engine of a scope, its mends made, without these guards."""
    return ["new", scope_values(scope), list(rules_off), list(scope.mends)]


def _queue(queue: Any, length: int) -> list[int]:
    return [r - 1 for r in queue[:length].tolist()]


def _flags(field: Any) -> list[int]:
    return [r for r, flag in enumerate(field.tolist()) if flag]


def _all_tokens(compiled: Compiled, s: Record, r: int, past: Past) -> list[int]:
    """The request's tokens: its prompt and what it was given; its line if that is not known."""
    given = past.outputs.get(r)
    if given is None:
        return list(compiled.tokens[r][: int(s.num_tokens[r])])
    return [*compiled.scope.requests[r].prompt, *given]


def _spec_tokens(compiled: Compiled, s: Record, r: int) -> list[int]:
    num_drafts = int(s.num_drafts[r])
    if compiled.scope.async_scheduling:
        return _ON_DEVICE * num_drafts
    return draft_tokens(compiled, s, r, num_drafts)


def _request(compiled: Compiled, s: Record, r: int, past: Past) -> list[Any]:
    num_tokens = int(s.num_tokens[r])
    return [
        r,
        Status(int(s.status[r])).name,
        int(s.num_computed[r]),
        num_tokens,
        num_tokens - int(compiled.c.prompt_len[r]),
        int(s.placeholders[r]),
        int(s.in_flight[r]),
        int(s.stale[r]),
        bool(s.drop_stale[r]),
        bool(s.prefill_chunk[r]),
        bool(s.was_preempted[r]),
        int(s.last_seq[r]),
        int(s.decode_wait[r]),
        int(s.num_published[r]),
        _table(s, r),
        _all_tokens(compiled, s, r, past),
        True,
        _spec_tokens(compiled, s, r),
    ]


def _table(s: Record, r: int) -> list[int]:
    return list(s.block_table[r, : int(s.num_blocks[r])].tolist())


def _step_tables(s: Record, order: list[int]) -> dict[int, list[int]]:
    """The block table of each scheduled request that its workers know, as they have it."""
    if not s.worker_len.size:
        return {r: _table(s, r) for r in order}
    known = [r for r in order if s.worker_len[r]]
    return {r: list(s.worker_table[r, : int(s.worker_len[r]) - 1].tolist()) for r in known}


def _known(s: Record) -> list[int]:
    return [r for r, status in enumerate(s.status.tolist()) if status not in _UNKNOWN]


def _prefix(compiled: Compiled, code: int) -> list[Any]:
    """What a published hash tells apart: without its rules no salt, nothing before the block."""
    salt, tokens = compiled.prefixes[code]
    if not compiled.c.rules[Rule.hash_includes_salt]:
        salt = ""
    if not compiled.c.rules[Rule.hash_whole_prefix]:
        block = tokens[-compiled.scope.block_size :]
        tokens = (0,) * (len(tokens) - len(block)) + block
    return [salt, *tokens]


def observe(compiled: Compiled, s: Record, past: Past = EVERYTHING_IN_LINE) -> list[Any]:
    """Everything of a state that the real scheduler has too, in the order of the protocol.

    `past` is that of the run that led to it.
    """
    known = _known(s)
    free = s.free_queue[: s.num_free].tolist()
    hashes = s.block_hash.tolist()
    ranks = s.hash_rank.tolist()
    cached = []
    for code in sorted({code for code in hashes if code}):
        blocks = [b for b, published in enumerate(hashes) if published == code]
        cached.append([_prefix(compiled, code), sorted(blocks, key=ranks.__getitem__)])
    steps = []
    for d in range(s.num_steps):
        order = _queue(s.step_order[d], int(s.step_len[d]))
        steps.append([[r, int(s.step_tokens[d, r])] for r in order])
    values = {
        "requests": [_request(compiled, s, r, past) for r in known],
        "running": _queue(s.running, s.num_running),
        "waiting": _queue(s.waiting, s.num_waiting),
        "kv_holding_waiting": _queue(s.kv_holding, s.num_kv_holding),
        "free": free,
        "free_back": free[::-1],
        "num_free": s.num_free,
        "ref_cnt": s.ref_cnt.tolist(),
        "cached": sorted(cached),
        "block_hash": [_prefix(compiled, code) if code else None for code in hashes],
        "deferred": [
            [int(s.deferred_fence[q]), s.deferred_blocks[q, : int(s.deferred_len[q])].tolist()]
            for q in range(s.num_deferred)
        ],
        "seq_ahead": s.seq_ahead,
        "recved": _flags(s.load_done),
        "failed": _flags(s.load_failed),
        "finished": _flags(s.finished_note),
        "reset_preempted": _flags(s.preempted_note),
        "inflight_prefills": _flags(s.inflight_prefill),
        "in_flight": steps,
        "pause": s.pause,
        "has_requests": bool(scheduler.has_requests(s, compiled.c)),
        "connector": [
            [r, bool(s.load_used[r]), int(s.asks_left[r])]
            for r in known
            if compiled.c.external_tokens[r] and not connector.is_finished(int(s.status[r]))
        ],
        "leaks": UNSTATED if compiled.scope.rules_off else [],
    }
    return [values[name] for name in protocol.OBSERVATION]


def operation(compiled: Compiled, before: Record, action: Action, report: Record) -> list[Any]:
    """The driver's operation for an action that the model has taken from `before`."""
    return ACTION_KINDS[action.kind].operation(compiled, before, action, report)


def expected_result(
    compiled: Compiled,
    before: Record,
    after: Record,
    action: Action,
    report: Record,
    past: Past = EVERYTHING_IN_LINE,
) -> Any:
    """What the driver's operation must return, in the driver's form."""
    if action.kind == Kind.SCHEDULE:
        return _step(compiled, before, after, report, past)
    if action.kind == Kind.OUTPUT:
        return _outputs(compiled, before, after, report, past)
    return ACTION_KINDS[action.kind].returns(report)


def passed(
    compiled: Compiled, before: Record, after: Record, action: Action, report: Record, past: Past
) -> Past:
    """What a run has come by after one more action, taken from `before`."""
    if action.kind == Kind.RESET_PREFIX_CACHE and action.running and report.reset_ok:
        return past._replace(batch=frozenset())
    if action.kind == Kind.OUTPUT:
        delivered = _delivered(compiled, before, report)
        given = {r: (*past.outputs.get(r, ()), *tokens) for r, tokens in delivered.items()}
        return past._replace(outputs={**past.outputs, **given}) if given else past
    if action.kind != Kind.SCHEDULE:
        return past
    hits = dict(past.hits)
    for r in range(len(before.status)):
        looked_up = _computed(before, r) == 0 and not before.was_preempted[r]
        if compiled.c.mends[Mend.tell_loaded_by_blocks] and not before.load_failed[r]:
            looked_up = looked_up and not before.num_blocks[r]
        if looked_up and (report.admitted[r] or report.new_load[r]):
            local = int(report.adopted[r]) * compiled.scope.block_size
            external = after.load_tokens[r] if report.new_load[r] else report.sync_load[r]
            hits[r] = local, int(external)
    batch = frozenset(_queue(report.order, report.num_scheduled))
    return past._replace(batch=batch, hits=hits)


def _computed(s: Record, r: int) -> int:
    """Computed tokens of a request that waits, as its next admission finds them."""
    computed = int(s.num_computed[r])
    is_loaded = s.status[r] == Status.WAITING_FOR_REMOTE_KVS and computed == s.num_tokens[r]
    return computed - 1 if is_loaded else computed


def _step(
    compiled: Compiled, before: Record, after: Record, report: Record, past: Past
) -> dict[str, Any]:
    scope = compiled.scope
    order = _queue(report.order, report.num_scheduled)
    d, rules = after.num_steps - 1, compiled.c.rules
    tables = _step_tables(after, order)
    drafts = {r: int(report.drafts[r]) for r in order}
    start = {r: int(report.start[r]) for r in order}
    end = {r: start[r] + int(report.scheduled[r]) - drafts[r] for r in order}
    samples = {r: bool(after.step_samples[d, r]) for r in order}
    waiting = {r: int(after.placeholders[r]) for r in order}
    if scope.async_scheduling:
        waiting = {r: waiting[r] - samples[r] * (1 + drafts[r]) for r in order}
    lines = {r: [*_all_tokens(compiled, after, r, past), *_ON_DEVICE * waiting[r]] for r in order}
    num_outputs = {r: len(lines[r]) - int(compiled.c.prompt_len[r]) for r in order}
    admitted = {r: int(report.admitted[r]) for r in order}
    running = [r for r in order if not admitted[r]]
    new = [r for r in order if admitted[r] == 1]
    resumed = [r for r in order if admitted[r] == 2]
    if scope.v2_model_runner and rules[Rule.send_resumed_as_new]:
        new, resumed = new + resumed, []
    tells = scope.pipeline_parallel_size > 1 and not scope.async_scheduling
    sent_cached = []
    sent = {r: _sent_blocks(compiled, after, report, r) for r in order}
    for r in running + resumed:
        is_new_to_batch = not scope.v2_model_runner and r not in past.batch
        sent_cached.append(
            [
                r,
                sent[r] or None,
                start[r],
                num_outputs[r],
                lines[r][start[r] : end[r]] if tells else None,
                _all_tokens(compiled, after, r, past) if is_new_to_batch else None,
            ]
        )
    victims = _queue(report.victims, report.num_victims)
    preempted = sorted({*_flags(before.preempted_note), *victims})
    proposed = {
        r: _ON_DEVICE * n
        if scope.async_scheduling or admitted[r]
        else draft_tokens(compiled, before, r, n)
        for r, n in drafts.items()
        if n and r in tables
    }
    loads = _loads(after, report)
    step = {
        "disagreements": [],
        "scheduled": [[r, int(report.scheduled[r])] for r in order],
        "start": {r: start[r] for r in tables},
        "tokens": {r: lines[r][start[r] : end[r]] for r in order},
        "drafts": proposed,
        "num_outputs": num_outputs,
        "samples": samples,
        "tables": tables,
        "sent_new": [
            [
                r,
                list(scope.requests[r].prompt),
                _all_tokens(compiled, after, r, past) if scope.v2_model_runner else None,
                sent[r],
                start[r],
            ]
            for r in new
        ],
        "sent_cached": sent_cached,
        "resumed": sorted(resumed) if rules[Rule.replace_resumed_table] else [],
        "preempted": preempted if rules[Rule.tell_preempted_requests] else [],
        "finished": _flags(before.finished_note) if rules[Rule.tell_finished_requests] else [],
        "loads": loads,
        "has_sync_loads": any(not is_async for _r, _start, _tokens, is_async, _blocks in loads),
        "common": _common_prefix_blocks(after) if scope.prefix_caching else 0,
        "total": sum(int(report.scheduled[r]) for r in order),
        "num_drafts_next": scope.num_speculative_tokens,
    }
    return step | dict.fromkeys(WORKERS_OWN, UNSTATED) if scope.rules_off else step


def _sent_blocks(compiled: Compiled, after: Record, report: Record, r: int) -> list[int]:
    """The blocks that a step sends of a request: its whole table, or what that grew by."""
    rules, table = compiled.c.rules, _table(after, r)
    if not report.admitted[r]:
        return table[int(report.first_new[r]) :] if rules[Rule.send_table_growth] else []
    return table if rules[Rule.send_adopted_blocks] else table[int(report.first_new[r]) :]


def _loads(after: Record, report: Record) -> list[list[Any]]:
    """The loads that start with a step: request, first token, tokens, kind and blocks."""
    loads = []
    for r in range(len(after.status)):
        if report.new_load[r]:
            start, tokens, is_async = int(after.load_start[r]), int(after.load_tokens[r]), True
        elif report.sync_load[r]:
            start, tokens = int(report.sync_load_start[r]), int(report.sync_load[r])
            is_async = False
        else:
            continue
        loads.append([r, start, tokens, is_async, _table(after, r)])
    return loads


def _common_prefix_blocks(s: Record) -> int:
    """Leading blocks of the first running request that every block holder shares."""
    if s.num_running == 0:
        return 0
    holders = sum(1 for n in s.num_blocks.tolist() if n)
    first = int(s.running[0]) - 1
    common = 0
    for b in s.block_table[first, : int(s.num_blocks[first])].tolist():
        if s.ref_cnt[b] != holders:
            break
        common += 1
    return common


def _delivered(compiled: Compiled, before: Record, report: Record) -> dict[int, list[int]]:
    """The tokens that an output gives to each request; empty for other actions."""
    if not report.delivered.any():
        return {}
    sampled = sampled_tokens(compiled, before, report)
    return {
        r: sampled[r][: int(report.delivered[r])]
        for r in range(len(before.status))
        if report.delivered[r]
    }


def _outputs(
    compiled: Compiled, before: Record, after: Record, report: Record, past: Past
) -> dict[int, Any]:
    delivered = _delivered(compiled, before, report)
    outputs: dict[int, Any] = {}
    for r in range(len(before.status)):
        finished = int(report.finished[r])
        tokens = delivered.get(r, [])
        if not (tokens or finished):
            continue
        is_first = bool(tokens) and before.num_tokens[r] == compiled.c.prompt_len[r]
        outputs[r] = [
            tokens,
            _REASONS[Status(finished)] if finished else None,
            STOP_TOKEN if STOP_TOKEN in (*past.outputs.get(r, ()), *tokens) else None,
            _prefill_stats(compiled, before, after, r, past) if is_first else None,
            None,
            {},
        ]
    return outputs


def _prefill_stats(
    compiled: Compiled, before: Record, after: Record, r: int, past: Past
) -> list[int]:
    """What a client is told of its prompt: in the order of protocol.PREFILL_STATS."""
    hits = past.hits.get(r, (0, 0))
    prompt, cached = int(compiled.c.prompt_len[r]), sum(hits)
    # Freed blocks keep their hashes, so those of a request that ends here are still to be seen.
    published = [i for i, b in enumerate(_table(before, r), start=1) if after.block_hash[b]]
    in_cache = max(published, default=0) * compiled.scope.block_size
    created = max(0, min(in_cache, prompt) - cached)
    return [prompt, prompt - cached, cached, *hits, created]
