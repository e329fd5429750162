"""Traces as tests of vLLM: one file that needs vLLM and nothing else, for a bug report.

A trace without a rule becomes a run of vLLM as it is, guard and all: the test passes, and fails
once the guard is taken out. A trace that goes wrong with every rule on becomes a test that fails
where the trace does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from pprint import pformat
from typing import Any

from kvproof import __version__
from kvproof.bridge import observation
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.checker.minimize import with_rules_on
from kvproof.model import scheduler
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.native.record import Record
from kvproof.spec.invariants import INVARIANTS
from kvproof.trace.action_kinds import ACTION_KINDS
from kvproof.trace.render import scope_lines
from kvproof.trace.trace import Moment, Trace, TraceError, replay
from kvproof.vllm import protocol

_SOURCES = tuple(Path(protocol.__file__).with_name(name) for name in ("exported.py", "config.py"))
_CONNECTOR = ("Loads", "ScriptedConnector")
_WIDTH = 99


def export_test(trace: Trace) -> str:
    """A self-contained pytest file that drives vLLM's scheduler with the trace's calls.

    It compares what can be seen after each call (tokens scheduled and delivered, victims, queues,
    block tables, free and published blocks) with the model, and checks the trace's invariants on
    the real objects. Where rules are off the calls are those that are possible with them on.
    TraceError for a trace that is not as it says, or of which nothing shows on real objects.
    """
    known = _definitions()
    kernels = {one.name: one.kernel_name for one in INVARIANTS}
    names = [name for name in map(kernels.__getitem__, trace.broken) if name in known]
    run = _guarded(trace) if trace.scope.rules_off else trace
    moments = list(replay(run))
    fails = bool(trace.broken) and not trace.scope.rules_off
    if fails:
        if not moments or set(trace.broken).isdisjoint(moments[-1].broken):
            raise TraceError(f"the trace does not break {', '.join(trace.broken)} at its end")
        if not names and "NoAssertion" not in trace.broken:
            raise TraceError(
                f"broken = {', '.join(trace.broken)}: does not show on vLLM's objects by itself"
            )
    compiled = compile_scope(run.scope)
    test = f"test_{_identifier(trace.scope.name)}"
    return "\n".join(
        (
            _docstring(trace),
            *_imports(known, connector=run.scope.kv_role is not None),
            "",
            f"SCOPE = {pformat(_values(compiled), width=_WIDTH - 8, sort_dicts=False)}",
            *_parts(known, names, connector=run.scope.kv_role is not None),
            "",
            "",
            f"def {test}():",
            f"    e = Engine({', '.join(names)})",
            *(f"    {line}" for line in _calls(compiled, moments, fails)),
            *_closing(trace),
            "",
            "",
            'if __name__ == "__main__":',
            f"    {test}()",
            "",
        )
    )


def _guarded(trace: Trace) -> Trace:
    """The run of the same actions with the rules on."""
    run = with_rules_on(trace)
    if run.broken:
        raise TraceError(
            f"the trace breaks {', '.join(run.broken)} with its rules on too: leave rules_off empty"
        )
    return run


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_") or "trace"


def _docstring(trace: Trace) -> str:
    scope = trace.scope
    statements = {i.name: i.statement for i in INVARIANTS}
    if scope.rules_off:
        says = f"Passes on vLLM {DEFAULT_VERSION}; without {', '.join(scope.rules_off)} it fails:"
    elif trace.broken:
        says = f"Fails on vLLM {DEFAULT_VERSION} at the last call:"
    else:
        says = f"Passes on vLLM {DEFAULT_VERSION}."
    broken = [f"  {name}: {statements[name]}" for name in trace.broken]
    text = "\n".join((says, *broken, "", *scope_lines(trace)))
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'"""A run of vLLM\'s scheduler without a model, written by kvproof {__version__}.\n\n'
        f"Run it with pytest or as a script, in an environment with vLLM.\n\n{text}\n"
        '"""\n'
    )


@cache
def _definitions() -> dict[str, str]:
    """Sources of what the modules define and import, by name; imports by their module's."""
    found = {}
    for path in _SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            source = ast.get_source_segment(text, node) or ""
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                decorators = [f"@{ast.unparse(d)}\n" for d in node.decorator_list]
                found[node.name] = "".join(decorators) + source
            elif isinstance(node, ast.ImportFrom):
                found[f"import {node.module}"] = source
            elif isinstance(node, ast.Import):
                found[f"import {node.names[0].name}"] = source
            else:
                found[f"{path.stem} line {node.lineno}"] = source
    return {name: source.replace("  # type: ignore[misc]", "") for name, source in found.items()}


