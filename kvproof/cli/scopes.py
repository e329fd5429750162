"""`kvproof scopes`: the named scopes."""

from __future__ import annotations

import msgspec
from rich.table import Table

from kvproof.cli.console import Json, out, print_json
from kvproof.scopes.named import SCOPES


def command(as_json: Json = False) -> None:
    """List the named scopes."""
    if as_json:
        print_json("scopes", [msgspec.to_builtins(scope) for scope in SCOPES.values()])
        return
    table = Table("scope", "requests", "blocks", "about", box=None, pad_edge=False)
    for scope in SCOPES.values():
        table.add_row(
            scope.name,
            str(len(scope.requests)),
            f"{scope.num_blocks - 1} x {scope.block_size}",
            scope.about,
        )
    out.print(table)
