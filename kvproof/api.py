"""The front door for Python: what `import kvproof` offers, a function for each question.

Wherever a scope is asked for, a `Scope`, the name of a named one, or the path of a TOML file will
do. What is found comes back as values that print as the command line does, in a notebook too.
Whatever a user can mend is raised as `KvproofError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.forms import FORMS
from kvproof.bridge.lockstep import Report, lockstep_scope
from kvproof.bridge.vllm_replay import Replay, replay_on_vllm
from kvproof.checker.check import Check, Limits
from kvproof.checker.check import check as _check
from kvproof.checker.check_progress import ProgressCheck
from kvproof.checker.check_progress import check_progress as _check_progress
from kvproof.checker.minimize import follow_in
from kvproof.checker.minimize import minimize as _minimize
from kvproof.errors import KvproofError
from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope, load_scope
from kvproof.proof.induction import Proof
from kvproof.proof.proofs import SECONDS, THEOREMS, prove_theorem, prove_without
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id
from kvproof.trace.actions import Action
from kvproof.trace.lasso import Lasso, is_lasso, load_lasso, save_lasso
from kvproof.trace.trace import Run, Trace, passed_over
from kvproof.trace.trace import load as load_trace
from kvproof.trace.trace import replay as _replay
from kvproof.trace.trace import save as save_trace
from kvproof.walks.runs import random_runs as _random_runs
from kvproof.walks.worlds import ModelWorld, Tally

__all__ = [
    "SCOPES",
    "Action",
    "Check",
    "External",
    "KvproofError",
    "Lasso",
    "ProgressCheck",
    "Proof",
    "Replay",
    "RequestSpec",
    "Run",
    "Scope",
    "Trace",
    "check",
    "check_progress",
    "export",
    "load",
    "load_scope",
    "lockstep",
    "minimize",
    "prove",
    "random_runs",
    "replay",
    "save",
]

AnyScope = Scope | str | Path
Form = Literal["pytest", "itf", "mermaid", "dot"]


class ArgumentError(KvproofError, ValueError):
    """An argument that makes no sense: names it, its value and what is allowed."""


def _named(kind: str, name: str, names: Iterable[str]) -> str:
    known = tuple(names)
    if name not in known:
        raise ArgumentError(f"{kind} = {name!r}: allowed is {', '.join(known)}")
    return name


def _scope(scope: AnyScope, rules_off: Iterable[str], mends: Iterable[str] = ()) -> Scope:
    if not isinstance(scope, Scope):
        in_file = isinstance(scope, Path) or scope.lower().endswith(".toml")
        scope = load_scope(Path(scope)) if in_file else SCOPES[_named("scope", str(scope), SCOPES)]
    off = tuple(_named("rules_off", rule, Rule.__members__) for rule in rules_off)
    return scope.with_rules_off(*off).with_mends(*mends)


def _past(names: Iterable[str]) -> frozenset[Id]:
    return frozenset(Id[_named("past", name, Id.__members__)] for name in names)


def _limits(states: int | None, seconds: float | None, megabytes: int | None) -> Limits:
    for name, value in (
        ("max_states", states),
        ("max_seconds", seconds),
        ("max_memory", megabytes),
    ):
        if value is not None and not value > 0:
            raise ArgumentError(f"{name} = {value!r}: allowed is more than 0, or None")
    return Limits(states, None if megabytes is None else megabytes * 1_000_000, seconds)


def check(
    scope: AnyScope,
    *,
    rules_off: Iterable[str] = (),
    mends: Iterable[str] = (),
    past: Iterable[str] = (),
    max_states: int | None = None,
    max_seconds: float | None = None,
    max_memory: int | None = None,
) -> Check:
    """Search a scope exhaustively: does every state and every step satisfy every invariant?

    `rules_off` are guards to leave out, `mends` changes to make, `past` invariants that are not
    looked at. Without limits (states, seconds, megabytes) the search goes to the end; one that is
    reached makes the outcome "bounded". `trace` of the result is a shortest run to a violation.
    """
    limits = _limits(max_states, max_seconds, max_memory)
    return _check(_scope(scope, rules_off, mends), limits, ignore=_past(past))


def check_progress(
    scope: AnyScope,
    *,
    rules_off: Iterable[str] = (),
    mends: Iterable[str] = (),
    max_states: int | None = None,
    max_seconds: float | None = None,
    max_memory: int | None = None,
) -> ProgressCheck:
    """Search a scope for runs that never get anywhere; `lassos` of the result has them."""
    limits = _limits(max_states, max_seconds, max_memory)
    return _check_progress(_scope(scope, rules_off, mends), limits)


def minimize(source: Trace | Scope, *, past: Iterable[str] = ()) -> Trace:
    """The smallest scope found in which the same violation falls, with a shortest run there.

    `source` is a trace that ends in a violation, or a scope that has one.
    """
    passed = _past(past)
    if isinstance(source, Trace) and not passed:
        passed = passed_over(source)
    wanted = source.broken if isinstance(source, Trace) else ()
    return _minimize(source, wanted, past=passed)


def replay(source: Trace | Lasso, *, mends: Iterable[str] = ()) -> Run:
    """Take a trace's actions on the model again; a lasso goes round once.

    With mends the actions are taken as far as they are enabled then.
    """
    trace = source.rounds(1) if isinstance(source, Lasso) else source
    scope = _scope(trace.scope, (), mends)
    if scope != trace.scope:
        trace = follow_in(scope, trace, passed_over(trace))
    return Run(trace, tuple(_replay(trace)))


def lockstep(source: AnyScope | Trace, *, version: str = DEFAULT_VERSION) -> Report | Replay:
    """Take every transition of a scope, or a trace's actions, on vLLM's real classes too.

    Needs an environment with that release of vLLM (`make vllm`). The result `agrees` where
    everything that can be observed is equal after every action.
    """
    with Client(version) as client:
        if isinstance(source, Trace):
            return replay_on_vllm(source, client)
        return lockstep_scope(_scope(source, ()), client)


def prove(
    name: str | None = None, *, rule_off: str | None = None, seconds: float = SECONDS
) -> tuple[Proof, ...]:
    """Prove invariants for all sizes with Z3: one proof by name, or all of them."""
    names = THEOREMS if name is None else (_named("name", name, THEOREMS),)
    if rule_off is None:
        return tuple(prove_theorem(one, seconds=seconds) for one in names)
    rule = Rule[_named("rule_off", rule_off, Rule.__members__)]
    return tuple(prove_without(one, rule, seconds=seconds) for one in names)


def random_runs(runs: int, *, steps: int = 60, seed: int = 0, mends: Iterable[str] = ()) -> Tally:
    """Random runs of drawn scopes on the model, with these mends, checked after every action.

    Raises `Violation` at the first that breaks something which is no open finding.
    """
    made = tuple(mends)
    return _random_runs(
        ModelWorld, runs, steps=steps, seed=seed, prepare=lambda scope: _scope(scope, (), made)
    )


def load(path: Path | str) -> Trace | Lasso:
    """Read a trace or a lasso from its file."""
    path = Path(path)
    return load_lasso(path) if is_lasso(path) else load_trace(path)


def save(source: Trace | Lasso, path: Path | str, *, force: bool = False) -> None:
    """Write a trace or a lasso; an existing file is kept unless `force`."""
    if isinstance(source, Lasso):
        save_lasso(source, Path(path), force=force)
    else:
        save_trace(source, Path(path), force=force)


def export(source: Trace, form: Form) -> str:
    """A trace as a pytest file for vLLM, in Apalache's format, a diagram, or its state graph."""
    return FORMS[_named("form", form, FORMS)](source)
