"""The sweep over configurations finds nothing that is not an open finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvproof.checker.known import known_finding
from kvproof.scopes.cover import pairs_of
from kvproof.spec.findings import FINDINGS
from kvproof.sweep.sweep import FULL, QUICK, Sweep, summary_page, sweep

PAGE = Path(__file__).parent.parent / "docs" / "sweep.md"


def test_every_violation_in_the_sweep_is_an_open_finding(measured: Callable[[str], None]) -> None:
    done = sweep(FULL)
    outcomes = Counter(one.outcome for one in done.swept)
    measured(
        f"sweep      {len(done.swept)} scopes, {sum(one.transitions for one in done.swept):,} "
        f"transitions: {dict(outcomes)}, {len(done.distinct())} distinct violations"
    )
    assert len(done.swept) == FULL
    assert [identity for identity in done.distinct() if known_finding(identity) is None] == []
    assert PAGE.read_text(encoding="utf-8") == summary_page(done), "kvproof sweep --full --to"
    made = {found for identity in done.distinct() if (found := known_finding(identity))}
    assert made == {finding for finding in FINDINGS if finding.patterns}


def test_the_quick_sweep_covers_every_possible_pair_of_values() -> None:
    done: Sweep = sweep(QUICK)
    covered = {pair for one in done.swept for pair in pairs_of(one.row)}
    possible = set(done.cover.pairs()) - done.cover.infeasible
    assert possible <= covered
