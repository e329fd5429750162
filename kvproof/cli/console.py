"""What the commands share: where they print, and options that mean the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvproof.native.jit import compiling

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


def say_of(name: str, markup: str) -> None:
    """Print a name as it is, brackets and all, and what is to be said of it."""
    out.print(Text.assemble((name, "bold"), ": ", Text.from_markup(markup)))


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Say so once if something is compiled."""
    with compiling(lambda: err.print("compiling (a minute or so, kept for the next time)...")):
        yield
