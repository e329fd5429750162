"""Exported tests as files; checks/test_exported.py runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from kvproof.bridge.export import export_test
from kvproof.checker.check import check
from kvproof.evidence.counterexamples import FOLDER
from kvproof.evidence.finding_pages import FOLDER as FINDINGS_FOLDER
from kvproof.model.rules import Rule
from kvproof.scopes.named import SCOPES
from kvproof.trace.trace import Trace, TraceError, load

ROOT = Path(__file__).parent.parent
RULES = {rule.name: ROOT / FOLDER / f"{rule.name}.json" for rule in Rule}
FINDINGS = {path.stem: path for path in sorted((ROOT / FINDINGS_FOLDER).glob("*.json"))}

each_trace = pytest.mark.parametrize("name", [*RULES, *FINDINGS])


def exported(name: str) -> str:
    return export_test(load({**RULES, **FINDINGS}[name]))


def calls(source: str) -> list[str]:
    """The calls of the engine in an exported test, as they stand there."""
    test = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )
    found = [ast.unparse(node) for node in test.body if isinstance(node, ast.Expr)]
    return [call for call in found if not call.startswith("e.expect(")]


@each_trace
def test_an_exported_test_needs_nothing_of_kvproof(name: str) -> None:
    modules = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(exported(name)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert not {module for module in modules if str(module).startswith(("kvproof", "model"))}
    assert "vllm.v1.core.sched.scheduler" in modules


def test_every_call_that_the_guard_allows_is_exported() -> None:
    source = exported("hold_blocks_until_load_done")
    assert calls(source) == ["e.add(0)", "e.schedule()", "e.abort(0)"]
    assert "e = Engine(no_reuse_in_flight)" in source
    assert "class ScriptedConnector" in source
    assert "class ScriptedConnector" not in exported("free_tail_first")


def test_a_plain_run_is_exported_with_all_that_is_to_be_seen() -> None:
    trace = check(SCOPES["two-equal"].with_rules_off("free_tail_first")).trace
    assert trace is not None
    plain = Trace(SCOPES["two-equal"], trace.actions)
    source = export_test(plain)
    assert len(calls(source)) == len(plain.actions)
    assert "e = Engine()" in source


def test_a_trace_that_is_not_as_it_says_is_refused() -> None:
    with pytest.raises(TraceError, match="does not break Isolation at its end"):
        export_test(Trace(SCOPES["two-equal"], (), ("Isolation",)))
    finding = load(next(iter(FINDINGS.values())))
    with pytest.raises(TraceError, match="leave rules_off empty"):
        export_test(Trace(finding.scope.with_rules_off("finish_once"), finding.actions))
