"""Progress checks for people and for machines."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.check import EXIT_CODES
from kvproof.lasso import Lasso, render_lasso
from kvproof.progress import ProgressCheck
from kvproof.progress_sweep import ProgressSweep
from spec.hangs import Hang


def headline(done: ProgressCheck) -> str:
    """What came out and what was looked at, in three lines."""
    result = done.result
    why = f" ({done.short_because}: progress is not claimed)" if done.short_because else ""
    broken = "; ".join(", ".join(one.broken) for one in done.lassos) or "nothing"
    if not done.due_states:
        broken = "nothing, but nothing was due anywhere: this scope says nothing about progress"
    return "\n".join(
        (
            f"progress {done.outcome}{why}  {result.states:,} states, "
            f"{result.transitions:,} transitions, {result.seconds:.2f} s search, "
            f"{done.graph_seconds:.2f} s graph, {done.bytes_per_edge:.1f} bytes an edge",
            f"  work pending in {done.due_states:,} states; {done.cycles:,} cycles of the engine "
            f"examined, of {done.cycle_states:,} states, {done.fair_cycles:,} of them fair; "
            f"{done.passes:,} calls pass a waiting request, one at most {done.most_passes} times",
            f"  broken: {broken}",
        )
    )


def as_json(done: ProgressCheck) -> dict[str, Any]:
    """The same, and the lassos."""
    return {
        "scope": done.scope.name,
        "rules_off": list(done.scope.rules_off),
        "outcome": done.outcome,
        "cut_short": done.short_because,
        "states": done.result.states,
        "transitions": done.result.transitions,
        "due_states": done.due_states,
        "cycles": done.cycles,
        "cycle_states": done.cycle_states,
        "fair_cycles": done.fair_cycles,
        "passes": done.passes,
        "most_passes": done.most_passes,
        "search_seconds": round(done.result.seconds, 3),
        "graph_seconds": round(done.graph_seconds, 3),
        "bytes_per_edge": round(done.bytes_per_edge, 1),
        "lassos": [msgspec.to_builtins(one) for one in done.lassos],
    }


Row = tuple[str, Lasso, Hang | None, bool | None]
"""Place of a lasso in a sweep, the lasso, what explains it, whether vLLM does the same."""


def sweep_summary(done: ProgressSweep, rows: list[Row]) -> str:
    """The distinct lassos with their explanations, those without in full, and what was covered."""
    lines = []
    for place, found, hang, agrees in rows:
        real = "" if agrees is None else f", vLLM {'agrees' if agrees else 'DIFFERS'}"
        known = "not explained" if hang is None else hang.id
        lines.append(
            f"{place}: {known}, {done.times[place]} scopes, stem {len(found.stem)}, "
            f"loop {len(found.loop)}{real}"
        )
        if hang is None:
            lines.append(render_lasso(found))
    listed = ", ".join(f"{done.outcomes[name]} {name}" for name in EXIT_CODES)
    lines.append(
        f"{done.outcomes.total()} scopes: {listed}; {done.states:,} states, "
        f"{done.transitions:,} transitions; work pending in {done.due_states:,} states, "
        f"{done.cycles:,} cycles examined, {done.fair_cycles:,} of them fair"
    )
    return "\n".join(lines)


def sweep_as_json(done: ProgressSweep, rows: list[Row]) -> dict[str, Any]:
    """The same for machines."""
    return {
        "scopes": done.outcomes.total(),
        "outcomes": dict(done.outcomes),
        "states": done.states,
        "transitions": done.transitions,
        "due_states": done.due_states,
        "cycles": done.cycles,
        "fair_cycles": done.fair_cycles,
        "lassos": [
            {
                "place": place,
                "scopes": done.times[place],
                "finding": hang.id if hang else None,
                "lasso": msgspec.to_builtins(found),
                "vllm_agrees": agrees,
            }
            for place, found, hang, agrees in rows
        ],
    }
