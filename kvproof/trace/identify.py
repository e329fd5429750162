"""The identity of a run's violation, read off the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.model.state import Assertion, Branch, Load
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
    causes = tuple(cause for cause, holds in _CAUSES.items() if holds(trace, moments))
    return Identity(broken, last.action.do, where, causes)


def identity_of_lasso(found: Lasso) -> Identity:
    """What tells a lasso from others; without a loop its last action tells."""
    moments = list(replay(found.rounds(1)))
    telling = moments[len(found.stem) :] or moments[-1:]
    causes = tuple(cause for cause, holds in _LASSO_CAUSES.items() if holds(found))
    return Identity(found.broken, "", branches_taken(telling, *_TELLING), causes)
