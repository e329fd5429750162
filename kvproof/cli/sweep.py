"""`kvproof sweep`: small scopes that cover every pair of options, each searched."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.vllm_replay import replay_on_vllm
from kvproof.checker.known import known_finding
from kvproof.cli.arguments import UsageError, Version
from kvproof.cli.console import (
    Json,
    Quiet,
    To,
    counted_line,
    out,
    print_json,
    telling_of_compilation,
    titled,
)
from kvproof.cli.files import check_page, write_text
from kvproof.cli.outcomes import exit_code
from kvproof.sweep.sweep import FULL, QUICK, Sweep, minimal, summary_page, sweep
from kvproof.trace.render import render

Full = Annotated[bool, typer.Option(help=f"{FULL} scopes instead of {QUICK}.")]
Count = Annotated[int | None, typer.Option("--scopes", help="As many scopes as this.")]
Seed = Annotated[int, typer.Option(help="Another seed, other scopes.")]
OnVllm = Annotated[bool, typer.Option("--vllm", help="Replay what falls on the real classes.")]

EXAMPLES = """
kvproof sweep
kvproof sweep --full --record sweep.jsonl --vllm
"""


def how_many(full: bool, scopes: int | None) -> int:
    """The number of scopes that the options ask for."""
    if scopes is not None and scopes <= 0:
        raise UsageError(f"--scopes = {scopes}: allowed is more than 0")
    if scopes is not None and full:
        raise UsageError(f"--scopes = {scopes}: not with --full, which is {FULL}")
    return scopes or (FULL if full else QUICK)


def command(
    full: Full = False,
    scopes: Count = None,
    seed: Seed = 0,
    record: Annotated[
        Path | None, typer.Option(help="JSON lines to add to; what is there is not done again.")
    ] = None,
    to: To = None,
    vllm: OnVllm = False,
    version: Version = DEFAULT_VERSION,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search small scopes that cover every pair of switches and boundary values.

    `--to` gets the page. Exit code 1 if something falls that no open finding explains.
    """
    count = how_many(full, scopes)
    check_page("--to", to)
    with telling_of_compilation(), counted_line() as show:
        done = sweep(
            count,
            seed=seed,
            record=record,
            watch=None if show is None else lambda one, total: show(one.number + 1, total),
        )
    interrupted = len(done.swept) < count
    violations = []
    with Client(version) if vllm and not interrupted else nullcontext() as client:
        for identity, found in done.distinct().items():
            finding = known_finding(identity)
            trace, agrees = found.trace, None
            try:
                if not interrupted:
                    trace = minimal(found)
                    agrees = None if client is None else replay_on_vllm(trace, client).agrees
            except KeyboardInterrupt:
                interrupted = True
            violations.append(
                {
                    "identity": msgspec.to_builtins(identity),
                    "finding": finding.id if finding else None,
                    "trace": msgspec.to_builtins(trace),
                    "vllm_agrees": agrees,
                }
            )
            if not as_json and not quiet:
                known = finding.id if finding else Text("not explained", style="red")
                real = "" if agrees is None else f", vLLM {'agrees' if agrees else 'DIFFERS'}"
                out.print(
                    titled(str(identity), ": ", known, f", {len(trace.actions)} actions{real}")
                )
                if finding is None:
                    out.print(render(trace))
    _summarise(done, count, violations, as_json)
    if to is not None:
        write_text(to, summary_page(done))
    news = any(one["finding"] is None or one["vllm_agrees"] is False for one in violations)
    raise typer.Exit(exit_code(["violated"] if news else [], interrupted=interrupted))


def _summarise(done: Sweep, count: int, violations: list[dict[str, object]], as_json: bool) -> None:
    outcomes = Counter(one.outcome for one in done.swept)
    if as_json:
        results = {
            "scopes": len(done.swept),
            "outcomes": dict(outcomes),
            "violations": violations,
        }
        print_json("sweep", results)
        return
    listed = ", ".join(f"{outcomes[name]} {name}" for name in ("holds", "violated", "bounded"))
    out.print(f"{len(done.swept)} of {count} scopes: {listed}")
