"""Which promise of the surroundings an action would break in a state where it is not enabled."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.model import scheduler
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Load, Phase, Status
from kvproof.native.record import Record
from kvproof.trace.actions import Action

_UTILITIES = (Kind.ADD, Kind.RESET_PREFIX_CACHE, Kind.SET_PAUSE_STATE)


def broken_promise(compiled: Compiled, state: Record, action: Action) -> str | None:
    """The promise's name in spec/contract.py; None where only the scope forbids the action."""
    if action.kind in _UTILITIES and state.phase != Phase.TOP:
        return "utility-calls-between-steps"
    asked = _ASKED.get(action.kind)
    return None if asked is None else asked(compiled, state, action)


def held_back(state: Record) -> list[int]:
    """The requests whose load is over and is not reported by the oldest step."""
    return [
        r
        for r, (load, wait) in enumerate(
            zip(state.load.tolist(), state.load_wait.tolist(), strict=True)
        )
        if load >= Load.LANDED and wait > 0
    ]


def _add(_compiled: Compiled, state: Record, action: Action) -> str | None:
    return None if state.status[action.request] == Status.ABSENT else "ids-arrive-once"


def _schedule(_compiled: Compiled, state: Record, _action: Action) -> str | None:
    return None if state.phase == Phase.TOP else "queue-filled-before-waiting"


def _output(compiled: Compiled, state: Record, _action: Action) -> str | None:
    if state.phase == Phase.DRAFTS:
        return "drafts-follow-their-output"
    if state.num_steps == 0:
        return "one-output-per-step"
    fills_first = state.phase == Phase.TOP and scheduler.has_requests(state, compiled.c)
    return "queue-filled-before-waiting" if fills_first else "samples-what-is-due"


def _drafts(_compiled: Compiled, state: Record, _action: Action) -> str | None:
    return "drafts-at-most-k" if state.phase == Phase.DRAFTS else "drafts-follow-their-output"


def _lands(_compiled: Compiled, state: Record, action: Action) -> str | None:
    return None if state.load[action.request] == Load.PENDING else "loads-end-once"


def _sent(_compiled: Compiled, state: Record, action: Action) -> str | None:
    if state.sending[action.request] != 1:
        return "sendings-end-once"
    return "sendings-reported-once-the-end-is-told"


_ASKED: dict[Kind, Callable[[Compiled, Record, Action], str | None]] = {
    Kind.ADD: _add,
    Kind.SCHEDULE: _schedule,
    Kind.OUTPUT: _output,
    Kind.DRAFTS: _drafts,
    Kind.TRANSFER_LANDS: _lands,
    Kind.SENT: _sent,
}
