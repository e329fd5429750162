"""Every named scope, searched to the end: every reachable state satisfies every invariant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.pinned import PINNED, WITHOUT_RENAMING
from kvproof.checker.check import check
from kvproof.model.state import Branch
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id


@pytest.mark.parametrize("name", SCOPES)
def test_every_reachable_state_is_right(name: str, measured: Callable[[str], None]) -> None:
    done = check(SCOPES[name])
    result = done.result
    measured(
        f"exhaustive {name:<15} {result.outcome}: {result.states:>9,} states, "
        f"{result.transitions:>9,} transitions, depth {result.depth:>2}, {result.seconds:5.2f} s; "
        f"untested here: {', '.join(done.untested) or 'nothing'}"
    )
    assert done.trace is None, f"broken: {done.trace.broken}"
    assert result.outcome == "holds"
    assert (result.states, result.transitions) == PINNED[name]


@pytest.mark.parametrize("name", WITHOUT_RENAMING)
def test_renaming_blocks_changes_no_verdict(name: str) -> None:
    result = check(SCOPES[name], rename=False).result
    assert result.outcome == "holds"
    assert (result.states, result.transitions) == WITHOUT_RENAMING[name]
    assert result.states >= PINNED[name][0]


# A failed synchronous load breaks PublishedSound: the scopes of docs/findings.md take it.
TAKEN_BY_FINDINGS = {"sync_load_failed"}


def test_every_invariant_and_every_branch_is_exercised_by_some_scope() -> None:
    tested: set[str] = set()
    taken: set[str] = set()
    for name, scope in SCOPES.items():
        if name == "crowd":
            continue
        done = check(scope)
        tested |= {invariant for invariant, times in done.tested.items() if times}
        taken |= {branch for branch, times in done.branches.items() if times}
    assert tested == {identity.name for identity in Id}
    assert {branch.name for branch in Branch} - taken == TAKEN_BY_FINDINGS
