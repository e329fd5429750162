"""Proofs for all sizes: they hold, rules are needed for them, and the model does what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import z3

from checks.pinned import PINNED
from kvproof.cli.tie import tie_line
from kvproof.model.rules import Rule
from kvproof.model.scope import Scope
from kvproof.proof.configurations import SEARCHED, find_configuration
from kvproof.proof.proofs import (
    NEEDS,
    THEOREMS,
    Need,
    explore_without,
    prove_theorem,
    prove_without,
)
from kvproof.proof.relation import Relation, Term, name_of
from kvproof.proof.tie.compare import SMALL, TIED, compare_scope
from kvproof.proof.tie.samples import plain
from kvproof.proof.tie.worlds import WORLDS, make_all
from kvproof.scopes.named import SCOPES
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent
HARMLESS = {("fence", "take", "writer")}
"""Effects that the relation allows and nobody has seen: more than the model does is proved too."""

compared = cache(compare_scope)

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


@pytest.mark.parametrize("scope", TIED, ids=lambda scope: scope.name)
def test_transitions_of_the_model_are_transitions_of_the_relations(
    scope: Scope, measured: Callable[[str], None]
) -> None:
    done = compared(scope)
    measured(f"tie        {tie_line(done)}")
    assert done.disagreements == []
    assert done.differing == 0
    assert done.broken == []
    assert done.whole or done.transitions == SMALL


def test_every_effect_that_an_operation_can_have_was_seen_in_the_model() -> None:
    seen = {effect for scope in TIED for effect in compared(scope).effects}
    seen |= {
        (one.relation, plain(one.operation), plain(field))
        for one in make_all()
        for field in one.changes
    }
    relations = [world().relation for world in WORLDS]
    possible = {
        (relation.name, plain(operation.name), plain(name_of(field)))
        for relation in relations
        for operation in relation.operations
        for field, after in relation.after(operation)
        if can_hold(relation, operation.guard, after != field)
    }
    assert len(possible) > 50
    assert possible - seen == HARMLESS


def can_hold(relation: Relation, *terms: Term) -> bool:
    solver = z3.Solver()
    solver.add(relation.assumed, *(clause.formula for clause in relation.clauses), *terms)
    return bool(solver.check() != z3.unsat)


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
