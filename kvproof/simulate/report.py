"""Tables of simulations and comparisons, for the terminal and for the generated page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvproof.simulate.comparison import Comparison
from kvproof.simulate.real import Run
from kvproof.simulate.serq import SerqRun
from kvproof.simulate.summary import Figure, summarise

Rows = list[tuple[str, ...]]


def _value(figure: Figure, value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:,.4f} s" if figure.unit == "s" else f"{value:,.1f}"


def figure_rows(run: Run) -> Rows:
    """Observation, count, mean, p50, p99, after the warm-up."""
    return [
        (
            figure.name if figure.unit == "s" else f"{figure.name} {figure.unit}",
            f"{figure.observed:,}",
            *(_value(figure, value) for value in (figure.mean, figure.p50, figure.p99)),
        )
        for figure in summarise(run.records, run.settings.warmup).figures
    ]


def totals_sentence(run: Run) -> str:
    """What else there is to say of a run, in one line."""
    summary = summarise(run.records, run.settings.warmup)
    totals = run.totals
    parts = [
        f"{summary.served:,} requests served after the warm-up",
        f"{totals.sessions:,} sessions",
        f"hit share {summary.hit_share:.3f}",
        f"{summary.preemptions:,} preemptions",
        f"{totals.steps:,} steps",
    ]
    if totals.refused:
        parts.append(f"{totals.refused:,} turns too long for the pool")
    if totals.cut:
        parts.append(f"{totals.cut:,} answers cut by the model length")
    return ", ".join(parts)


def checks_sentence(run: Run) -> str:
    """Which checks were made how often."""
    return (
        f"every step checked by what it changed; full checks: {run.full_checks:,}; "
        f"{'all held' if run.broken is None else f'broken: {run.broken}'}"
    )


def comparison_row(comparison: Comparison) -> tuple[str, ...]:
    """Variant, requests, equal in hit, first token, response, all, largest difference."""
    return (
        comparison.variant,
        f"{comparison.requests:,}",
        f"{comparison.equal_hit:,}",
        f"{comparison.equal_ttft:,}",
        f"{comparison.equal_response:,}",
        f"{comparison.equal:,}",
        f"{comparison.largest:.2g} s",
    )


COMPARISON_COLUMNS = (
    "program",
    "requests",
    "equal hit",
    "equal first token",
    "equal response",
    "equal in all",
    "largest difference of a response",
)
FIGURE_COLUMNS = ("observation", "count", "mean", "p50", "p99")


def cause_rows(comparisons: Sequence[Comparison]) -> Rows:
    """Program, cause and number of differences."""
    return [
        (comparison.variant, cause.value, f"{count:,}")
        for comparison in comparisons
        for cause, count in sorted(comparison.causes.items(), key=lambda item: -item[1])
    ]


MEANS_COLUMNS = ("program", "on", "hit share", "prefill", "first token", "response")


def means_rows(serq: SerqRun, run: Run, comparison: Comparison) -> Rows:
    """What each side has on average after the warm-up, for the same requests."""
    means = serq.means
    summary = summarise(run.records, run.settings.warmup)
    _, prefill, ttft, response = (figure.mean for figure in summary.figures)
    sides = (
        ("serQ", means["hit"], means["prefill_tokens"], means["ttft"], means["response"]),
        (f"vLLM {run.version}", summary.hit_share, prefill, ttft, response),
    )
    return [
        (
            comparison.variant,
            side,
            f"{hit:.5f}",
            f"{tokens:.2f}",
            f"{first * 1e3:.3f} ms",
            f"{last * 1e3:.3f} ms",
        )
        for side, hit, tokens, first, last in sides
    ]


def markdown(columns: Sequence[str], rows: Rows, words: int = 1) -> str:
    """A Markdown table; the first columns are words, the others numbers."""
    lines = [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * words + "---:|" * (len(columns) - words),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
