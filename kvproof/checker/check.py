"""One check: search a scope's model and report what was found and what was covered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvproof.checker.efficiency import EfficiencySystem, Measured
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.scope import Scope
from kvproof.search.explore import Outcome, Result, SoFar, explore, process_size
from kvproof.shown import Shown
from kvproof.spec.masks import Id
from kvproof.trace.trace import Trace, from_codes

EXIT_CODES = {"holds": 0, "violated": 1, "bounded": 3}


@dataclass(frozen=True)
class Limits:
    """Where a search stops and ends bounded; None for no limit.

    `states`, `memory` in bytes (of the whole process, its libraries included), `seconds`.
    """

    states: int | None = None
    memory: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Check(Shown):
    """The result of a search with its coverage: transitions by action, branch and invariant."""

    scope: Scope
    result: Result
    actions: Mapping[str, int]
    branches: Mapping[str, int]
    tested: Mapping[str, int]
    efficiency: tuple[Measured, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Whether every invariant holds, one is violated, or the search ended bounded."""
        return self.result.outcome

    @property
    def figures(self) -> str:
        """How the search ended and what it looked at, in a line."""
        result = self.result
        return (
            f"{f' ({result.reason})' if result.reason else ''}  {result.states:,} states, "
            f"{result.transitions:,} transitions, depth {result.depth}, {result.seconds:.2f} s, "
            f"{result.states_per_second:,.0f} states/s, {result.bytes_per_state:.0f} bytes a state "
            f"and {result.peak_frontier_bytes / 1e6:,.1f} MB of frontier"
        )

    @property
    def too_small(self) -> str:
        """What a search needs to begin with, where its limit of memory left it no step."""
        return too_small(self.result)

    def __str__(self) -> str:
        lines = [f"{self.scope.name}: {self.outcome}{self.figures}"]
        if self.trace is not None:
            lines += [f"broken: {', '.join(self.trace.broken)}", "", str(self.trace)]
        return "\n".join(lines)

    @property
    def trace(self) -> Trace | None:
        """A shortest run to a broken invariant, None where there is none."""
        violation = self.result.violation
        if violation is None:
            return None
        return from_codes(self.scope, violation.actions, violation.invariants)

    @property
    def untested(self) -> tuple[str, ...]:
        """Invariants that no state and no step of this scope put to the test."""
        return tuple(name for name, times in self.tested.items() if not times)


def too_small(result: Result) -> str:
    """What a search needs to begin with, where its limit of memory left it no step."""
    if result.reason != "memory" or result.depth > 0:
        return ""
    return (
        f"the process takes {process_size() / 1e6:,.0f} MB before the first step, and the "
        f"successors of a step up to {result.step_bytes / 1e6:,.0f} MB more"
    )


def check(
    scope: Scope,
    limits: Limits = Limits(),
    *,
    rename: bool = True,
    ignore: frozenset[Id] = frozenset(),
    efficiency: bool = False,
    watch: Callable[[SoFar], None] | None = None,
) -> Check:
    """Search a scope exhaustively within the limits (`rename`, `ignore`: see SchedulerSystem).

    With `efficiency` its properties are measured on the way; the outcome is the same.
    """
    measuring = EfficiencySystem(scope, rename=rename, ignore=ignore) if efficiency else None
    system = measuring or SchedulerSystem(scope, rename=rename, ignore=ignore)
    result = explore(
        system,
        max_states=limits.states,
        max_process=limits.memory,
        max_seconds=limits.seconds,
        watch=watch,
    )
    return Check(
        scope,
        result,
        system.action_counts,
        system.branch_counts,
        system.tested_counts,
        measuring.measured(result) if measuring else (),
    )


def exit_code(found: Iterable[Outcome]) -> int:
    """0 all hold, 1 one is violated, 3 none is violated but one is bounded."""
    outcomes = set(found)
    for outcome in ("violated", "bounded"):
        if outcome in outcomes:
            return EXIT_CODES[outcome]
    return EXIT_CODES["holds"]
