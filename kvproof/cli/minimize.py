"""`kvproof minimize`: the smallest scope that still has the violation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvproof.checker.minimize import SoFar, minimize
from kvproof.cli.arguments import Mended, Mends, UsageError, with_mends_made
from kvproof.cli.console import (
    Force,
    Json,
    err,
    live_line,
    out,
    print_json,
    telling_of_compilation,
)
from kvproof.cli.files import check_output
from kvproof.cli.outcomes import HOLDS, INTERRUPTED
from kvproof.trace.render import render
from kvproof.trace.trace import load, passed_over, save

EXAMPLES = """
kvproof minimize x.json --to y.json
"""

_HOW_IT_ENDED = {
    "minimal": "minimal: no cut is left, and no shorter run of the scope breaks it",
    "short": "short, not shown to be shortest: the scope is too large to be searched",
    "interrupted": "interrupted: the best so far",
}


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace file.")],
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="Write the smaller trace to this file.")
    ],
    mend: Mends = None,
    mended: Mended = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Shrink a trace's scope while its violation stays; Ctrl-C keeps the best so far."""
    check_output("--to", to, force=force)
    trace = with_mends_made(load(file), mend, mended)
    if not trace.broken and trace.scope.mends:
        raise UsageError(f"{file}: breaks nothing with {', '.join(trace.scope.mends)}")
    reports: list[SoFar] = []
    with telling_of_compilation(), live_line() as show:

        def watch(report: SoFar) -> None:
            reports[:] = [report]
            if show is not None:
                show(f"{report.stage}: {_said(report)}")

        past = passed_over(trace)
        smaller = minimize(trace, trace.broken, past=past, watch=watch)
    last = reports[-1]
    try:
        if as_json:
            found = {"stage": last.stage, "seconds": round(last.seconds, 2)}
            print_json("minimize", {**found, "trace": msgspec.to_builtins(smaller)})
        else:
            out.print(render(smaller))
    finally:  # a reader who has gone is no reason to lose the trace
        save(smaller, to, force=force)
    err.print(f"{_HOW_IT_ENDED[last.stage]} ({_said(last)})")
    raise typer.Exit(INTERRUPTED if last.stage == "interrupted" else HOLDS)


def _said(p: SoFar) -> str:
    return (
        f"{p.candidates} candidates, {len(p.scope.requests)} requests, "
        f"{p.scope.num_blocks - 1} blocks, {p.actions} actions, {p.seconds:.1f} s"
    )
