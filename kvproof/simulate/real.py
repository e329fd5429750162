"""Runs sessions on the real classes: the simulation itself runs in vLLM's interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.workload.clock import Broken, Record, Totals
from kvproof.workload.sessions import Session
from kvproof.workload.settings import Settings

MODULE = "kvproof.vllm.serving"
_ROUNDS = 2000
_PATIENCE = 3.0

Watch = Callable[[float, float, int], None]
"""Called with the simulated time, the horizon and the number of requests so far."""


@dataclass(frozen=True)
class Run:
    """What a simulation observed; `broken` is the invariant that ended it, if one did.

    `interrupted`: a Ctrl-C ended it before its horizon.
    """

    settings: Settings
    records: list[Record]
    totals: Totals
    full_checks: int
    seconds: float
    version: str
    broken: Broken | None
    interrupted: bool = False


def run_on_vllm(
    sessions: Sequence[Session],
    settings: Settings,
    *,
    version: str = DEFAULT_VERSION,
    watch: Watch | None = None,
) -> Run:
    """Serve sessions with vLLM's classes up to the horizon or the first broken invariant.

    Ctrl-C ends it with what was served until then.
    """
    started = time.perf_counter()
    with Client(version, MODULE) as client:
        client.run([["new", msgspec.to_builtins(settings), msgspec.to_builtins(sessions)]])
        more, interrupted = True, False
        try:
            while more:
                ((more, now, requests),) = client.run([["advance", _ROUNDS]])
                if watch is not None:
                    watch(now, settings.horizon, requests)
        except KeyboardInterrupt:
            interrupted = True
            client.settle(_PATIENCE)
        (result,) = client.run([["result"]])
    broken = result["broken"]
    return Run(
        settings=settings,
        records=msgspec.convert(result["records"], list[Record]),
        totals=msgspec.convert(result["totals"], Totals),
        full_checks=result["full_checks"],
        seconds=time.perf_counter() - started,
        version=version,
        broken=None if broken is None else Broken(*broken),
        interrupted=interrupted,
    )
