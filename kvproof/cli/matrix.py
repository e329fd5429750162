"""`kvproof matrix`: which invariants fall without each rule."""

from __future__ import annotations

import msgspec
import typer
from rich.table import Table

from kvproof.cli.console import (
    Json,
    To,
    counted_line,
    err,
    out,
    print_json,
    telling_of_compilation,
)
from kvproof.cli.files import check_page, write_text
from kvproof.cli.outcomes import exit_code
from kvproof.evidence.matrix import matrix, page, table
from kvproof.model.rules import Rule
from kvproof.spec.masks import Id

EXAMPLES = """
kvproof matrix
kvproof matrix --to page.md
"""


def command(to: To = None, as_json: Json = False) -> None:
    """Show which invariants fall without each rule, and after how many actions."""
    check_page("--to", to)
    with telling_of_compilation(), counted_line() as show:
        rows = matrix(watch=show)
    interrupted = len(rows) < len(Rule)
    if as_json:
        falls = [
            {"rule": rule.name, "invariant": identity.name, **msgspec.to_builtins(fall)}
            for rule, row in rows.items()
            for identity, fall in row.items()
        ]
        print_json("matrix", falls)
    else:
        shown = Table("rule", *(str(identity + 1) for identity in Id), box=None, pad_edge=False)
        for cells in table(rows):
            shown.add_row(*cells)
        out.print(shown)
        out.print(", ".join(f"{identity + 1} {identity.name}" for identity in Id))
    if interrupted:
        err.print(f"{len(rows)} of {len(Rule)} rules")
    elif to is not None:
        write_text(to, page(rows))
    raise typer.Exit(exit_code([], interrupted=interrupted))
