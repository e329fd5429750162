"""Rules and invariants: which invariants fall without which rule, and that the pages say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.evidence.counterexamples import FOLDER
from kvproof.evidence.matrix import Row, matrix, page
from kvproof.model.rules import Rule
from kvproof.scopes.cuts import weight
from kvproof.scopes.named import SCOPES
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id
from kvproof.spec.rules import INFO
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "matrix.md"


@pytest.fixture(scope="module")
def rows() -> dict[Rule, Row]:
    return matrix(folder=ROOT / FOLDER)


def test_every_rule_is_needed_and_every_invariant_put_to_the_test(
    rows: dict[Rule, Row], measured: Callable[[str], None]
) -> None:
    falls = sum(len(row) for row in rows.values())
    measured(f"matrix     {len(rows)} rules x {len(Id)} invariants: {falls} fall")
    assert list(rows) == list(Rule)
    assert [rule.name for rule, row in rows.items() if not row] == []
    assert set(Id).difference(*rows.values()) == set()


def test_the_page_has_the_matrix(rows: dict[Rule, Row]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(rows), "run `kvproof matrix --to docs/matrix.md`"


def test_an_invariant_falls_without_the_rules_that_its_registry_names(
    rows: dict[Rule, Row],
) -> None:
    named = {(rule, invariant.id) for invariant in INVARIANTS for rule in invariant.broken_by}
    assert [(r.name, i.name) for r, i in sorted(named) if i not in rows[r]] == []
    assert {rule for rule, _identity in named} == set(Rule)
    assert {identity for _rule, identity in named} == set(Id)


def test_no_scope_that_is_as_simple_shows_the_fall_sooner_than_the_counterexample(
    rows: dict[Rule, Row],
) -> None:
    for rule, row in rows.items():
        trace = load(ROOT / FOLDER / f"{rule.name}.json")
        scopes = {**SCOPES, trace.scope.name: trace.scope}
        seed = INFO[rule.name].seed
        if seed is not None:
            scopes[seed.name] = seed
        for identity in (Id[name] for name in trace.broken):
            fall = row[identity]
            assert fall.actions <= len(trace.actions)
            if fall.actions < len(trace.actions):
                assert weight(scopes[fall.scope]) > weight(trace.scope), (rule, fall)
