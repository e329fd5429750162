"""`kvproof docs`: the generated pages of the documentation."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from kvproof.cli.arguments import UsageError
from kvproof.cli.console import out, telling_of_compilation
from kvproof.evidence.counterexamples import write_pages
from kvproof.evidence.finding_pages import write_findings
from kvproof.evidence.generated import write_modules
from kvproof.evidence.hang_pages import write_hangs
from kvproof.evidence.pages import PAGES, SLOW_PAGES, write_docs
from kvproof.evidence.project import project

EXAMPLES = """
kvproof docs
kvproof docs proofs.md
"""


def command(
    pages: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PAGE]...", help="Pages by name; all quick ones by default."),
    ] = None,
) -> None:
    """Write the generated pages and the runs of the findings anew, in the project's folder."""
    folder = project()
    modules = write_modules(folder)
    for path in modules:
        out.print(str(path))
    if modules:
        # This process has the tables' old numbers.
        raise typer.Exit(
            subprocess.run([sys.executable, *sys.orig_argv[1:]], check=False).returncode
        )
    for name in pages or ():
        if name not in {**PAGES, **SLOW_PAGES}:
            allowed = ", ".join((*PAGES, *SLOW_PAGES))
            raise UsageError(f"PAGE = {name}: allowed is {allowed}")
    with telling_of_compilation():
        if not pages:
            for path in (*write_findings(), *write_hangs(), *write_pages()):
                out.print(str(path))
        for path in write_docs(folder / "docs", pages or PAGES):
            out.print(str(path))