def _imports(known: dict[str, str], connector: bool) -> Iterator[str]:
    """The imports in the usual order, those of this project left out."""

    def place(name: str) -> tuple[bool, bool, bool, str]:
        package = name.split()[1].partition(".")[0]
        return (
            name != "import __future__",
            package in ("torch", "vllm"),
            known[name].startswith("from "),
            name,
        )

    for name in sorted((name for name in known if name.startswith("import ")), key=place):
        if name.startswith("import kvproof.") or (not connector and ".kv_connector." in name):
            continue
        if name == "import torch":
            yield ""
        yield known[name]
        if name == "import __future__":
            yield ""


def _parts(known: dict[str, str], names: list[str], connector: bool) -> Iterator[str]:
    """The definitions in the order of their files: all of the engine, the invariants asked for."""
    invariants = {invariant.kernel_name for invariant in INVARIANTS}
    for name, source in known.items():
        if " line " in name and "SCOPE: " not in source and '"""' not in source:
            yield source
        elif name.startswith("import ") or " line " in name:
            continue
        elif (name not in invariants or name in names) and (connector or name not in _CONNECTOR):
            yield f"\n\n{source}"


def _values(compiled: Compiled) -> dict[str, Any]:
    """The scope as plain values, each request with the tokens of its prompt and of its answer."""
    values = observation.scope_values(compiled.scope)
    for request, tokens in zip(values["requests"], compiled.tokens, strict=True):
        request["prompt"], request["tokens"] = len(request["prompt"]), list(tokens)
    return values


def _calls(compiled: Compiled, moments: list[Moment], fails: bool) -> Iterator[str]:
    """Each action's call and what is to be seen after it; nothing after one that fails."""
    state = compiled.initial()
    lasting = _lasting(compiled, state)
    yield from _expectation(lasting)
    for moment in moments:
        yield f"# {moment.number}. {moment.action}"
        entry = ACTION_KINDS[moment.action.kind]
        yield f"e.{entry.call(compiled, moment.before, moment.action, moment.report)}"
        if fails and moment is moments[-1]:
            return
        facts = _lasting(compiled, moment.after)
        changed = {name: value for name, value in facts.items() if lasting[name] != value}
        yield from _expectation({**_seen(compiled, moment), **changed})
        lasting = facts


def _expectation(facts: dict[str, Any]) -> Iterator[str]:
    line = f"e.expect({', '.join(f'{name}={value!r}' for name, value in facts.items())})"
    if len(line) <= _WIDTH - 4:
        yield line
        return
    yield "e.expect("
    for name, value in facts.items():
        yield f"    {name}={value!r},"
    yield ")"


def _lasting(compiled: Compiled, s: Record) -> dict[str, Any]:
    """What can be seen of a state, in the form of the exported engine's facts."""

    def queue(field: Any, length: int) -> list[int]:
        return [int(r) - 1 for r in field[:length]]

    requests = range(len(compiled.scope.requests))
    tables = {r: s.block_table[r, : s.num_blocks[r]].tolist() for r in requests}
    published = enumerate(s.block_hash.tolist())
    return {
        "running": queue(s.running, s.num_running),
        "waiting": [
            *queue(s.kv_holding, s.num_kv_holding),
            *queue(s.waiting, s.num_waiting),
        ],
        "tables": {r: table for r, table in tables.items() if table},
        "free": s.free_queue[: s.num_free].tolist(),
        "published": {b: list(compiled.prefixes[code][1]) for b, code in published if code},
        "awake": bool(scheduler.has_requests(s, compiled.c)),  # type: ignore[no-untyped-call]
    }


def _seen(compiled: Compiled, moment: Moment) -> dict[str, Any]:
    """What can be seen of the call itself."""
    result = observation.expected_result(
        compiled, moment.before, moment.after, moment.action, moment.report
    )
    facts: dict[str, Any] = {}
    if moment.action.kind == Kind.SCHEDULE:
        facts = {
            "scheduled": dict(result["scheduled"]),
            "drafts": {r: len(drafts) for r, drafts in result["drafts"].items()},
            "preempted": result["preempted"],
        }
    elif moment.action.kind == Kind.OUTPUT:
        facts = {"delivered": {r: tokens for r, (tokens, *_) in result.items() if tokens}}
    else:
        facts = {"returned": result}
    return {name: value for name, value in facts.items() if value}


def _closing(trace: Trace) -> Iterator[str]:
    """A last word on what would show here."""
    if trace.broken:
        when = f"without {', '.join(trace.scope.rules_off)}" if trace.scope.rules_off else "here"
        yield f"    # {when}: {', '.join(trace.broken)}"
