"""The sweep over configurations, looking for runs that never get anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvproof.checker.check import Limits
from kvproof.checker.check_progress import check_progress
from kvproof.scopes.cover import Cover, Row
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.spec.identity import Identity
from kvproof.sweep.rows_searched import Bound, Made, Searched, Watch, search_rows
from kvproof.trace.identify import identity_of_lasso
from kvproof.trace.lasso import Lasso

LIMITS = Limits(states=30_000)
MOST = 30
"""Cycles that are looked at for each property of a scope, so that one does not hide another."""


class FoundLasso(msgspec.Struct, frozen=True):
    """A way of getting nowhere: what it is, and the smallest run of a scope that shows it."""

    identity: Identity
    lasso: Lasso


class SweptProgress(msgspec.Struct, frozen=True):
    """One row of the sweep and what its progress check gave.

    `early`: not searched to the end; `cut`: runs end in an assertion or a wrong token.
    """

    number: int
    row: dict[str, str | int | bool]
    outcome: str
    early: bool
    cut: bool
    states: int
    transitions: int
    due_states: int
    cycles: int
    fair_cycles: int
    found: tuple[FoundLasso, ...] = ()


class ProgressSweep(Searched[SweptProgress]):
    """The rows of a progress sweep so far and what never gets anywhere in them."""

    @property
    def outcomes(self) -> Counter[str]:
        """How many scopes came out how."""
        return Counter(one.outcome for one in self.swept)

    @property
    def times(self) -> Counter[Identity]:
        """The number of scopes that have a lasso of an identity."""
        return Counter(found.identity for one in self.swept for found in one.found)

    @property
    def distinct(self) -> dict[Identity, Lasso]:
        """Each distinct lasso once, its smallest."""
        best = _smallest(found for one in self.swept for found in one.found)
        return dict(sorted(best.items(), key=lambda item: str(item[0])))

    def total(self, count: str) -> int:
        """The sum of a count of the rows, by its name."""
        return sum(getattr(one, count) for one in self.swept)


def search_progress(number: int, row: Row, limits: Limits) -> SweptProgress:
    """Check progress in one row's scope. A Ctrl-C is raised."""
    done = check_progress(scope_of(number, row), limits, most=MOST)
    done.result.finished()
    found = _smallest(FoundLasso(identity_of_lasso(one), one) for one in done.lassos)
    return SweptProgress(
        number=number,
        row=row,
        outcome=done.outcome,
        early=done.result.outcome == "bounded",
        cut=done.cut_states > 0,
        states=done.result.states,
        transitions=done.result.transitions,
        due_states=done.due_states,
        cycles=done.cycles,
        fair_cycles=done.fair_cycles,
        found=tuple(FoundLasso(identity, one) for identity, one in found.items()),
    )


def progress_sweep(
    bound: Bound = Bound(),  # noqa: B008 (immutable)
    *,
    strength: int = 2,
    seed: int = 0,
    limits: Limits = LIMITS,
    record: Path | None = None,
    watch: Watch | None = None,
) -> ProgressSweep:
    """Check progress in the rows of the cover of this strength; the rest as for search_rows."""
    done = search_rows(
        Cover(PARAMETERS, CONSTRAINTS, strength=strength, seed=seed),
        lambda number, row: search_progress(number, row, limits),
        SweptProgress,
        bound=bound,
        made=Made("sweep-progress", limits.states),
        record=record,
        watch=watch,
    )
    return ProgressSweep(done.swept, done.cover, done.ended)


def _smallest(found: Iterable[FoundLasso]) -> dict[Identity, Lasso]:
    best: dict[Identity, Lasso] = {}
    for one in found:
        if one.identity not in best or _size(one.lasso) < _size(best[one.identity]):
            best[one.identity] = one.lasso
    return best


def _size(found: Lasso) -> tuple[int, int]:
    return len(found.scope.requests), len(found.stem) + len(found.loop)
