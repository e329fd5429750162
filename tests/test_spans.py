"""Spans: what a step computes and what a connector is told to load lie within what there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.state import Load
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.spec import masks
from kvproof.spec.state_invariants import no_reuse_in_flight
from kvproof.spec.step_invariants import budget_respected
from kvproof.spec.verdicts import BROKEN, HOLDS
from kvproof.trace.codes import enabled_codes
from kvproof.trace.trace import step

CONSUMER = compile_scope(SCOPES["consumer"])


def steps(compiled: Compiled) -> Iterator[tuple[Record, Record, Record, int]]:
    """Steps of random runs: the state before and after, the report, the kind."""
    for seed in range(20):
        choose = RandomChooser(seed)
        state = compiled.initial()
        for _ in range(60):
            codes = enabled_codes(compiled, state).tolist()
            if not codes:
                break
            code = choose.pick(codes)
            before = state
            state, report, _broken = step(compiled, before, code)
            yield before, state, report, engine.kind_of(code)


@pytest.mark.parametrize("span", [0, -1])
def test_a_scheduled_span_without_a_token_is_noticed(span: int) -> None:
    noticed = 0
    for before, state, report, kind in steps(CONSUMER):
        for r in report.order[: report.num_scheduled] - 1:
            assert budget_respected(before, state, CONSUMER.c, report, kind) == HOLDS
            changed = report.copy()
            changed.token_budget += changed.scheduled[r] - span
            changed.input_budget += changed.scheduled[r] - span
            changed.scheduled[r] = span
            assert budget_respected(before, state, CONSUMER.c, changed, kind) == BROKEN
            noticed += 1
    assert noticed


def test_a_load_into_no_block_or_of_unknown_tokens_is_noticed() -> None:
    c, w = CONSUMER.c, masks.new_workspace(CONSUMER.state.sizes)
    noticed = 0
    for _before, state, _report, _kind in steps(CONSUMER):
        for r in (state.load == Load.PENDING).nonzero()[0]:
            assert no_reuse_in_flight(state, c, w) == HOLDS
            end = int(state.load_start[r] + state.load_tokens[r])
            changed = state.copy()
            changed.transfer_table[r, (end - 1) // c.block_size] = 0
            assert no_reuse_in_flight(changed, c, w) == BROKEN
            if engine.is_alive(state, r):
                changed = state.copy()
                changed.load_tokens[r] = state.num_tokens[r] - state.load_start[r] + 1
                assert no_reuse_in_flight(changed, c, w) == BROKEN
                noticed += 1
    assert noticed
