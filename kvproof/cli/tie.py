"""`kvproof tie`: Z3's relations held against the model."""

from __future__ import annotations

from typing import Any

import typer

from kvproof.cli.console import Json, out, print_json, telling_of_compilation
from kvproof.cli.outcomes import exit_code
from kvproof.proof.tie.compare import TIED, Comparison, compare_scope


def command(as_json: Json = False) -> None:
    """Hold the relations that are proved against the model's transitions, field by field."""
    done: list[Comparison] = []
    interrupted = False
    with telling_of_compilation():
        try:
            for scope in TIED:
                one = compare_scope(scope)
                done.append(one)
                if not as_json:
                    out.print(tie_line(one))
                    for disagreement in one.disagreements:
                        out.print(f"  {disagreement}")
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        print_json("tie", [_as_json(one) for one in done])
    else:
        total = sum(one.transitions for one in done)
        out.print(f"{total:,} transitions, {sum(one.samples for one in done):,} operations")
    outcomes = ["holds" if one.agrees else "fails" for one in done]
    raise typer.Exit(exit_code(outcomes, interrupted=interrupted))


def tie_line(one: Comparison) -> str:
    """One line on the comparison of a scope."""
    return (
        f"{one.scope:<15} {one.transitions:>6,} transitions{' (all)' if one.whole else ''}, "
        f"{one.samples:,} operations, {sum(one.operations.values()):,} of them distinct: "
        f"{len(one.disagreements)} fields disagree"
    )


def _as_json(one: Comparison) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "transitions": one.transitions,
        "whole": one.whole,
        "operations": one.samples,
        "agrees": one.agrees,
        "disagreements": [str(disagreement) for disagreement in one.disagreements],
    }
