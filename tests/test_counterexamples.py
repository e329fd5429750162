"""Writing counterexamples anew, and the matrix that is made beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof.checker.minimize import SoFar
from kvproof.evidence import counterexamples as module
from kvproof.evidence.counterexamples import FOLDER, NotNeeded, find, write, write_pages
from kvproof.evidence.matrix import Fall, page, row, table
from kvproof.model.rules import Rule
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id
from kvproof.spec.rules import INFO
from kvproof.trace.trace import TraceError

ROOT = Path(__file__).parent.parent
RULE = Rule.respect_input_budget


def test_what_is_written_is_what_is_recorded(tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    paths = list(write([RULE.name], tmp_path, watch=lambda *report: reports.append(report)))
    assert reports == [(0, 1, RULE.name)]
    assert [path.name for path in paths] == [f"{RULE.name}.json", f"{RULE.name}.md"]
    for path in paths:
        assert path.read_bytes() == (ROOT / FOLDER / path.name).read_bytes()


def test_an_interrupted_search_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: Any, *arguments: Any, watch: Any, **options: Any) -> Any:
        watch(SoFar("interrupted", 0, source, 0, 0.0))

    monkeypatch.setattr(module, "minimize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(write([RULE.name], tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_rule_that_nothing_misses_and_one_that_is_none_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = Rule.hold_blocks_until_sent.name
    monkeypatch.setitem(INFO, name, replace(INFO[name], seed=SCOPES["two-equal"]))
    with pytest.raises(NotNeeded, match="hold_blocks_until_sent"):
        find(Rule.hold_blocks_until_sent)
    with pytest.raises(TraceError, match="'no_rule'"):
        list(write(["no_rule"], tmp_path))


def test_a_rule_without_a_counterexample_is_named_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"`kvproof counterexamples {RULE.name}`"):
        write_pages([RULE], tmp_path)


def test_a_row_has_the_shortest_run_to_each_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.evidence.matrix.SCOPES", {})
    falls = row(RULE, ROOT / FOLDER)
    assert falls == {
        Id.NoAssertion: Fall(2, RULE.name, ()),
        Id.BudgetRespected: Fall(2, RULE.name, ()),
    }
    past = row(Rule.wait_for_remote_load, ROOT / FOLDER)[Id.ReadsCorrect]
    assert past.past == ("NoReuseInFlight", "PublishedSound")


def test_the_page_shows_a_rule_that_nothing_misses_and_an_invariant_that_nothing_breaks() -> None:
    fall = Fall(3, "s", ())
    rows = {
        RULE: {Id.NoStall: fall},
        Rule.finish_once: {},
        Rule.free_tail_first: {Id.NoStall: fall},
    }
    text = page(rows)
    assert "Rules without which nothing falls: `finish_once`." in text
    assert "Invariants that fall without no rule: `BlockConservation`, " in text
    assert [cells[1 + Id.NoStall] for cells in table(rows)] == ["3", "", "3"]
