"""A picture of a simulation: how long requests waited, and what the cache spared them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.errors import KvproofError
from kvproof.trace.files import write_bytes
from kvproof.workload.clock import Record
from kvproof.workload.settings import Settings

SUFFIXES = (".svg", ".png")
_WINDOWS = 40


class MissingPlot(KvproofError, RuntimeError):
    """matplotlib is not installed; says how to get it."""


def figure_class() -> Any:
    """matplotlib's Figure; to be asked before a long run."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPlot("--plot needs matplotlib: pip install 'kvproof[plot]'") from None
    return Figure


def plot(records: Sequence[Record], settings: Settings, path: Path) -> None:
    """Draw the distributions of the times, and hit and computed prompt tokens over time."""
    figure = figure_class()(figsize=(10, 4), layout="constrained")
    times, tokens = figure.subplots(1, 2)
    for name, values in (
        ("time to first token", [r.ttft for r in records if r.sent > settings.warmup]),
        ("response", [r.response for r in records if r.sent > settings.warmup]),
    ):
        seen = sorted(value for value in values if value is not None)
        if seen:
            times.ecdf(seen, label=name)
    times.set(xscale="log", xlabel="seconds", ylabel="share of requests")
    times.grid(alpha=0.3)
    times.legend()

    width = settings.horizon / _WINDOWS
    hit, computed = [0.0] * _WINDOWS, [0.0] * _WINDOWS
    for record in records:
        for time, known, cached in record.admissions:
            window = min(int(time / width), _WINDOWS - 1)
            hit[window] += cached / width
            computed[window] += (known - cached) / width
    starts = [i * width for i in range(_WINDOWS)]
    tokens.bar(starts, hit, width, align="edge", label="found cached")
    tokens.bar(starts, computed, width, align="edge", bottom=hit, label="to compute")
    tokens.axvline(settings.warmup, color="grey", linestyle=":", label="warm-up ends")
    tokens.set(xlabel="simulated seconds", ylabel="prompt tokens a second")
    tokens.legend()
    # No date, and ids that do not change: the same run draws the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    drawn = io.BytesIO()
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "kvproof"}):
        figure.savefig(drawn, format=path.suffix[1:], metadata=metadata)
    write_bytes(path, drawn.getvalue())
