"""`kvproof counterexamples`: the runs that show what each rule is for, made anew."""

from __future__ import annotations

from typing import Annotated

import typer

from kvproof.cli.console import counted_line, out, telling_of_compilation
from kvproof.cli.outcomes import INTERRUPTED
from kvproof.evidence.counterexamples import write

EXAMPLES = """
kvproof counterexamples evict_hash_on_reuse
"""


def command(
    rules: Annotated[
        list[str] | None, typer.Argument(metavar="[RULE]...", help="Rules; all by default.")
    ] = None,
) -> None:
    """Search, minimise and write counterexamples/ anew, in the project's folder: minutes."""
    with telling_of_compilation(), counted_line() as show:
        try:
            for path in write(rules or (), watch=show):
                out.print(str(path))
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
