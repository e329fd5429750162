"""`kvproof sweep-progress`: the scopes of the sweep, for runs that never get anywhere."""

from __future__ import annotations

from contextlib import nullcontext

import typer

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.loops import go_round
from kvproof.checker.known import known_hang
from kvproof.cli.arguments import Version
from kvproof.cli.console import Json, To, counted_line, out, print_json, telling_of_compilation
from kvproof.cli.files import check_page, write_text
from kvproof.cli.outcomes import exit_code
from kvproof.cli.sweep import (
    Count,
    Minutes,
    OnVllm,
    Record,
    Seed,
    Strength,
    bound_of,
)
from kvproof.sweep.progress_report import progress_sweep_page, sweep_as_json, sweep_summary
from kvproof.sweep.progress_sweep import progress_sweep

EXAMPLES = """
kvproof sweep-progress
kvproof sweep-progress --strength 3 --vllm --to page.md
kvproof sweep-progress --strength 4 --minutes 60 --record nightly.jsonl
"""


def command(
    strength: Strength = 2,
    scopes: Count = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    record: Record = None,
    to: To = None,
    vllm: OnVllm = False,
    version: Version = DEFAULT_VERSION,
    as_json: Json = False,
) -> None:
    """Look for runs that never get anywhere in the scopes of the sweep; `--to` gets the page.

    Exit code 1 if there is one that no open finding explains.
    """
    bound = bound_of(scopes, minutes)
    check_page("--to", to)
    with telling_of_compilation(), counted_line() as show:
        done = progress_sweep(bound, strength=strength, seed=seed, record=record, watch=show)
    interrupted = done.ended == "interrupted"
    rows = []
    with Client(version) if vllm and not interrupted else nullcontext() as client:
        for identity, found in done.distinct.items():
            agrees = None if client is None else go_round(found, client).agrees
            rows.append((identity, found, known_hang(identity), agrees))
    if as_json:
        print_json("sweep-progress", sweep_as_json(done, rows))
    else:
        out.print(sweep_summary(done, rows))
    if to is not None:
        write_text(to, progress_sweep_page(done))
    news = any(hang is None or agrees is False for _identity, _found, hang, agrees in rows)
    raise typer.Exit(exit_code(["violated"] if news else [], interrupted=interrupted))
