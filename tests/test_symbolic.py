from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import z3

from kvproof.model.rules import Rule
from kvproof.proof.evaluate import Evaluator
from kvproof.proof.fence import fence
from kvproof.proof.induction import prove
from kvproof.proof.page import proofs_page
from kvproof.proof.proofs import THEOREMS
from kvproof.proof.relation import Clause, Operation, Relation, is_flag, name_of
from kvproof.proof.report import explain
from kvproof.proof.unrolling import search
from tests.test_cli import kvproof, results

DOCS = Path(__file__).parent.parent / "docs"

x, y = z3.Ints("x y")


def countdown(claim: z3.BoolRef, **changes: object) -> Relation:
    """x goes 0, 1, 2, 0, ...; from 3, which no run reaches, it would go to 4 and then to 5."""
    relation = Relation(
        name="toy",
        title="A toy",
        parameters=(),
        assumptions=(),
        fields=(x,),
        initial=x == 0,
        operations=(
            Operation(
                "turn",
                "x turns.",
                z3.BoolVal(True),
                {"x": z3.If(x < 2, x + 1, z3.If(x == 2, 0, x + 1))},
            ),
        ),
        properties=(Clause("claim", claim, "What is claimed."),),
        lemmas=(),
    )
    return dataclasses.replace(relation, **changes)  # type: ignore[arg-type]


def test_an_inductive_claim_holds() -> None:
    assert prove(countdown(x != 5)).outcome == "fails"
    assert prove(countdown(z3.And(x >= 0, x <= 2))).outcome == "holds"


def test_a_claim_that_is_not_inductive_holds_by_k_induction() -> None:
    claim = z3.And(x >= 0, x != 4, x != 5)
    failed = prove(countdown(claim), search_steps=6)
    assert failed.outcome == "fails"
    assert failed.failure is not None
    assert failed.failure.phase == "consecution"
    assert failed.failure.counterexample is not None
    assert failed.failure.counterexample.before == {"x": 3}
    assert failed.failure.reached is None
    assert failed.failure.searched == 6
    assert "not known" in explain(failed.failure, countdown(claim))
    assert prove(countdown(claim), depth=2).outcome == "holds"


def test_k_induction_needs_the_first_states_too() -> None:
    failed = prove(countdown(x != 1), depth=3, search_steps=3)
    assert failed.outcome == "fails"
    assert failed.failure is not None
    assert failed.failure.phase == "initiation"
    assert failed.failure.reached is not None
    assert len(failed.failure.reached.moves) == 1


def test_a_claim_that_is_false_at_first_fails_in_initiation() -> None:
    failed = prove(countdown(x > 0))
    assert failed.failure is not None
    assert failed.failure.phase == "initiation"


def test_a_derived_claim_must_follow_from_the_lemmas() -> None:
    lemma = Clause("range", z3.And(x >= 0, x <= 2), "x is small.")
    for claim, outcome in ((x < 5, "holds"), (x < 2, "fails")):
        derived = (Clause("claim", claim, "What is claimed.", derived=True),)
        proof = prove(countdown(claim, properties=derived, lemmas=(lemma,)))
        assert proof.outcome == outcome
        assert outcome == "holds" or (proof.failure and proof.failure.phase == "safety")


def test_a_proof_without_an_initial_state_or_a_possible_operation_fails() -> None:
    nothing = prove(countdown(x >= 0, initial=z3.And(x > 0, x < 0)))
    assert nothing.failure is not None
    assert nothing.failure.phase == "existence"
    never = Operation("never", "Never.", x < 0, {})
    idle = prove(countdown(x >= 0, operations=(never,)))
    assert idle.failure is not None
    assert (idle.failure.phase, idle.failure.operation) == ("existence", "never")


def test_a_time_limit_ends_in_unknown() -> None:
    assert prove(THEOREMS["blocks"].build(frozenset()), seconds=0.2).outcome == "unknown"
    assert prove(fence(), seconds=1e-6).outcome == "unknown"


