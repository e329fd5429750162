"""Each rule's recorded run: what falls without the rule, that nothing falls with it, no shorter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvproof.checker.check import check
from kvproof.checker.minimize import follow
from kvproof.evidence.counterexamples import FOLDER, page
from kvproof.model.rules import Rule
from kvproof.spec.masks import Id
from kvproof.spec.rules import INFO
from kvproof.trace.trace import Trace, load, replay

ROOT = Path(__file__).parent.parent
each = pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.name)


def recorded(rule: Rule) -> Trace:
    trace = load(ROOT / FOLDER / f"{rule.name}.json")
    assert trace.scope.rules_off == (rule.name,)
    return trace


@each
def test_without_the_rule_the_named_invariants_fall_at_the_last_action(
    rule: Rule, measured: Callable[[str], None]
) -> None:
    trace = recorded(rule)
    *earlier, last = replay(trace)
    assert trace.broken
    assert set(trace.broken) <= set(last.broken)
    for moment in earlier:
        assert set(INFO[rule.name].past) >= set(moment.broken)
    scope = trace.scope
    measured(
        f"rule off   {rule.name:<33} {', '.join(trace.broken)}: {len(trace.actions)} actions, "
        f"{len(scope.requests)} requests, {scope.num_blocks - 1} blocks of {scope.block_size}, "
        f"depth {scope.depth}, {scope.num_speculative_tokens} drafts"
    )


@each
def test_with_the_rule_the_same_actions_break_nothing(rule: Rule) -> None:
    trace = recorded(rule)
    guarded = msgspec.structs.replace(trace.scope, rules_off=())
    _taken, broken = follow(guarded, trace.actions)
    assert broken == ()


@each
def test_a_search_of_the_scope_finds_no_shorter_run(rule: Rule) -> None:
    trace = recorded(rule)
    found = check(trace.scope, ignore=frozenset(map(Id.__getitem__, INFO[rule.name].past))).trace
    assert found is not None
    assert found.broken == trace.broken
    assert len(found.actions) == len(trace.actions)


@each
def test_the_page_tells_the_recorded_run(rule: Rule) -> None:
    text = (ROOT / FOLDER / f"{rule.name}.md").read_text(encoding="utf-8")
    assert text == page(rule, recorded(rule)), "run `kvproof docs`"


def test_every_recorded_run_is_a_rules() -> None:
    recorded_names = {path.stem for path in (ROOT / FOLDER).glob("*.json")}
    assert recorded_names == {rule.name for rule in Rule}
