"""`kvproof check`: does every state and every step of a scope satisfy every invariant?"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from kvproof.checker.check import Check, Limits, check
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
from kvproof.cli.console import Force, Json, Quiet, To, coloured, err, out, print_json, titled
from kvproof.cli.files import check_output
from kvproof.cli.outcomes import exit_code
from kvproof.cli.searching import searched
from kvproof.trace.render import render
from kvproof.trace.trace import save

EXAMPLES = """
kvproof check shared-prefix
kvproof check mine.toml --max-seconds 60
kvproof check shared-prefix --rule-off evict_hash_on_reuse --to x.json
kvproof check priorities --mended
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
    coverage: Annotated[bool, typer.Option(help="List what was exercised.")] = False,
    efficiency: Annotated[bool, typer.Option(help="Count steps that waste; no fault.")] = False,
    to: To = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search scopes exhaustively (all named ones by default); `--to` gets the first trace."""
    check_limits(max_states, max_seconds, max_memory)
    check_output("--to", to, force=force)
    chosen = find_scopes(scopes, rule_off, mend, mended)
    memory = None if max_memory is None else max_memory * 1_000_000
    limits = Limits(max_states, memory, max_seconds)
    done: list[Check] = []
    try:
        for one in searched(
            chosen, partial(check, limits=limits, rename=rename, efficiency=efficiency)
        ):
            done.append(one)
            if not as_json:
                _show(one, coverage=coverage, quiet=quiet)
        if as_json:
            print_json("check", [_as_json(one) for one in done])
    finally:  # a reader who has gone is no reason to lose the trace
        first = next((one.trace for one in done if one.trace is not None), None)
        if first is not None and to is not None:
            save(first, to, force=force)
    interrupted = any(one.result.reason == "interrupted" for one in done)
    raise typer.Exit(exit_code((one.result.outcome for one in done), interrupted=interrupted))


def _show(done: Check, *, coverage: bool, quiet: bool) -> None:
    result = done.result
    out.print(titled(done.scope.name, ": ", coloured(done.outcome), done.figures))
    if quiet:
        return
    out.print(
        f"  chance that a fingerprint collision hid a state: {result.collision_probability:.1e}"
    )
    if done.too_small:
        out.print(f"  {done.too_small}")
    if result.outcome == "bounded":
        out.print(f"  every run of at most {result.covered_depth} actions was checked")
    if done.untested and result.outcome != "violated":
        untested = f"  never put to the test here: {', '.join(done.untested)}"
        err.print(Text(untested, style="yellow"))
    if coverage:
        _show_coverage(done)
    _show_efficiency(done)
    trace = done.trace
    if trace is not None:
        out.print(f"  broken: {', '.join(trace.broken)}, after {len(trace.actions)} actions\n")
        out.print(render(trace))


def _show_efficiency(done: Check) -> None:
    for one in done.efficiency:
        out.print(f"  efficiency, {one.name}: {one.missed:,} of {one.tested:,} steps miss it")
        if one.trace is not None:
            out.print(f"  first after {len(one.trace.actions)} actions\n")
            out.print(render(one.trace))


def _show_coverage(done: Check) -> None:
    for title, counts in (
        ("action", done.actions),
        ("branch", done.branches),
        ("invariant", done.tested),
    ):
        table = Table(title, "times", box=None, pad_edge=False)
        for name, times in counts.items():
            table.add_row(name, f"{times:,}" if times else Text("never", style="yellow"))
        out.print(table)


def _as_json(done: Check) -> dict[str, Any]:
    result = done.result
    trace = done.trace
    return {
        "scope": done.scope.name,
        "rules_off": list(done.scope.rules_off),
        "mends": list(done.scope.mends),
        "outcome": result.outcome,
        "reason": result.reason,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "covered_depth": result.covered_depth,
        "dead_ends": result.dead_ends,
        "seconds": round(result.seconds, 3),
        "bytes_per_state": round(result.bytes_per_state, 1),
        "peak_frontier_bytes": result.peak_frontier_bytes,
        "collision_probability": result.collision_probability,
        "broken": list(result.violation.invariants) if result.violation else [],
        "trace": None if trace is None else msgspec.to_builtins(trace),
        "efficiency": {
            one.name: {
                "tested": one.tested,
                "missed": one.missed,
                "trace": None if one.trace is None else msgspec.to_builtins(one.trace),
            }
            for one in done.efficiency
        },
        "coverage": {
            "actions": dict(done.actions),
            "branches": dict(done.branches),
            "invariants": dict(done.tested),
        },
    }
