"""Every named scope, searched to the end: every reachable state satisfies every invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.check import check
from spec.scopes import SCOPES

# States and transitions of each scope: a change of the model shows here first.
PINNED = {
    "two-equal": (29, 36),
    "shared-prefix": (17_812, 45_084),
    "priorities": (14_242, 30_334),
    "block-size-1": (15_557, 33_073),
    "reset-running": (1_639, 4_530),
    "chunks": (12_918, 26_987),
    "pause": (2_343, 8_428),
    "salted": (13_939, 28_321),
    "crowd": (1_453_973, 4_306_602),
}


@pytest.mark.parametrize("name", SCOPES)
def test_every_reachable_state_is_right(name: str, measured: Callable[[str], None]) -> None:
    done = check(SCOPES[name])
    result = done.result
    measured(
        f"{name:<16} {result.outcome}: {result.states:>9,} states, "
        f"{result.transitions:>10,} transitions, depth {result.depth}, {result.seconds:.2f} s; "
        f"untested here: {', '.join(done.untested) or 'nothing'}"
    )
    assert done.trace is None, f"broken: {done.trace.broken}"
    assert result.outcome == "holds"
    assert (result.states, result.transitions) == PINNED[name]


def test_every_invariant_is_put_to_the_test_somewhere() -> None:
    untested = set.intersection(*(set(check(scope).untested) for scope in SCOPES.values()
                                  if scope.name != "crowd"))
    assert untested <= {"NoReuseInFlight"}
