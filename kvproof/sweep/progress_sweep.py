"""The sweep over configurations, looking for runs that never get anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from kvproof.checker.check import Limits
from kvproof.checker.check_progress import ProgressCheck, check_progress
from kvproof.scopes.cover import Cover
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.spec.identity import Identity
from kvproof.trace.identify import identity_of_lasso
from kvproof.trace.lasso import Lasso

LIMITS = Limits(states=30_000)
MOST = 30
"""Cycles that are looked at for each property of a scope, so that one does not hide another."""


@dataclass(frozen=True)
class ProgressSweep:
    """Outcomes of the scopes searched, and each distinct lasso once, its shortest.

    Of the scopes `early` were not searched to the end, and `cut` have runs that end in an assertion
    or a wrong token; `times` counts the scopes that have a lasso of an identity.
    """

    outcomes: Counter[str]
    early: int
    cut: int
    states: int
    transitions: int
    due_states: int
    cycles: int
    fair_cycles: int
    times: Counter[Identity]
    distinct: dict[Identity, Lasso]


def progress_sweep(
    count: int,
    *,
    seed: int = 0,
    limits: Limits = LIMITS,
    watch: Callable[[int, int], None] | None = None,
) -> ProgressSweep:
    """Check progress in the first `count` scopes of the sweep; Ctrl-C ends it with what is done."""
    done: list[ProgressCheck] = []
    distinct: dict[Identity, Lasso] = {}
    times: Counter[Identity] = Counter()
    rows = Cover(PARAMETERS, CONSTRAINTS, seed=seed).rows()
    try:
        for number, row in enumerate(islice(rows, count)):
            one = check_progress(scope_of(number, row), limits, most=MOST)
            if one.result.reason == "interrupted":
                break
            named = [(identity_of_lasso(found), found) for found in one.lassos]
            times.update({identity for identity, _found in named})
            for identity, found in named:
                if identity not in distinct or _size(found) < _size(distinct[identity]):
                    distinct[identity] = found
            done.append(one)
            if watch is not None:
                watch(number + 1, count)
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
        distinct=dict(sorted(distinct.items(), key=lambda item: str(item[0]))),
    )


def _size(found: Lasso) -> tuple[int, int]:
    return len(found.scope.requests), len(found.stem) + len(found.loop)
