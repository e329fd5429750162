"""Scopes searched one after another, with the progress of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from kvproof.checker.check import Check
from kvproof.checker.check_progress import ProgressCheck
from kvproof.cli.console import Show, live_line, telling_of_compilation
from kvproof.model.scope import Scope
from kvproof.search.explore import SoFar

_Searched = TypeVar("_Searched", Check, ProgressCheck)


def searched(scopes: list[Scope], search: Callable[..., _Searched]) -> Iterator[_Searched]:
    """Search scopes one by one, until one is interrupted."""
    with telling_of_compilation():
        for k, scope in enumerate(scopes):
            which = f"{k + 1} of {len(scopes)}, " if len(scopes) > 1 else ""
            with live_line() as show:
                done = search(scope, watch=_follower(f"{which}{scope.name}", show))
            yield done
            if done.result.reason == "interrupted":
                break


def _follower(name: str, show: Show | None) -> Callable[[SoFar], None] | None:
    if show is None:
        return None
    frontiers: dict[int, int] = {}

    def follow(p: SoFar) -> None:
        # How many there will be nobody knows; whether the frontier grows from level to level is a
        # sign of it.
        before = frontiers.get(p.depth - 1)
        at_start = frontiers.setdefault(p.depth, p.frontier)
        trend = "" if before is None else " growing" if at_start > before else " shrinking"
        show(
            f"{name}: {p.states:,} states, depth {p.depth} ({p.level_done:.0%}), frontier "
            f"{p.frontier:,}{trend}, {p.states_per_second:,.0f} states/s, {p.memory / 1e6:,.0f} MB"
        )

    return follow
