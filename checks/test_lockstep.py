"""Lockstep: the model and the real vLLM classes agree on every transition of the small scopes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checks.pinned import PINNED
from kvproof.bridge.client import Client
from kvproof.bridge.lockstep import lockstep_scope
from kvproof.scopes.named import IN_FLIGHT, LOCKSTEP, SCOPES, SYNCHRONOUS
from kvproof.trace.render import render


@pytest.mark.parametrize("name", LOCKSTEP)
def test_every_transition_is_the_same_on_vllm(
    name: str, vllm: Client, measured: Callable[[str], None]
) -> None:
    report = lockstep_scope(SCOPES[name], vllm)
    difference = report.difference
    explained = "" if difference is None else f"\n{render(difference.trace)}\n{difference.fields}"
    measured(
        f"lockstep   {name:<15} {report.transitions:>9,} transitions replayed on vLLM "
        f"{report.version}, {report.seconds:.1f} s"
    )
    assert difference is None, explained
    assert report.transitions == PINNED[name][1]


def test_the_lockstep_covers_what_is_claimed(measured: Callable[[str], None]) -> None:
    def covered(scopes: tuple[str, ...]) -> int:
        return sum(PINNED[name][1] for name in scopes if name in LOCKSTEP)

    synchronous = covered(tuple(scope.name for scope in SYNCHRONOUS))
    in_flight = covered(tuple(scope.name for scope in IN_FLIGHT))
    measured(
        f"lockstep   all scopes      {synchronous:,} synchronous and {in_flight:,} in-flight "
        "transitions"
    )
    assert synchronous >= 50_000
    assert in_flight >= 200_000
