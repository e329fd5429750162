"""Arguments that several commands take: scopes, rules, limits, releases of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvproof.checker.minimize import follow_in
from kvproof.errors import KvproofError
from kvproof.model.scope import Scope, load_scope
from kvproof.scopes.named import SCOPES
from kvproof.spec.mends import mended
from kvproof.trace.trace import Trace, passed_over

Scopes = Annotated[
    list[str] | None, typer.Argument(metavar="[SCOPE]...", help="Names or .toml files.")
]
MaxStates = Annotated[int | None, typer.Option(help="Stop after this many states.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Stop after this long.")]
MaxMemory = Annotated[int | None, typer.Option(help="Most megabytes that the process may take.")]
RuleOff = Annotated[list[str] | None, typer.Option(help="Switch a rule off; may be repeated.")]
Mends = Annotated[list[str] | None, typer.Option("--mend", help="Make a mend; may be repeated.")]
Mended = Annotated[bool, typer.Option("--mended", help="Make every mend.")]
Version = Annotated[str, typer.Option(help="Release of vLLM.")]


class UsageError(KvproofError):
    """A mistake in the command's arguments: names the option, its value and what is allowed."""


def find_scope(name: str) -> Scope:
    """A named scope, or one from a TOML file."""
    if name in SCOPES:
        return SCOPES[name]
    if name == "-" or name.lower().endswith(".toml"):
        return load_scope(Path(name))
    raise UsageError(
        f"no scope is named {name!r}; `kvproof scopes` lists them, a file ends in .toml"
    )


def find_scopes(
    names: list[str] | None,
    rules_off: list[str] | None,
    mends: list[str] | None,
    all_mends: bool,
) -> list[Scope]:
    """The scopes with these names, all named ones if there are none, without the rules, mended."""
    return [
        with_mends(find_scope(name).with_rules_off(*rules_off or ()), mends, all_mends)
        for name in names or SCOPES
    ]


def with_mends(scope: Scope, mends: list[str] | None, all_mends: bool) -> Scope:
    """The scope with these mends, or with all."""
    scope = scope.with_mends(*mends or ())
    return mended(scope) if all_mends else scope


def with_mends_made(trace: Trace, mends: list[str] | None, all_mends: bool) -> Trace:
    """The trace's actions, as far as they are enabled, with these mends or all; as it is if none.

    The invariants that the trace passes over are passed over.
    """
    scope = with_mends(trace.scope, mends, all_mends)
    if scope == trace.scope:
        return trace
    return follow_in(scope, trace, passed_over(trace))


def check_limits(states: int | None, seconds: float | None, memory: int | None) -> None:
    """UsageError for a limit that is none."""
    for option, value in (
        ("--max-states", states),
        ("--max-seconds", seconds),
        ("--max-memory", memory),
    ):
        if value is not None and not value > 0:
            raise UsageError(f"{option} = {value}: allowed is more than 0")
