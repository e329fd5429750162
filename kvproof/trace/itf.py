"""Traces in the Informal Trace Format of Apalache, for its viewers and for other checkers.

The format: https://apalache-mc.org/docs/adr/015adr-trace.html. Integers are `{"#bigint": "..."}`,
functions `{"#map": [[key, value], ...]}`, sets `{"#set": [...]}`, sequences and records JSON's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.state import Load, Pause, Status
from kvproof.native.record import Record
from kvproof.trace.trace import Trace, replay

_FORMAT = "https://apalache-mc.org/docs/adr/015adr-trace.html"


def itf(trace: Trace) -> str:
    """The trace as JSON in the format; TraceError where an action is not enabled.

    State 0 is that of a fresh engine, state n the one after action n. `broken` is the set of the
    invariants that the action broke.
    """
    compiled = compile_scope(trace.scope)
    states = [_state(compiled, compiled.initial(), "start", ())]
    for moment in replay(trace):
        states.append(_state(compiled, moment.after, str(moment.action), moment.broken))
    document = {
        "#meta": {
            "format": "ITF",
            "format-description": _FORMAT,
            "source": f"kvproof {trace.tool}",
            "description": f"scope {trace.scope.name}, rules off: "
            f"{', '.join(trace.scope.rules_off) or 'none'}",
        },
        "params": [],
        "vars": list(states[0]),
        "states": [{"#meta": {"index": i}, **state} for i, state in enumerate(states)],
    }
    return json.dumps(document, indent=1) + "\n"


def _integer(value: int) -> dict[str, str]:
    return {"#bigint": str(int(value))}


def _integers(values: Iterable[int]) -> list[dict[str, str]]:
    return [_integer(value) for value in values]


def _by_number(values: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    return {"#map": [[_integer(number), value] for number, value in values]}


def _requests(queue: Any, length: int) -> list[dict[str, str]]:
    return _integers(int(r) - 1 for r in queue[:length])


def _state(
    compiled: Compiled, state: Record, action: str, broken: tuple[str, ...]
) -> dict[str, Any]:
    blocks = range(1, compiled.scope.num_blocks)
    return {
        "action": action,
        "broken": {"#set": list(broken)},
        "pause": Pause(int(state.pause)).name.lower(),
        "requests": _by_number(
            (r, _request(state, r)) for r in range(len(compiled.scope.requests))
        ),
        "running": _requests(state.running, state.num_running),
        "waiting": _requests(state.waiting, state.num_waiting),
        "kv_holding_waiting": _requests(state.kv_holding, state.num_kv_holding),
        "free_queue": _integers(state.free_queue[: state.num_free]),
        "ref_cnt": _by_number((b, _integer(state.ref_cnt[b])) for b in blocks),
        "published": _by_number(
            (b, _prefix(compiled, int(state.block_hash[b]))) for b in blocks if state.block_hash[b]
        ),
        "kv": _by_number(
            (b, [_prefix(compiled, int(code)) for code in state.kv[b]]) for b in blocks
        ),
        "steps": [_step(state, d) for d in range(state.num_steps)],
        "deferred_frees": [
            {
                "fence": _integer(state.deferred_fence[q]),
                "blocks": _integers(state.deferred_blocks[q, : state.deferred_len[q]]),
            }
            for q in range(state.num_deferred)
        ],
    }


def _prefix(compiled: Compiled, code: int) -> dict[str, Any]:
    """What a prefix code stands for; garbage is the empty prefix."""
    salt, tokens = compiled.prefixes[code]
    return {"salt": salt, "tokens": _integers(tokens)}


def _request(state: Record, r: int) -> dict[str, Any]:
    return {
        "status": Status(int(state.status[r])).name.lower(),
        "tokens": _integer(state.num_tokens[r]),
        "computed": _integer(state.num_computed[r]),
        "placeholders": _integer(state.placeholders[r]),
        "in_flight": _integer(state.in_flight[r]),
        "stale": _integer(state.stale[r]),
        "drafts": _integer(state.num_drafts[r]),
        "blocks": _integers(state.block_table[r, : state.num_blocks[r]]),
        "load": Load(min(int(state.load[r]), Load.FAILED)).name.lower(),
    }


def _step(state: Record, d: int) -> list[dict[str, Any]]:
    """The requests of an in-flight step, with the block table that each was given."""
    return [
        {
            "request": _integer(r),
            "start": _integer(state.step_start[d, r]),
            "tokens": _integer(state.step_tokens[d, r]),
            "drafts": _integer(state.step_drafts[d, r]),
            "samples": bool(state.step_samples[d, r]),
            "stale": bool(state.step_stale[d, r]),
            "blocks": _integers(b for b in state.step_table[d, r] if b),
        }
        for r in (int(k) - 1 for k in state.step_order[d, : state.step_len[d]])
    ]
