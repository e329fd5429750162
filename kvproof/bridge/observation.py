"""What the model and vLLM must agree on, read off the model.

`observe` gives the same flat list that the driver reads off the real classes, `operation` the call
that stands for an action, `expected_result` what that call must return. Block numbers are compared
as they are.
"""

from __future__ import annotations

from typing import Any

from kvproof.model import connector, scheduler
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.options import driver_values
from kvproof.model.rules import Rule
from kvproof.model.scope import STOP_TOKEN, Scope
from kvproof.model.state import Status
from kvproof.native.record import Record
from kvproof.trace.action_kinds import ACTION_KINDS, sampled_tokens
from kvproof.trace.actions import Action
from kvproof.vllm import protocol

_UNKNOWN = (Status.ABSENT, Status.GONE)


def scope_values(scope: Scope) -> dict[str, Any]:
    """The scope as the driver takes it, each request with its time of arrival."""
    values = driver_values(scope) | {"stop_token": STOP_TOKEN}
    for r, request in enumerate(values["requests"]):
        if request["arrival"] is None:
            request["arrival"] = r
    return values


def _queue(queue: Any, length: int) -> list[int]:
    return [r - 1 for r in queue[:length].tolist()]


def _flags(field: Any) -> list[int]:
    return [r for r, flag in enumerate(field.tolist()) if flag]


def _request(compiled: Compiled, s: Record, r: int) -> list[Any]:
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
        int(s.num_drafts[r]),
        bool(s.prefill_chunk[r]),
        bool(s.was_preempted[r]),
        int(s.last_seq[r]),
        int(s.decode_wait[r]),
        int(s.num_published[r]),
        s.block_table[r, : int(s.num_blocks[r])].tolist(),
    ]


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


def observe(compiled: Compiled, s: Record) -> list[Any]:
    """Everything of a state that the real scheduler has too, in the order of the protocol."""
    known = _known(s)
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
        "requests": [_request(compiled, s, r) for r in known],
        "running": _queue(s.running, s.num_running),
        "waiting": _queue(s.waiting, s.num_waiting),
        "kv_holding_waiting": _queue(s.kv_holding, s.num_kv_holding),
        "free": s.free_queue[: s.num_free].tolist(),
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
    }
    return [values[name] for name in protocol.OBSERVATION]


def operation(compiled: Compiled, before: Record, action: Action, report: Record) -> list[Any]:
    """The driver's operation for an action that the model has taken from `before`."""
    return ACTION_KINDS[action.kind].operation(compiled, before, action, report)


def expected_result(
    compiled: Compiled, before: Record, after: Record, action: Action, report: Record
) -> Any:
    """What the driver's operation must return, in the driver's form."""
    if action.kind == Kind.SCHEDULE:
        return _step(compiled, before, after, report)
    if action.kind == Kind.OUTPUT:
        return _outputs(compiled, before, report)
    return ACTION_KINDS[action.kind].returns(report)


def _step(compiled: Compiled, before: Record, after: Record, report: Record) -> dict[str, Any]:
    order = _queue(report.order, report.num_scheduled)
    d = after.num_steps - 1
    new = [r for r in order if report.admitted[r] == 1]
    resumed = [r for r in order if report.admitted[r] == 2]
    if compiled.scope.v2_model_runner:
        new, resumed = new + resumed, []
    victims = _queue(report.victims, report.num_victims)
    loads = []
    for r in range(len(after.status)):
        if report.new_load[r]:
            start, tokens, is_async = int(after.load_start[r]), int(after.load_tokens[r]), True
        elif report.sync_load[r]:
            start, tokens = int(report.sync_load_start[r]), int(report.sync_load[r])
            is_async = False
        else:
            continue
        blocks = after.block_table[r, : int(after.num_blocks[r])].tolist()
        loads.append([r, start, tokens, is_async, blocks])
    return {
        "scheduled": [[r, int(report.scheduled[r])] for r in order],
        "start": {r: int(report.start[r]) for r in order},
        "drafts": {r: int(report.drafts[r]) for r in order if report.drafts[r]},
        "samples": {r: bool(after.step_samples[d, r]) for r in order},
        "tables": {r: after.block_table[r, : int(after.num_blocks[r])].tolist() for r in order},
        "new": new,
        "resumed": sorted(resumed),
        "preempted": sorted({*_flags(before.preempted_note), *victims}),
        "finished": _flags(before.finished_note),
        "loads": sorted(loads),
        "common": _common_prefix_blocks(after) if compiled.scope.prefix_caching else 0,
        "total": sum(int(report.scheduled[r]) for r in order),
    }


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


def _outputs(compiled: Compiled, before: Record, report: Record) -> dict[int, Any]:
    sampled = sampled_tokens(compiled, before, report)
    reasons = {
        Status.FINISHED_STOPPED: "stop",
        Status.FINISHED_LENGTH_CAPPED: "length",
        Status.FINISHED_ERROR: "error",
    }
    outputs = {}
    for r in range(len(before.status)):
        delivered = int(report.delivered[r])
        finished = int(report.finished[r])
        if delivered or finished:
            tokens = sampled.get(r, [])[:delivered]
            outputs[r] = [tokens, reasons[Status(finished)] if finished else None]
    return outputs
