"""`kvproof sweep`: small scopes that cover combinations of option values, each searched."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

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
from kvproof.sweep.rows_searched import Bound, Searched
from kvproof.sweep.sweep import Sweep, minimal, summary_page, sweep
from kvproof.trace.render import render

Strength = Annotated[
    int, typer.Option(min=2, max=4, help="Cover all combinations of this many values.")
]
Count = Annotated[
    int | None, typer.Option("--scopes", help="As many scopes as this, not those of one cover.")
]
Minutes = Annotated[
    float | None, typer.Option(help="Begin no scope after this long; go on until then.")
]
Record = Annotated[
    Path | None, typer.Option(help="JSON lines to add to; what is there is not done again.")
]
Seed = Annotated[int, typer.Option(help="Another seed, other scopes.")]
OnVllm = Annotated[bool, typer.Option("--vllm", help="Replay what falls on the real classes.")]

EXAMPLES = """
kvproof sweep
kvproof sweep --strength 3 --record sweep.jsonl --vllm
kvproof sweep --strength 4 --minutes 60 --record nightly.jsonl
"""


def bound_of(scopes: int | None, minutes: float | None) -> Bound:
    """How far a sweep goes by its options; UsageError for a bound that is none."""
    for option, value in (("--scopes", scopes), ("--minutes", minutes)):
        if value is not None and not value > 0:
            raise UsageError(f"{option} = {value}: allowed is more than 0")
    return Bound(scopes, minutes)


def scopes_of(done: Searched[Any], bound: Bound) -> str:
    """How many scopes were searched, of how many where it is known."""
    of = "" if bound.count is None else f" of {bound.count}"
    over = " when the minutes were over" if done.ended == "minutes" else ""
    return f"{len(done.swept)}{of} scopes{over}"


def command(
    strength: Strength = 2,
    scopes: Count = None,
    minutes: Minutes = None,
    seed: Seed = 0,
    record: Record = None,
    to: To = None,
    vllm: OnVllm = False,
    version: Version = DEFAULT_VERSION,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search small scopes that cover the combinations of switches and boundary values.

    Without a bound it is one cover: every possible combination once. `--to` gets the page. Exit
    code 1 if something falls that no open finding explains.
    """
    bound = bound_of(scopes, minutes)
    check_page("--to", to)
    with telling_of_compilation(), counted_line() as show:
        done = sweep(bound, strength=strength, seed=seed, record=record, watch=show)
    interrupted = done.ended == "interrupted"
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
    _summarise(done, bound, violations, as_json)
    if to is not None:
        write_text(to, summary_page(done))
    news = any(one["finding"] is None or one["vllm_agrees"] is False for one in violations)
    raise typer.Exit(exit_code(["violated"] if news else [], interrupted=interrupted))


def _summarise(
    done: Sweep, bound: Bound, violations: list[dict[str, object]], as_json: bool
) -> None:
    outcomes = Counter(one.outcome for one in done.swept)
    if as_json:
        results = {
            "scopes": len(done.swept),
            "outcomes": dict(outcomes),
            "combinations": {"possible": done.cover.possible, "covered": done.covered},
            "ended": done.ended,
            "violations": violations,
        }
        print_json("sweep", results)
        return
    listed = ", ".join(f"{outcomes[name]} {name}" for name in ("holds", "violated", "bounded"))
    out.print(f"{scopes_of(done, bound)}: {listed}")
    out.print(done.coverage)
