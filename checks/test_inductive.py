"""Proofs for all sizes: they hold, rules are needed for them, and the model does what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from checks.pinned import PINNED
from kvproof.cli.tie import tie_line
from kvproof.model.rules import Rule
from kvproof.proof.configurations import SEARCHED, find_configuration
from kvproof.proof.proofs import (
    NEEDS,
    THEOREMS,
    Need,
    explore_without,
    prove_theorem,
    prove_without,
)
from kvproof.proof.tie.compare import SMALL, compare_scope
from kvproof.scopes.named import SCOPES
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent
each_need = pytest.mark.parametrize(
    "need", NEEDS, ids=lambda need: f"{need.theorem}-{need.rule.name}"
)


@pytest.mark.parametrize("name", THEOREMS)
def test_a_proof_holds_for_all_sizes(name: str, measured: Callable[[str], None]) -> None:
    proof = prove_theorem(name)
    measured(f"proof      {proof!s}")
    assert proof.outcome == "holds", proof.failure


@each_need
def test_without_a_rule_the_proof_fails_with_a_reachable_counterexample(
    need: Need, measured: Callable[[str], None]
) -> None:
    proof = prove_without(need.theorem, need.rule, claims=(need.breaks,))
    failure = proof.failure
    assert proof.outcome == "fails"
    assert failure is not None
    assert failure.counterexample is not None
    assert failure.reached is not None
    measured(
        f"rule off   {need.theorem:<9} {need.rule.name:<33} {need.breaks} falls after "
        f"{len(failure.reached.moves)} operations"
    )
    assert failure.reached.broken == (need.breaks,)
    assert len(failure.reached.moves) == need.operations


@each_need
def test_the_explorers_run_without_the_rule_breaks_the_same_property(need: Need) -> None:
    recorded = load(ROOT / "counterexamples" / f"{need.rule.name}.json").scope
    trace, comparison = explore_without(need, recorded)
    assert trace is not None
    assert comparison is not None
    assert need.invariant.name in trace.broken
    # The run is one of the relation without the rule ...
    assert comparison.differing == 0
    assert comparison.disagreements == []
    # ... and breaks a property that answers the invariant.
    properties = THEOREMS[need.theorem].build(frozenset()).properties
    broken = [clause for clause in properties if clause.name in comparison.broken]
    assert any(need.invariant.name in clause.invariants for clause in broken)


def test_ten_rules_at_least_are_needed_by_a_proof() -> None:
    assert len({need.rule for need in NEEDS}) >= 10


@pytest.mark.parametrize("name", SCOPES)
def test_transitions_of_the_model_are_transitions_of_the_relations(
    name: str, measured: Callable[[str], None]
) -> None:
    done = compare_scope(SCOPES[name])
    measured(f"tie        {tie_line(done)}")
    assert done.disagreements == []
    assert done.differing == 0
    assert done.broken == []
    assert done.whole or done.transitions == SMALL


def test_the_tie_covers_what_is_claimed() -> None:
    assert sum(min(PINNED[name][1], SMALL) for name in SCOPES) >= 100_000


@pytest.mark.parametrize("rule", SEARCHED, ids=lambda rule: rule.name)
def test_a_configuration_that_z3_finds_is_confirmed_by_the_explorer(
    rule: Rule, measured: Callable[[str], None]
) -> None:
    found = find_configuration(rule)
    assert found is not None
    chosen = ", ".join(f"{name} {int(value)}" for name, value in found.configuration.items())
    measured(f"configured {rule.name}: {chosen}")
    assert found.confirmed


def test_with_every_rule_on_no_configuration_is_found() -> None:
    assert find_configuration(None) is None
