"""`kvproof lockstep`: every transition of a scope, on the real classes too."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.lockstep import Report, lockstep_scope
from kvproof.cli.arguments import Mended, Mends, Scopes, Version, find_scopes
from kvproof.cli.console import (
    Json,
    coloured,
    counted_line,
    out,
    print_json,
    telling_of_compilation,
    titled,
)
from kvproof.cli.outcomes import exit_code
from kvproof.scopes.named import LOCKSTEP

EXAMPLES = """
kvproof lockstep shared-prefix
kvproof lockstep mine.toml --version 0.31.0
"""


def command(
    scopes: Scopes = None,
    mend: Mends = None,
    mended: Mended = False,
    version: Version = DEFAULT_VERSION,
    as_json: Json = False,
) -> None:
    """Replay every transition of scopes on the real vLLM classes and compare."""
    reports: list[Report] = []
    interrupted = False
    chosen = find_scopes(list(scopes or LOCKSTEP), None, mend, mended)
    with telling_of_compilation(), Client(version) as client:
        try:
            for scope in chosen:
                with counted_line() as show:
                    report = lockstep_scope(scope, client, watch=show)
                reports.append(report)
                if not as_json:
                    _show(report)
                if report.interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        print_json("lockstep", [_as_json(report) for report in reports])
    elif interrupted:
        whole = sum(not report.interrupted for report in reports)
        out.print(f"interrupted: {whole} of {len(chosen)} scopes")
    outcomes = ["holds" if report.difference is None else "violated" for report in reports]
    raise typer.Exit(exit_code(outcomes, interrupted=interrupted))


def _show(report: Report) -> None:
    verdict = coloured("equal" if report.agrees else "DIFFERENT")
    if report.interrupted and report.agrees:
        verdict = coloured("interrupted")
    out.print(titled(report.scope, ": ", verdict, report.figures))
    if report.difference is not None:
        out.print(str(report.difference.trace))
        for line in report.difference.lines:
            out.print(line)


def _as_json(report: Report) -> dict[str, Any]:
    difference = report.difference
    return {
        "scope": report.scope,
        "version": report.version,
        "transitions": report.transitions,
        "left": report.left,
        "unseen": list(report.unseen),
        "seconds": round(report.seconds, 2),
        "difference": None
        if difference is None
        else {
            "trace": msgspec.to_builtins(difference.trace),
            "fields": [list(field) for field in difference.fields],
        },
    }
