"""The sweep over configurations, looking for runs that never get anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from kvproof.check.check import Limits
from kvproof.check.check_progress import ProgressCheck, check_progress
from kvproof.scopes.cover import Cover
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.spec.hangs import HANGS, Hang
from kvproof.spec.progress import Property
from kvproof.trace.lasso import Lasso
from kvproof.trace.trace import branches_taken, replay

LIMITS = Limits(states=30_000)
MOST = 30
"""Cycles that are looked at for each property of a scope, so that one does not hide another."""

_TELLING = ("waiting_", "preempted_", "victim_", "load_", "output_stale_dropped")


def place_of(found: Lasso) -> str:
    """What tells lassos apart: what falls, and which ways the loop takes through the scheduler.

    Without a loop it is the last action that tells. What failed before, and what of the
    configuration makes requests preempt themselves, is named.
    """
    moments = list(replay(found.rounds(1)))
    telling = moments[len(found.stem) :] or moments[-1:]
    words = ["+".join(found.broken), *branches_taken(telling, *_TELLING)]
    if any(o.load_fails for action in found.stem for o in action.outcomes.values()):
        words.append("after a failed synchronous load")
    elif any(action.failed_block is not None for action in found.stem):
        words.append("after a failed load")
    if Property.NoPreemptionCycle.name in found.broken:
        if not found.scope.reserve_full_isl:
            words.append("without full-sequence admission")
        if found.scope.num_lookahead_tokens:
            words.append("with lookahead")
    return " ".join(words)


def explanation(place: str) -> Hang | None:
    """The open finding that a lasso at this place is."""
    return next((hang for hang in HANGS if hang.explains(place)), None)


@dataclass(frozen=True)
class ProgressSweep:
    """Outcomes of the scopes searched, and each distinct lasso once, its shortest.

    Of the scopes `early` were not searched to the end, and `cut` have runs that end in an assertion
    or a wrong token; `times` counts the scopes that have a lasso at a place.
    """

    outcomes: Counter[str]
    early: int
    cut: int
    states: int
    transitions: int
    due_states: int
    cycles: int
    fair_cycles: int
    times: Counter[str]
    distinct: dict[str, Lasso]


def progress_sweep(
    count: int,
    *,
    seed: int = 0,
    limits: Limits = LIMITS,
    progress: Callable[[int, int], None] | None = None,
) -> ProgressSweep:
    """Check progress in the first `count` scopes of the sweep; Ctrl-C ends it with what is done."""
    done: list[ProgressCheck] = []
    distinct: dict[str, Lasso] = {}
    times: Counter[str] = Counter()
    rows = Cover(PARAMETERS, CONSTRAINTS, seed=seed).rows()
    try:
        for number, row in enumerate(islice(rows, count)):
            one = check_progress(scope_of(number, row), limits, most=MOST)
            if one.result.reason == "interrupted":
                break
            places = [(place_of(found), found) for found in one.lassos]
            times.update({place for place, _found in places})
            for place, found in places:
                if place not in distinct or _size(found) < _size(distinct[place]):
                    distinct[place] = found
            done.append(one)
            if progress is not None:
                progress(number + 1, count)
    except KeyboardInterrupt:
        pass
    return ProgressSweep(
        outcomes=Counter(one.outcome for one in done),
        early=sum(one.result.outcome == "bounded" for one in done),
        cut=sum(one.cut_states > 0 for one in done),
        states=sum(one.result.states for one in done),
        transitions=sum(one.result.transitions for one in done),
        due_states=sum(one.due_states for one in done),
        cycles=sum(one.cycles for one in done),
        fair_cycles=sum(one.fair_cycles for one in done),
        times=times,
        distinct=dict(sorted(distinct.items())),
    )


def _size(found: Lasso) -> tuple[int, int]:
    return len(found.scope.requests), len(found.stem) + len(found.loop)
