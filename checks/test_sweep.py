"""The sweep over configurations finds nothing that is not an open finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvproof.checker.known import known_finding
from kvproof.spec.findings import FINDINGS
from kvproof.sweep.sweep import summary_page, sweep

PAGE = Path(__file__).parent.parent / "docs" / "sweep.md"


def test_every_violation_in_the_sweep_is_an_open_finding(measured: Callable[[str], None]) -> None:
    done = sweep(strength=3)
    outcomes = Counter(one.outcome for one in done.swept)
    measured(
        f"sweep      {len(done.swept)} scopes, {sum(one.transitions for one in done.swept):,} "
        f"transitions: {dict(outcomes)}, {len(done.distinct())} distinct violations"
    )
    assert done.covered == done.cover.possible
    assert [identity for identity in done.distinct() if known_finding(identity) is None] == []
    assert PAGE.read_text(encoding="utf-8") == summary_page(done), "kvproof sweep --strength 3 --to"
    made = {found for identity in done.distinct() if (found := known_finding(identity))}
    assert made == {finding for finding in FINDINGS if finding.patterns}
