"""The table of action kinds, and that both of vLLM's engines have what its entries call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.model.scope import Scope
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.spec.progress_labels import ENGINE, label
from kvproof.trace.action_kinds import ACTION_KINDS, OBSERVE
from kvproof.trace.actions import Action, ActionError, Outcome
from kvproof.trace.codes import code_of, enabled_codes, name_action
from kvproof.trace.trace import step

VLLM = Path(__file__).parents[1] / "kvproof" / "vllm"
MAY = {name: True for name in Scope.__struct_fields__ if name.startswith("may_")}
ANYTHING = tuple(
    replace(SCOPES[name], **MAY) for name in ("failing-loads", "sync-loads", "producer")
)
EVERY_KIND = (SCOPES["drafts"], SCOPES["async-drafts"], *ANYTHING)


def visited(scope: Scope, seeds: range) -> Iterator[tuple[Compiled, Record, list[int]]]:
    """States of random runs with the codes enabled there."""
    compiled = compile_scope(scope)
    for seed in seeds:
        state, choose = compiled.initial(), RandomChooser(seed)
        for _ in range(40):
            enabled = enabled_codes(compiled, state).tolist()
            if not enabled:
                break
            yield compiled, state, enabled
            state = step(compiled, state, choose.pick(enabled))[0]


def methods(file: str, *, decorated: str | None = None) -> dict[str, ast.FunctionDef]:
    """Methods of a file's Engine."""
    tree = ast.parse((VLLM / file).read_text(encoding="utf-8"))
    (of_engine,) = (
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Engine"
    )
    return {
        node.name: node
        for node in of_engine.body
        if isinstance(node, ast.FunctionDef)
        and (decorated is None or decorated in map(ast.unparse, node.decorator_list))
    }


def test_every_kind_has_an_entry_in_the_order_of_the_kinds() -> None:
    assert list(ACTION_KINDS) == list(Kind)
    assert all(entry.kind == kind for kind, entry in ACTION_KINDS.items())
    fields = set(Action.__struct_fields__) - {"do"}
    assert set().union(*(entry.fields for entry in ACTION_KINDS.values())) == fields


def test_every_enabled_action_of_every_kind_is_encoded_as_it_was_decoded() -> None:
    met = set()
    for scope in EVERY_KIND:
        for compiled, state, enabled in visited(scope, range(8)):
            for code in enabled:
                entry = ACTION_KINDS[Kind(code % engine.KINDS)]
                action = entry.decode(compiled, state, code // engine.KINDS)
                assert action.kind == entry.kind
                assert entry.encode(compiled, state, action) == code // engine.KINDS
                assert code_of(compiled, state, action) == code
                met.add(entry.kind)
    assert met == set(Kind)


def test_an_action_with_a_field_of_another_kind_has_no_number() -> None:
    compiled = compile_scope(SCOPES["pause"])
    state = compiled.initial()
    wrong = [
        Action("add"),
        Action("add", request=-1),
        Action("add", request=99),
        Action("add", request=0, pause="PAUSED_ALL"),
        Action("add", request=0, outcomes={0: Outcome()}),
        Action("set_pause_state"),
        Action("set_pause_state", pause="ASLEEP"),
        Action("set_pause_state", pause="UNPAUSED"),
        Action("reset_prefix_cache", request=0),
        Action("transfer_lands", request=0),
        Action("output"),
        Action("drafts"),
        Action("schedule", running=True),
    ]
    assert [code_of(compiled, state, action) for action in wrong] == [None] * len(wrong)
    right = [Action("add", request=0), Action("set_pause_state", pause="PAUSED_ALL")]
    assert None not in [code_of(compiled, state, action) for action in right]


def test_an_answer_that_the_device_cannot_give_is_brought_near_only_where_asked() -> None:
    for compiled, state, enabled in visited(SCOPES["drafts"], range(20)):
        for code in enabled:
            drafts = name_action(compiled, state, code).drafts
            if not drafts:
                continue
            too_many = Action("drafts", drafts=dict.fromkeys(drafts, 99))
            assert code_of(compiled, state, too_many) is None
            assert code_of(compiled, state, too_many, nearest=True) == int(Kind.DRAFTS)
            return
    pytest.fail("the drafter is never asked")


def test_an_action_of_no_known_kind_is_refused_by_name() -> None:
    with pytest.raises(ActionError, match="do = 'leave': allowed is add, abort"):
        Action("leave")
    with pytest.raises(msgspec.ValidationError, match=r"do = 'leave': allowed is .*\$\[0\]"):
        msgspec.json.decode(b'[{"do": "leave"}]', type=list[Action])


def test_what_is_never_waited_for_is_no_step_of_the_engine() -> None:
    for scope in EVERY_KIND:
        for compiled, state, enabled in visited(scope, range(1)):
            for code in enabled:
                after, report, _broken = step(compiled, state, code)
                labels = label(state, after, compiled.c, report, code)
                if ACTION_KINDS[Kind(code % engine.KINDS)].fairness == "none":
                    assert not labels & ENGINE


def test_what_the_scheduler_is_told_of_is_an_operation_of_the_driver() -> None:
    operations = methods("driver.py", decorated="operation")
    told = {OBSERVE: 0}
    for scope in EVERY_KIND:
        for compiled, state, enabled in visited(scope, range(8)):
            for code in enabled:
                action = name_action(compiled, state, code)
                _after, report, _broken = step(compiled, state, code)
                entry = ACTION_KINDS[action.kind]
                operation, *arguments = entry.operation(compiled, state, action, report)
                told[operation] = len(arguments)
    needed = {
        name: len(node.args.args) - len(node.args.defaults) - 1 for name, node in operations.items()
    }
    assert told == needed


def test_an_exported_test_has_a_call_for_every_kind() -> None:
    assert {entry.name for entry in ACTION_KINDS.values()} <= set(methods("exported.py"))
