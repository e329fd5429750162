"""The identity of a run's violation, read off the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.model.state import Assertion, Branch, Load, Status
from kvproof.spec.identity import Cause, Identity
from kvproof.spec.masks import Id
from kvproof.spec.progress import Property
from kvproof.trace.actions import Action
from kvproof.trace.lasso import Lasso
from kvproof.trace.trace import Moment, Trace, branches_taken, replay

_TELLING = ("waiting_", "preempted_", "victim_", "load_", "output_stale_dropped")
"""Beginnings of the branches that tell one loop from another."""


def _has_failed_sync_load(actions: Sequence[Action]) -> bool:
    return any(o.load_fails for action in actions for o in action.outcomes.values())


def _has_failed_load(actions: Sequence[Action]) -> bool:
    return any(action.failed_block is not None for action in actions)


def _loads_one_token(state: Any) -> bool:
    pairs = zip(state.load, state.load_tokens, strict=True)
    return any(load == Load.PENDING and tokens == 1 for load, tokens in pairs)


def _head(state: Any) -> int | None:
    """The waiting request at which a scan of a scheduler that is stuck ends, None if all may wait.

    Requests that hold blocks come first; those whose load is under way are skipped.
    """
    holding = state.kv_holding[: state.num_kv_holding]
    for place in (*holding, *state.waiting[: state.num_waiting]):
        r = int(place) - 1
        if state.status[r] != Status.WAITING_FOR_REMOTE_KVS or state.load_done[r]:
            return r
    return None


def _is_held(state: Any, head: int) -> bool:
    others = (r for r in range(len(state.status)) if r != head)
    return any(state.num_blocks[r] > 0 and state.status[r] in _WAITING for r in others)


_WAITING = (Status.WAITING, Status.PREEMPTED, Status.WAITING_FOR_REMOTE_KVS)

_STUCK_CAUSES: dict[Cause, Callable[[Any, int], bool]] = {
    # Loaded, but with nothing computed: it is taken for a fresh one.
    Cause.ONE_TOKEN_LOAD: lambda state, head: (
        state.num_blocks[head] > 0 and state.num_computed[head] == 0
    ),
    Cause.OWN_RESERVE: lambda state, head: bool(state.inflight_prefill[head]),
    Cause.HELD: _is_held,
}
"""What of the state of a stuck scheduler keeps the request at the head of its scan waiting."""


def _causes_of_refusal(state: Any, where: Sequence[str]) -> list[Cause]:
    """Why blocks are refused to the request at the head, read off the state."""
    head = _head(state)
    if head is None or Branch.waiting_no_blocks.name not in where:
        return []
    causes = [cause for cause, holds in _STUCK_CAUSES.items() if holds(state, head)]
    if Branch.waiting_reservation_refused.name not in where and Cause.OWN_RESERVE in causes:
        causes.remove(Cause.OWN_RESERVE)
    return causes


def _has_stray_placeholder(state: Any) -> bool:
    """Whether a running request waits for a token that no step in flight brings."""
    running = (int(place) - 1 for place in state.running[: state.num_running])
    return any(state.placeholders[r] > 0 and state.in_flight[r] == 0 for r in running)


_CAUSES: dict[Cause, Callable[[Trace, Sequence[Moment]], bool]] = {
    Cause.FAILED_SYNC_LOAD: lambda trace, moments: _has_failed_sync_load(trace.actions),
    Cause.SCHEDULED_VICTIM: lambda trace, moments: any(
        moment.report.branches[Branch.preempted_scheduled] for moment in moments
    ),
    Cause.RAISED_RESET: lambda trace, moments: any(
        moment.report.reset_ok < 0 for moment in moments[:-1]
    ),
    # Such a load comes round: it starts into the block that it has just published.
    Cause.ONE_TOKEN_LOAD: lambda trace, moments: (
        Id.NoReuseInFlight.name in trace.broken and _loads_one_token(moments[-1].after)
    ),
}
"""What of a run that ends in a broken invariant is told; one thing alone falls in many ways."""

_LASSO_CAUSES: dict[Cause, Callable[[Lasso], bool]] = {
    Cause.FAILED_SYNC_LOAD: lambda found: _has_failed_sync_load(found.stem),
    Cause.FAILED_LOAD: lambda found: (
        _has_failed_load(found.stem) and not _has_failed_sync_load(found.stem)
    ),
    Cause.FIRST_CHUNK_ADMISSION: lambda found: (
        Property.NoPreemptionCycle.name in found.broken and not found.scope.reserve_full_isl
    ),
    Cause.LOOKAHEAD: lambda found: (
        Property.NoPreemptionCycle.name in found.broken and found.scope.num_lookahead_tokens > 0
    ),
}
"""What of a lasso is told; without full sequences or with lookahead requests preempt themselves."""


def identity_of(trace: Trace) -> Identity:
    """What tells the violation at the end of a trace from others."""
    moments = list(replay(trace))
    last = moments[-1]
    broken = trace.broken
    where: tuple[str, ...] = ()
    if last.after.assertion:
        broken, where = (Id.NoAssertion.name,), (Assertion(last.after.assertion).name.lower(),)
    if Id.NoStall.name in trace.broken:
        where = (*where, *branches_taken([last], "waiting_"))
    if Id.NoStall.name in trace.broken:
        # The state tells it whole, whatever happened before.
        causes = _causes_of_refusal(last.after, where)
    else:
        causes = [cause for cause, holds in _CAUSES.items() if holds(trace, moments)]
    return Identity(broken, last.action.do, where, tuple(causes))


def identity_of_lasso(found: Lasso) -> Identity:
    """What tells a lasso from others; without a loop its last action tells."""
    moments = list(replay(found.rounds(1)))
    telling = moments[len(found.stem) :] or moments[-1:]
    where = branches_taken(telling, *_TELLING)
    causes = [cause for cause, holds in _LASSO_CAUSES.items() if holds(found)]
    if _has_stray_placeholder(telling[-1].after):
        causes.append(Cause.STRAY_PLACEHOLDER)
    if Property.NothingStuck.name in found.broken:
        causes += _causes_of_refusal(telling[-1].after, where)
    return Identity(found.broken, "", where, tuple(causes))
