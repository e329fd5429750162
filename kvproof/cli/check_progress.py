"""`kvproof check-progress`: does anything wait for ever?"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from kvproof.checker.check import Limits
from kvproof.checker.check_progress import ProgressCheck, check_progress
from kvproof.cli.arguments import (
    MaxMemory,
    MaxSeconds,
    MaxStates,
    Mended,
    Mends,
    RuleOff,
    Scopes,
    check_limits,
    find_scopes,
)
from kvproof.cli.console import Force, Json, Quiet, To, out, print_json, titled
from kvproof.cli.files import check_output
from kvproof.cli.outcomes import exit_code
from kvproof.cli.searching import searched
from kvproof.sweep.progress_report import as_json as report_as_json
from kvproof.trace.lasso import render_lasso, save_lasso

EXAMPLES = """
kvproof check-progress two-loads
kvproof check-progress two-loads --rule-off drain_block_holders_first --to lasso.json
"""


def command(
    scopes: Scopes = None,
    max_states: MaxStates = None,
    max_seconds: MaxSeconds = None,
    max_memory: MaxMemory = None,
    rule_off: RuleOff = None,
    mend: Mends = None,
    mended: Mended = False,
    rename: Annotated[bool, typer.Option(help="Rename blocks canonically.")] = True,
    to: To = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look for runs that never get anywhere; `--to` gets the first lasso."""
    check_limits(max_states, max_seconds, max_memory)
    check_output("--to", to, force=force)
    chosen = find_scopes(scopes, rule_off, mend, mended)
    memory = None if max_memory is None else max_memory * 1_000_000
    limits = Limits(max_states, memory, max_seconds)
    done: list[ProgressCheck] = []
    try:
        for one in searched(chosen, partial(check_progress, limits=limits, rename=rename)):
            done.append(one)
            if not as_json:
                out.print(titled(one.scope.name, f": {one.headline}"))
                for found in () if quiet else one.lassos:
                    out.print(f"\n{render_lasso(found)}")
        if as_json:
            print_json("check-progress", [report_as_json(one) for one in done])
    finally:  # a reader who has gone is no reason to lose the lasso
        first = next((found for one in done for found in one.lassos), None)
        if first is not None and to is not None:
            save_lasso(first, to, force=force)
    interrupted = any(one.result.reason == "interrupted" for one in done)
    raise typer.Exit(exit_code((one.outcome for one in done), interrupted=interrupted))
