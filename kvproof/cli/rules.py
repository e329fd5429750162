"""`kvproof rules`: the guards of vLLM that a scope may switch off."""

from __future__ import annotations

from kvproof.cli.console import Json, out, print_json, titled
from kvproof.spec.rules import RULES


def command(as_json: Json = False) -> None:
    """List the rules: the guards of vLLM that a scope may switch off."""
    if as_json:
        rows = [
            {"rule": i.rule.name, "requires": i.requires, "where": i.where, "reports": i.reports}
            for i in RULES
        ]
        print_json("rules", rows)
        return
    for info in RULES:
        out.print(titled(info.rule.name, f"  {info.requires}"))
