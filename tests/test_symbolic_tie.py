from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import z3

from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.rules import Rule
from kvproof.proof.interpreted import Interpreted
from kvproof.proof.proofs import THEOREMS
from kvproof.proof.relation import Relation
from kvproof.proof.tie.compare import TIED, compare, transitions_of
from kvproof.proof.tie.made import World, made
from kvproof.proof.tie.samples import GUARD, UNEXPLAINED, Samples, Tie
from kvproof.proof.tie.tie_blocks import BlocksTie
from kvproof.proof.tie.worlds import WORLDS, BlocksWorld, CountersWorld, make_all
from kvproof.scopes.named import SCOPES


def without(theorem: str, rule: Rule) -> Callable[[Compiled], tuple[Tie, ...]]:
    """A tie whose relation lacks a rule that the model has."""

    def make(compiled: Compiled) -> tuple[Tie, ...]:
        tie = THEOREMS[theorem].tie(compiled)
        requests = len(compiled.scope.requests)
        build = THEOREMS[theorem].build
        off = frozenset({rule})
        relation: Relation = (
            build(off, requests)  # type: ignore[call-arg]
            if theorem in ("blocks", "budget")
            else build(off)
        )
        tie.relation = relation
        tie.samples = Samples(relation)
        return (tie,)

    return make


@pytest.mark.parametrize(
    ("theorem", "rule", "scope", "fields"),
    [
        ("blocks", Rule.take_hit_from_free_queue, "shared-prefix", {"free"}),
        ("blocks", Rule.evict_hash_on_reuse, "shared-prefix", {"published"}),
        ("budget", Rule.refund_victim_budget, "priorities", {"token_left", "input_left"}),
        ("counters", Rule.forget_victim_placeholders, "async", {"placeholders"}),
        ("counters-any-depth", Rule.roll_back_rejected_drafts, "drafts", {"num_computed"}),
        ("fence", Rule.fence_at_last_scheduled_step, "consumer", {"fence", GUARD}),
    ],
)
def test_a_relation_that_has_drifted_is_told_by_the_field(
    theorem: str, rule: Rule, scope: str, fields: set[str]
) -> None:
    found, _total = transitions_of(SCOPES[scope], 3_000)
    done = compare(SCOPES[scope], found, without(theorem, rule))
    assert {disagreement.field for disagreement in done.disagreements} == fields
    assert not done.agrees


def test_what_the_model_does_beside_the_operations_is_told() -> None:
    relation = THEOREMS["fence"].build(frozenset())
    samples = Samples(relation)
    samples.unchanged((0,) * 8, (0, 1, *(0,) * 6))
    (told,) = samples.disagreements()
    assert (told.operation, told.field) == (UNEXPLAINED, "last_seq")


def test_a_relation_whose_withdrawals_withdraw_nothing_is_told_from_the_model() -> None:
    def idle(compiled: Compiled) -> tuple[Tie, ...]:
        tie = BlocksTie(compiled)
        operations = (
            replace(one, after={}) if one.name == "withdraw" else one
            for one in tie.relation.operations
        )
        tie.relation = replace(tie.relation, operations=tuple(operations))
        tie.samples = Samples(tie.relation)
        return (tie,)

    (scope,) = (scope for scope in TIED if scope.name == "failing-sync-loads")
    done = compare(scope, transitions_of(scope)[0], idle)
    assert [(one.operation, one.field) for one in done.disagreements] == [("withdraw", "published")]


def test_every_state_that_z3_makes_goes_where_the_relation_says() -> None:
    done = list(make_all())
    assert [one.problem for one in done if one.problem] == []
    tried = {(one.relation, one.operation) for one in done}
    wanted = {
        (w.relation.name, o.name) for w in (build() for build in WORLDS) for o in w.operations
    }
    assert tried == wanted


@pytest.mark.parametrize(
    ("world", "relation", "rule", "operation"),
    [
        (BlocksWorld, "blocks", Rule.evict_hash_on_reuse, "load R0"),
        (BlocksWorld, "blocks", Rule.finish_once, "abort R1"),
        (CountersWorld, "counters", Rule.roll_back_rejected_placeholders, "output"),
        (CountersWorld, "counters", Rule.forget_victim_progress, "preempt"),
    ],
)
def test_a_state_made_for_a_relation_that_has_drifted_goes_elsewhere(
    world: Callable[[], World], relation: str, rule: Rule, operation: str
) -> None:
    true = THEOREMS[relation].small(frozenset()).operation(operation)

    drifted = world()
    drifted.relation = THEOREMS[relation].small(frozenset({rule}))
    wrong = drifted.relation.operation(operation)
    fits = drifted.fits(wrong)
    # Which states Z3 picks is up to it: ask for one that tells the two apart.
    same = [
        term == true.after.get(str(field), field) for field, term in drifted.relation.after(wrong)
    ]
    apart = z3.Or(z3.Not(true.guard), z3.Not(z3.And(*same)))
    drifted.fits = lambda _operation: z3.And(fits, apart)  # type: ignore[method-assign]
    assert any(one.problem for one in made(drifted, wrong))


def test_a_watcher_of_a_function_that_is_not_there_is_refused() -> None:
    class Wrong:
        watched = ("scheduler.no_such_function",)

        def called(self, name: str, arguments: tuple[object, ...], result: object) -> None: ...

    with pytest.raises(ValueError, match="no_such_function"):
        Interpreted(compile_scope(SCOPES["two-equal"]), (Wrong(),))
