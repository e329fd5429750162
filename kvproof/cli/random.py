"""`kvproof random`: random runs, far beyond what can be searched."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Annotated

import msgspec
import typer

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.follow import Difference, On, opener
from kvproof.bridge.observed import RealClasses, moments_on
from kvproof.cli.arguments import Mended, Mends, Version, with_mends
from kvproof.cli.console import (
    Force,
    Json,
    To,
    counted_line,
    out,
    print_json,
    telling_of_compilation,
)
from kvproof.cli.files import check_output
from kvproof.cli.outcomes import VIOLATED, exit_code
from kvproof.scopes.draw import Size
from kvproof.trace.render import render
from kvproof.trace.trace import save
from kvproof.walks.runs import random_runs
from kvproof.walks.worlds import Tally, Violation

MAX_STEPS = 1_000_000

EXAMPLES = """
kvproof random --runs 1000
kvproof random --on lockstep --runs 200 --steps 40
kvproof random --runs 1000 --mended
"""


def command(
    on: Annotated[On, typer.Option(help="What the runs move.")] = "model",
    runs: Annotated[int, typer.Option(min=1, help="Runs, each of a scope of its own.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, max=MAX_STEPS, help="Most actions of a run.")] = 60,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal runs.")] = 0,
    size: Annotated[Size | None, typer.Option(help="All sizes if not given.")] = None,
    plain: Annotated[bool, typer.Option(help="Prefer nothing.")] = False,
    mend: Mends = None,
    mended: Mended = False,
    to: To = None,
    version: Version = DEFAULT_VERSION,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Random runs over drawn scopes; exit code 1 at the first that breaks something or differs.

    `--to` gets the run that went wrong.
    """
    check_output("--to", to, force=force)
    started = time.perf_counter()
    with (
        telling_of_compilation(),
        nullcontext() if on == "model" else Client(version) as client,
        counted_line() as show,
    ):
        try:
            done = random_runs(
                opener(on, client),
                runs,
                steps=steps,
                seed=seed,
                size=size,
                guided=not plain,
                prepare=lambda scope: with_mends(scope, mend, mended),
                watch=show,
            )
        except (Violation, Difference) as wrong:
            if to is not None:
                save(wrong.trace, to, force=force)
            if as_json:
                found = {"wrong": str(wrong), "trace": msgspec.to_builtins(wrong.trace)}
                print_json("random", found)
            else:
                seen = None
                if wrong.trace.recorded_on and client is not None:
                    seen = moments_on(RealClasses(client), wrong.trace)
                out.print(f"{wrong}\n{render(wrong.trace, seen)}")
            raise typer.Exit(VIOLATED) from None
    seconds = time.perf_counter() - started
    if as_json:
        print_json("random", {**_as_json(done), "seconds": round(seconds, 2)})
    else:
        out.print(f"{done}, {seconds:.0f} s")
    raise typer.Exit(exit_code([], interrupted=done.interrupted))


def _as_json(done: Tally) -> dict[str, object]:
    return {
        "runs": done.runs,
        "actions": done.actions,
        **done.targets(),
        "findings": dict(done.findings),
    }
