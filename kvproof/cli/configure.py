"""`kvproof configure`: a configuration in which a rule is missed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from kvproof.cli.console import Json, out, print_json
from kvproof.cli.outcomes import HOLDS, VIOLATED
from kvproof.cli.prove import Seconds, check_seconds, find_rule
from kvproof.proof.configurations import Found, configurations, find_configuration
from kvproof.proof.proofs import SECONDS
from kvproof.proof.report import configuration_lines

EXAMPLES = """
kvproof configure reserve_lookahead
"""


def command(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule to leave out.")],
    seconds: Seconds = SECONDS,
    as_json: Json = False,
) -> None:
    """Let Z3 find a configuration in which a rule is missed: 1 if there is one, 0 if none."""
    check_seconds(seconds)
    missed = find_rule(rule)
    found = find_configuration(missed, seconds=seconds)
    if as_json:
        print_json("configure", None if found is None else _as_json(found))
        raise typer.Exit(HOLDS if found is None else VIOLATED)
    if found is None:
        out.print(f"Z3 finds no configuration in which {missed.name} is missed")
        raise typer.Exit(HOLDS)
    out.print(f"without {missed.name}:")
    for line in configuration_lines(found, configurations(frozenset({missed}))):
        out.print(line)
    raise typer.Exit(VIOLATED)


def _as_json(found: Found) -> dict[str, Any]:
    return {
        "configuration": dict(found.configuration),
        "broken": list(found.run.broken),
        "trace": None if found.trace is None else msgspec.to_builtins(found.trace),
    }
