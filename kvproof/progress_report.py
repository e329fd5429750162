"""Progress checks for people and for machines."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.check import EXIT_CODES
from kvproof.progress import ProgressCheck


def headline(done: ProgressCheck) -> str:
    """What came out and what was looked at, in three lines."""
    result = done.result
    why = f" ({done.short_because}: progress is not claimed)" if done.short_because else ""
    return "\n".join(
        (
            f"progress {done.outcome}{why}  {result.states:,} states, "
            f"{result.transitions:,} transitions, {result.seconds:.2f} s search, "
            f"{done.graph_seconds:.2f} s graph, {done.bytes_per_edge:.1f} bytes an edge",
            f"  work pending in {done.due_states:,} states; {done.cycles:,} cycles of the engine "
            f"examined, of {done.cycle_states:,} states, {done.fair_cycles:,} of them fair; "
            f"{done.passes:,} calls pass a waiting request, one at most {done.most_passes} times",
            "  nothing was due anywhere: this scope says nothing about progress"
            if not done.due_states
            else f"  broken: {'; '.join(', '.join(one.broken) for one in done.lassos) or 'nothing'}",
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


def exit_code(done: list[ProgressCheck]) -> int:
    """0 all hold, 1 one is violated, 3 none is violated but one claims nothing."""
    outcomes = [one.outcome for one in done]
    return max((EXIT_CODES[outcome] for outcome in outcomes if outcome != "bounded"), default=0) or (
        EXIT_CODES["bounded"] if "bounded" in outcomes else EXIT_CODES["holds"]
    )
