"""Claims that the single-threaded engine makes true: they must stay so, and stay tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Phase
from kvproof.native.record import Record
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Chunk, explore
from kvproof.trace.codes import enabled_codes


def all_rows(name: str) -> tuple[Compiled, list[np.ndarray]]:
    """Every reachable state of a scope."""
    system = SchedulerSystem(SCOPES[name])
    rows: list[np.ndarray] = []

    def keep(chunk: Chunk) -> None:
        rows.extend(chunk.rows.copy())

    assert explore(system, observe=keep).outcome == "holds"
    return system.compiled, rows


def schedules(name: str) -> Iterator[tuple[Compiled, Record, Record]]:
    """Every call of schedule in a scope: the state after it and its report."""
    compiled, rows = all_rows(name)
    for row in rows:
        state = compiled.read(row)
        for code in enabled_codes(compiled, state).tolist():
            if code % engine.KINDS == Kind.SCHEDULE:
                after, report = state.copy(), compiled.new_report()
                engine.apply(after, compiled.c, report, code)
                yield compiled, after, report


def test_nothing_comes_between_a_lookup_and_its_allocation(measured: Callable[[str], None]) -> None:
    adopted = 0
    for compiled, after, report in schedules("block-size-1"):
        for r in range(len(compiled.scope.requests)):
            for i in range(int(report.adopted[r])):
                block = int(after.block_table[r, i])
                code = compiled.c.prefix_hash[r, (i + 1) * compiled.scope.block_size]
                assert after.block_hash[block] == code
                assert after.ref_cnt[block] >= 1
                adopted += 1
    measured(f"stay green lookup to allocation: {adopted:,} adopted blocks were still what was hit")
    assert adopted > 0


@pytest.mark.parametrize("name", ["shared-prefix", "async", "consumer"])
def test_an_abort_lands_between_calls_and_never_inside_one(
    name: str, measured: Callable[[str], None]
) -> None:
    compiled, rows = all_rows(name)
    while_in_flight = 0
    for row in rows:
        state = compiled.read(row)
        kinds = enabled_codes(compiled, state) % engine.KINDS
        if (kinds == Kind.ABORT).any():
            assert state.phase in (Phase.TOP, Phase.OUTPUT)
            while_in_flight += state.num_steps > 0
    measured(f"stay green aborts in {name}: enabled in {while_in_flight:,} states with a step out")
    assert while_in_flight > 0


def test_a_hit_on_a_block_that_the_same_step_writes_is_read_right(
    measured: Callable[[str], None],
) -> None:
    found = 0
    for compiled, after, report in schedules("shared-prefix"):
        size = compiled.scope.block_size
        written = {
            int(after.block_table[r, position // size])
            for r in range(len(compiled.scope.requests))
            for position in range(
                int(report.start[r]), int(report.start[r]) + int(report.scheduled[r])
            )
        }
        for r in range(len(compiled.scope.requests)):
            hits = after.block_table[r, : int(report.adopted[r])].tolist()
            found += any(block in written for block in hits)
    measured(f"stay green hits on blocks written in the same step: {found:,}, all read right")
    assert found > 0
