"""What the commands share: where they print, how they show progress, and common options."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvproof import __version__

FORMAT = 1
"""Version of what `--json` prints."""

out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the outcome only.")]
To = Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write it to this file.")]


def print_json(command: str, results: Any) -> None:
    """Results for machines, in an envelope that says whose they are and in which format."""
    print(
        json.dumps(
            {"kvproof": __version__, "format": FORMAT, "command": command, "results": results},
            indent=1,
        )
    )


@contextmanager
def telling_of_compilation() -> Iterator[None]:
    """Say so once if something is compiled."""
    from kvproof.native.jit import compiling

    with compiling(err.print):
        yield


Show = Callable[[str], None]


@contextmanager
def live_line() -> Iterator[Show | None]:
    """One line on stderr that changes, cut to the terminal; None where stderr is no terminal."""
    if not err.is_terminal:
        yield None
        return
    with Live(console=err, transient=True, refresh_per_second=10) as live:
        yield lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"))


@contextmanager
def counted_line(title: str = "") -> Iterator[Callable[..., None] | None]:
    """Show how much of a known amount is done, and the time left; None where it is no terminal.

    What is shown is called with what is done, the total, and a word on what it is at.
    """
    started = time.monotonic()
    with live_line() as show:
        if show is None:
            yield None
            return

        def count(done: float, total: float, what: str = "") -> None:
            left = ""
            if 0 < done < total:
                left = f", {_duration((time.monotonic() - started) / done * (total - done))} left"
            shown = f"{done:,.0f} of {total:,.0f} ({done / max(total, 1):.0%}{left})"
            show(" ".join(word for word in (title, shown, what) if word))

        yield count


def _duration(seconds: float) -> str:
    """A time in its largest units: 45 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def say(line: str) -> None:
    """One line of kvproof on stderr; what it quotes is shown without doing anything there."""
    err.print(f"kvproof: {line.translate(_ESCAPED)}")


_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if code != 10}


def coloured(outcome: str) -> Text:
    """An outcome in its colour."""
    colours = {"holds": "green", "violated": "red", "bounded": "yellow", "equal": "green"}
    return Text(outcome, style=colours.get(outcome, "red"))


def titled(title: str, *rest: str | Text) -> Text:
    """A line that begins with a bold title."""
    return Text.assemble((title, "bold"), *rest)
