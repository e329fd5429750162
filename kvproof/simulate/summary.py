"""Figures of a simulation: mean, median and 99th percentile of what was observed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvproof.trace.files import write_bytes
from kvproof.workload.clock import Record
from kvproof.workload.settings import SimulateError

COLUMNS = (
    "session",
    "turn",
    "sent",
    "prompt",
    "new",
    "out",
    "hit",
    "prefill",
    "ttft",
    "response",
    "admissions",
    "preemptions",
)


class Figure(NamedTuple):
    """One observed quantity."""

    name: str
    unit: str
    observed: int
    mean: float
    p50: float
    p99: float


class Summary(NamedTuple):
    """The figures after the warm-up, each counted at the moment of its observation, as serQ does.

    Hits and prefills are counted once for each admission, so again after a preemption.
    """

    figures: tuple[Figure, ...]
    served: int
    preemptions: int
    hit_share: float
    """Of the admissions, how many found anything cached."""


def summarise(records: Sequence[Record], warmup: float) -> Summary:
    """The summary of all requests, those that did not finish included as far as they came."""
    admissions = [
        (known, hit)
        for record in records
        for time, known, hit in record.admissions
        if time > warmup
    ]
    ttft = [
        record.first_token - record.sent
        for record in records
        if record.first_token is not None and record.first_token > warmup
    ]
    response = [
        record.finished - record.sent
        for record in records
        if record.finished is not None and record.finished > warmup
    ]
    hits = [hit for _, hit in admissions]
    return Summary(
        figures=(
            _figure("hit", "tokens", hits),
            _figure("prefill", "tokens", [known - hit for known, hit in admissions]),
            _figure("time to first token", "s", ttft),
            _figure("response", "s", response),
        ),
        served=len(response),
        preemptions=sum(record.preemptions for record in records),
        hit_share=sum(hit > 0 for hit in hits) / len(hits) if hits else math.nan,
    )


def _figure(name: str, unit: str, values: Sequence[float]) -> Figure:
    if not values:
        return Figure(name, unit, 0, math.nan, math.nan, math.nan)
    p50, p99 = (float(x) for x in np.percentile(values, [50, 99]))
    return Figure(name, unit, len(values), math.fsum(values) / len(values), p50, p99)


def write_csv(records: Sequence[Record], path: Path, *, force: bool = False) -> None:
    """Write a line for each request, in the order of arrival; times in seconds, exactly."""
    check_file("--to", path, (".csv",), force=force)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow(
            [
                record.session,
                record.turn,
                record.sent,
                record.prompt,
                record.new,
                record.out,
                record.hit,
                record.prefill,
                record.ttft,
                record.response,
                len(record.admissions),
                record.preemptions,
            ]
        )
    write_bytes(path, stream.getvalue().encode())


def check_file(option: str, path: Path, suffixes: tuple[str, ...], *, force: bool) -> None:
    """Refuse a file that cannot be written; to be asked before a long run."""
    if path.suffix not in suffixes:
        raise SimulateError(f"{option} = {str(path)!r}: allowed is a file in {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise SimulateError(f"{option} = {str(path)!r}: no directory {path.parent}")
    if path.exists() and not force:
        raise SimulateError(f"{option} = {str(path)!r} exists; give --force to overwrite it")
