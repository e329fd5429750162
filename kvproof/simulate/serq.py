"""The same workload on serQ: runs its program with pyserq and reads what it drew and observed."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Any, NamedTuple

from kvproof.errors import KvproofError
from kvproof.workload.sessions import Session, Turn
from kvproof.workload.settings import Settings, SimulateError


class Variant(StrEnum):
    """How the program is changed; each as the one before, and one thing more."""

    WRITTEN = "written"
    WHOLE = "whole"
    """Numbers of tokens are rounded up."""
    SCHEDULED = "scheduled"
    """Requests are admitted where a step is planned."""
    RESERVED = "reserved"
    """Only what fits whole is admitted."""


VERSION = "0.1.2"
PROGRAM = "multi_turn.sq"
_REQUESTS_POOL = "pool reqs { cap max_seqs; }"
_ADMIT_AT_STEP = "pool reqs { cap max_seqs; admit via engine; }"
_FIRST_CHUNK = "kv (min(known, hit + budget_left(engine)))"
_WHOLE_PROMPT = f"{_FIRST_CHUNK} reserve (known)"


class MissingSerq(KvproofError, RuntimeError):
    """pyserq is not installed; says how to get it."""


class Observed(NamedTuple):
    """What one side observed of one request; None: not before the horizon."""

    sent: float
    prompt: float
    hit: float | None
    waited: float | None
    """Seconds to the first admission."""
    ttft: float | None
    response: float | None
    preempted: bool


@dataclass(frozen=True)
class SerqRun:
    """A run of the program: its sessions as workload, its observations by (session, turn)."""

    version: str
    sessions: list[Session]
    observed: dict[tuple[int, int], Observed]
    arrivals: int
    means: dict[str, float]
    """Means and count (`turns`) after the warm-up, of what the program observes."""


def program() -> str:
    """The text of the program."""
    return files("kvproof.simulate").joinpath(PROGRAM).read_text(encoding="utf-8")


def run_on_serq(settings: Settings, variant: Variant) -> SerqRun:
    """Run the program with these settings; the policy is FCFS and one step is in flight."""
    if settings.policy != "fcfs":
        raise SimulateError(f"--policy = {settings.policy!r}: allowed is fcfs, serQ's program's")
    pyserq = _pyserq()
    source = program()
    if variant in (Variant.SCHEDULED, Variant.RESERVED):
        source = source.replace(_REQUESTS_POOL, _ADMIT_AT_STEP)
    if variant == Variant.RESERVED:
        source = source.replace(_FIRST_CHUNK, _WHOLE_PROMPT)
    compiled = pyserq.compile(
        source=source,
        sets={
            "B": settings.budget,
            "max_seqs": settings.max_requests,
            "blocks": settings.pool,
            "bs": settings.block_size,
            "a": settings.a,
            "omega": settings.omega,
            "beta": settings.beta,
            "Lambda": settings.rate,
            "p": settings.continue_probability,
            "Z": settings.tool_time,
            "whole": int(variant != Variant.WRITTEN),
        },
        seed=settings.seed,
        horizon=settings.horizon,
        # All is observed from the start; what the warm-up leaves out is left out here.
        warmup=0,
    )
    report = pyserq.run(compiled)
    return SerqRun(
        version=pyserq.__version__,
        sessions=_sessions(report),
        observed=_observed(report),
        arrivals=report.arrivals,
        means=_means(report, settings.warmup),
    )


def _pyserq() -> Any:
    try:
        import pyserq
    except ImportError:
        raise MissingSerq(
            "the comparison with serQ needs pyserq: pip install 'kvproof[serq]'"
        ) from None
    if pyserq.__version__ != VERSION:
        raise MissingSerq(
            f"pyserq is {pyserq.__version__}, the comparison is with {VERSION}: "
            f"pip install pyserq=={VERSION}"
        )
    return pyserq


def _by_turn(report: Any, name: str) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """(time, value) of an observation by (session, turn from 0)."""
    seen = report.observe(name)
    values = defaultdict(list)
    for key, turn, time, value in zip(
        seen.sessions, seen.turns, seen.times, seen.samples, strict=True
    ):
        values[key, turn - 1].append((time, value))
    return values


def _sessions(report: Any) -> list[Session]:
    """The sessions as drawn; fractions of tokens are rounded up, as positions in the session."""
    new, wanted, think = (_by_turn(report, name) for name in ("new", "wanted", "think"))
    turns: dict[int, list[Turn]] = defaultdict(list)
    arrival: dict[int, float] = {}
    exact: dict[int, float] = defaultdict(float)
    whole: dict[int, int] = defaultdict(int)
    for session, turn in sorted(new):
        ((sent, n),), ((_, o),) = new[session, turn], wanted[session, turn]
        ((_, after),) = think.get((session, turn), [(0.0, 0.0)])
        arrival.setdefault(session, sent)
        prompt = max(whole[session] + 1, math.ceil(exact[session] + n))
        turns[session].append(Turn(prompt - whole[session], math.ceil(o), after, sent))
        exact[session] += n + o
        whole[session] = prompt + math.ceil(o)
    return [Session(number, arrival[number], tuple(turns[number])) for number in sorted(turns)]


def _observed(report: Any) -> dict[tuple[int, int], Observed]:
    names = ("new", "wanted", "prefill_tokens", "waited", "ttft", "response")
    new, wanted, prefill, waited, ttft, response = (_by_turn(report, name) for name in names)
    observed = {}
    context: dict[int, float] = defaultdict(float)
    for key in sorted(new):
        session = key[0]
        prompt = context[session] + new[key][0][1]
        context[session] = prompt + wanted[key][0][1]
        observed[key] = Observed(
            sent=new[key][0][0],
            prompt=prompt,
            # Hits are whole blocks; the difference of fractions has an error.
            hit=round(prompt - prefill[key][0][1], 6) if key in prefill else None,
            waited=waited[key][0][1] if key in waited else None,
            ttft=ttft[key][0][1] if key in ttft else None,
            response=response[key][0][1] if key in response else None,
            preempted=len(prefill.get(key, ())) > 1,
        )
    return observed


def _means(report: Any, warmup: float) -> dict[str, float]:
    means = {}
    for name in ("hit", "prefill_tokens", "ttft", "response"):
        seen = report.observe(name)
        kept = [x for x, time in zip(seen.samples, seen.times, strict=True) if time > warmup]
        means[name] = math.fsum(kept) / len(kept) if kept else math.nan
        means["turns"] = len(kept)
    return means
