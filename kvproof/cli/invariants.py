"""`kvproof invariants`: what must hold."""

from __future__ import annotations

from kvproof.cli.console import Json, out, print_json, titled
from kvproof.spec.invariants import INVARIANTS


def command(as_json: Json = False) -> None:
    """List the invariants."""
    if as_json:
        rows = [
            {"id": i.id.name, "kind": i.kind, "statement": i.statement, "why": i.why}
            for i in INVARIANTS
        ]
        print_json("invariants", rows)
        return
    for invariant in INVARIANTS:
        out.print(titled(invariant.id.name, f" ({invariant.kind})  {invariant.statement}"))
