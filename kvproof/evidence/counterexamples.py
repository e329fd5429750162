"""Counterexamples: for each rule a minimal run that goes wrong without it, as data and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from kvproof.checker.check import Limits, check
from kvproof.checker.minimize import minimize, whole_only
from kvproof.errors import KvproofError
from kvproof.evidence.project import COUNTEREXAMPLES, project
from kvproof.model.rules import Rule
from kvproof.model.scope import Scope
from kvproof.scopes.cuts import measure, weight
from kvproof.scopes.named import SCOPES
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id
from kvproof.spec.rules import INFO
from kvproof.trace.files import write_bytes
from kvproof.trace.mermaid import mermaid
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, TraceError, load, save

FOLDER = Path(COUNTEREXAMPLES)

_STATES = 100_000


class NotNeeded(KvproofError, RuntimeError):
    """A rule that can be switched off without anything going wrong in the scopes at hand."""


def find(rule: Rule) -> Trace:
    """The smallest of the minimal runs, one from each scope in which the rule is missed.

    A run that breaks an invariant named with the rule goes before others; a rule's own scope goes
    before the named ones. Raises NotNeeded where no scope misses the rule.
    """
    traces = list(_minimal_runs(rule))
    if not traces:
        raise NotNeeded(f"{rule.name}: nothing goes wrong without it in any scope")
    least = min(traces, key=lambda trace: _size(rule, trace))
    scope = msgspec.structs.replace(least.scope, name=rule.name)
    return msgspec.structs.replace(least, scope=scope)


def _minimal_runs(rule: Rule) -> Iterator[Trace]:
    past = frozenset(map(Id.__getitem__, INFO[rule.name].past))
    meant = _meant(rule)
    for scope in _scopes(rule):
        off = scope.with_rules_off(rule.name)
        violation = check(off, Limits(states=_STATES), ignore=past).result.finished().violation
        if violation is None:
            continue
        wanted = meant.intersection(violation.invariants)
        yield minimize(off, wanted or violation.invariants, past=past, watch=whole_only)


def _scopes(rule: Rule) -> Iterable[Scope]:
    seed = INFO[rule.name].seed
    return SCOPES.values() if seed is None else (seed,)


def _meant(rule: Rule) -> frozenset[str]:
    """Names of the invariants of which the registry says that they fall without the rule."""
    return frozenset(INFO[rule.name].breaks)


def _size(rule: Rule, trace: Trace) -> tuple[object, ...]:
    other = _meant(rule).isdisjoint(trace.broken)
    return other, weight(trace.scope), len(trace.actions), measure(trace.scope)


def page(rule: Rule, trace: Trace) -> str:
    """The counterexample in words: the rule, what falls and why, the run, and its sequence."""
    info = INFO[rule.name]
    statements = [
        f"- `{invariant.id.name}`: {invariant.statement}"
        for invariant in INVARIANTS
        if invariant.id.name in trace.broken
    ]
    return "\n".join(
        (
            f"# {rule.name}\n",
            f"{info.requires} (`{info.where}`)\n",
            *([f"Public reports: {', '.join(info.reports)}.\n"] if info.reports else []),
            f"Without this rule {len(trace.actions)} actions break:\n",
            *statements,
            "",
            f"{info.account}\n",
            "## Run\n",
            f"`kvproof replay counterexamples/{rule.name}.json` shows it too.\n",
            "```",
            render(trace).rstrip(),
            "```\n",
            "## Sequence\n",
            "```mermaid",
            mermaid(trace).rstrip(),
            "```",
            "",
        )
    )


def write(
    rules: Iterable[str] = (),
    folder: Path | None = None,
    *,
    watch: Callable[[int, int, str], None] | None = None,
) -> Iterator[Path]:
    """Search, minimise and write `<rule>.json` and `<rule>.md` of the named rules, or of all.

    They go to counterexamples/ of the project, or to `folder`; each path is given when its file is
    written. `watch` is told how many rules are done, of how many, and which one comes. Raises
    TraceError for a name that is no rule's, NotNeeded for a rule that nothing misses.
    """
    chosen = [_rule(name) for name in rules] or list(Rule)
    folder = folder or project() / FOLDER
    for done, rule in enumerate(chosen):
        if watch is not None:
            watch(done, len(chosen), rule.name)
        data = folder / f"{rule.name}.json"
        save(find(rule), data, force=True)
        yield data
        yield from write_pages([rule], folder)


def write_pages(rules: Iterable[Rule] = Rule, folder: Path | None = None) -> list[Path]:
    """Write `<rule>.md` from the recorded `<rule>.json`; returns the paths."""
    paths = []
    folder = folder or project() / FOLDER
    for rule in rules:
        path = folder / f"{rule.name}.md"
        run = path.with_suffix(".json")
        if not run.exists():
            raise TraceError(
                f"{rule.name} has no counterexample yet: `kvproof counterexamples {rule.name}`"
            )
        write_bytes(path, page(rule, load(run)).encode())
        paths.append(path)
    return paths


def _rule(name: str) -> Rule:
    if name not in Rule.__members__:
        raise TraceError(f"no rule is named {name!r}; `kvproof rules` lists them")
    return Rule[name]
