"""Arguments that several commands take: scopes, rules, limits, releases of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvproof.errors import KvproofError
from kvproof.model.scope import Scope, load_scope
from kvproof.scopes.named import SCOPES

Scopes = Annotated[
    list[str] | None, typer.Argument(metavar="[SCOPE]...", help="Names or .toml files.")
]
MaxStates = Annotated[int | None, typer.Option(help="Stop after this many states.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Stop after this long.")]
MaxMemory = Annotated[int | None, typer.Option(help="Most megabytes that the process may take.")]
RuleOff = Annotated[list[str] | None, typer.Option(help="Switch a rule off; may be repeated.")]
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


def find_scopes(names: list[str] | None, rules_off: list[str] | None) -> list[Scope]:
    """The scopes with these names, all named ones if there are none, without the rules."""
    return [find_scope(name).with_rules_off(*rules_off or ()) for name in names or SCOPES]


def check_limits(states: int | None, seconds: float | None, memory: int | None) -> None:
    """UsageError for a limit that is none."""
    for option, value in (
        ("--max-states", states),
        ("--max-seconds", seconds),
        ("--max-memory", memory),
    ):
        if value is not None and not value > 0:
            raise UsageError(f"{option} = {value}: allowed is more than 0")