def test_a_query_that_z3_gives_up_on_ends_in_unknown() -> None:
    cubes = z3.Ints("a b c")
    a, b, c = cubes
    fermat = Clause("fermat", z3.Or(a < 1, b < 1, c < 1, a**3 + b**3 != c**3), "No cubes add up.")
    relation = Relation(
        name="cubes",
        title="Cubes",
        parameters=cubes,
        assumptions=(),
        fields=(x,),
        initial=x == 0,
        operations=(Operation("stay", "Nothing.", z3.BoolVal(True), {"x": x}),),
        properties=(fermat,),
        lemmas=(),
        linear=False,
    )
    assert prove(relation, seconds=1.0).outcome == "unknown"


def test_the_shortest_run_is_found_first() -> None:
    path, searched = search(
        countdown(x < 2), [Clause("claim", x < 2, "x is below 2.")], steps=9, seconds=60
    )
    assert path is not None
    assert (len(path.moves), searched) == (2, 2)
    assert path.end == {"x": 2}
    assert path.broken == ("claim",)


def test_a_relation_that_sets_an_unknown_field_is_refused() -> None:
    stray = Operation("stray", "Sets y.", z3.BoolVal(True), {"y": y})
    with pytest.raises(ValueError, match="sets no field"):
        countdown(x >= 0, operations=(stray,))


@pytest.mark.parametrize("name", THEOREMS)
def test_terms_have_the_values_that_z3_gives_them(name: str) -> None:
    relation = THEOREMS[name].small(frozenset())
    rng = random.Random(name)
    constants = (*relation.parameters, *relation.fields, *relation.inputs())
    rows = [
        [rng.random() < 0.5 if is_flag(c) else rng.randint(-3, 6) for c in constants]
        for _ in range(12)
    ]
    columns = {name_of(c): np.array([row[i] for row in rows]) for i, c in enumerate(constants)}
    value = Evaluator(columns)
    terms = [clause.formula for clause in (*relation.lemmas, *relation.properties)]
    for operation in relation.operations[:: max(len(relation.operations) // 12, 1)]:
        terms += [operation.guard, *(after for _field, after in relation.after(operation))]
    for term in terms:
        ours = np.broadcast_to(value(term), len(rows))
        for row, found in zip(rows, ours, strict=True):
            values = [
                (c, z3.BoolVal(v) if is_flag(c) else z3.IntVal(v))
                for c, v in zip(constants, row, strict=True)
            ]
            theirs = z3.simplify(z3.substitute(term, *values))
            assert int(found) == (int(z3.is_true(theirs)) if is_flag(theirs) else theirs.as_long())


def test_a_failed_proof_is_told_in_the_models_words() -> None:
    off = frozenset({Rule.fence_in_flight_frees})
    proof = prove(fence(off), search_steps=6)
    assert proof.failure is not None
    told = explain(proof.failure, fence(off))
    assert "consecution: not_before_the_writer at `free`" in told
    assert "reachable: 3 operations" in told
    assert "seq_ahead 0->1" in told


def test_the_page_of_the_proofs_is_fresh() -> None:
    page = (DOCS / "proofs.md").read_text(encoding="utf-8")
    assert page == proofs_page(), "run `kvproof docs proofs.md`"


def test_the_command_proves_one_by_name() -> None:
    done = kvproof("prove", "fence", "--json")
    assert done.returncode == 0
    (proof,) = results(done.stdout)
    assert (proof["relation"], proof["outcome"]) == ("fence", "holds")


def test_the_command_says_why_a_proof_fails_without_a_rule() -> None:
    done = kvproof("prove", "fence", "--rule-off", "fence_in_flight_frees")
    assert done.returncode == 1
    assert "reachable: 3 operations" in done.stdout


def test_the_command_ends_with_3_where_a_limit_passes() -> None:
    done = kvproof("prove", "fence", "--seconds", "0.000001")
    assert done.returncode == 3
    assert "fence: unknown" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("no-such-proof",), "'no-such-proof'"),
        (("fence", "--rule-off", "no_rule"), "'no_rule'"),
        (("fence", "--seconds", "0"), "--seconds = 0"),
    ],
)
def test_a_mistake_of_the_command_exits_with_2_and_names_it(
    arguments: tuple[str, ...], named: str
) -> None:
    done = kvproof("prove", *arguments)
    assert done.returncode == 2
    assert named in done.stderr
