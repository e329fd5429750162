"""What the real classes do wrong is seen on them alone, with no model to compare."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from kvproof.bridge import environment
from kvproof.bridge.client import Client
from kvproof.bridge.observed import FAILURES_AWAITED, NO_OLD_DRAFTS, ObservedWorld, RealClasses
from kvproof.evidence.counterexamples import FOLDER
from kvproof.evidence.project import project
from kvproof.model.scope import Scope
from kvproof.scopes.named import SCOPES
from kvproof.trace.trace import load
from kvproof.walks.worlds import Tally, Violation

RUNS = 40

FOR_PREFIXES = SCOPES["shared-prefix"]
FOR_LOADS = replace(
    SCOPES["failing-loads"],
    requests=tuple(
        replace(q, may_abort=False, may_stop=False) for q in SCOPES["failing-loads"].requests
    ),
)


def seed_of(rule: str) -> Scope:
    """The scope of the rule's counterexample, the rule on."""
    return replace(load(project() / FOLDER / f"{rule}.json").scope, rules_off=())


FALLS_WITHOUT = {
    "drop_hit_before_drafting_head": (
        seed_of("drop_hit_before_drafting_head"),
        "HitMaximal",
    ),
    "forget_victim_drafts": (seed_of("forget_victim_drafts"), NO_OLD_DRAFTS),
    "victim_must_be_freeable": (seed_of("victim_must_be_freeable"), "VictimFreeable"),
    "preempt_policy_last": (SCOPES["async-priority"], "VictimIsLowest"),
}


@pytest.fixture(scope="module")
def mutants() -> Iterator[Client]:
    if environment.find() is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    with Client(module="kvproof.vllm.mutants") as driver:
        yield driver


def first_to_fall(scope: Scope, client: Client, rule: str = "") -> str:
    """The first violation in random runs, in words; "" if there is none."""
    for seed in range(RUNS):
        world = ObservedWorld(scope, Tally(), RealClasses(client, (rule,) if rule else ()))
        try:
            world.burst(60, seed, guided=False)
        except Violation as violation:
            return str(violation)
    return ""


@pytest.mark.parametrize("rule", FALLS_WITHOUT)
def test_a_guard_that_is_gone_is_seen_by_observation_alone(mutants: Client, rule: str) -> None:
    scope, falls = FALLS_WITHOUT[rule]
    assert first_to_fall(scope, mutants, rule).startswith(f"{falls} broken")
    assert first_to_fall(scope, mutants) == ""


@pytest.mark.parametrize(
    ("function", "change", "scope", "falls"),
    [
        ("KVCacheManager.get_computed_blocks", "Constant plus 1", FOR_PREFIXES, "HitMaximal"),
        ("Scheduler._update_waiting_for_remote_kv", "Expr deleted", FOR_LOADS, FAILURES_AWAITED),
    ],
)
def test_a_small_change_of_vllm_is_seen_by_observation_alone(
    mutants: Client, function: str, change: str, scope: Scope, falls: str
) -> None:
    fallen = []
    for name, _file, _line, what, _names in mutants.run([["mutants"]])[0]:
        if f":{function}#" in name and change in what:
            mutants.run([["mutant", name]])
            fallen.append((what, first_to_fall(scope, mutants)))
    mutants.run([["mutant", None]])
    assert any(text.startswith(f"{falls} broken") for _, text in fallen), fallen
