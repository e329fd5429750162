"""Every field of the model's records stays in the range that its line states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.state import REPORT, SCOPE, STATE, Assertion, Pause, Phase, Status
from kvproof.native.record import Layout, Record
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Chunk, explore
from kvproof.trace.trace import step

# A rule of V2 is not missed on V1, but without it the workers' tables are followed.
OTHERS = {"workers": SCOPES["reset-running"].with_rules_off("send_resumed_as_new")}
SEARCHED = sorted({*SCOPES, *OTHERS} - {"crowd"})
STEPPED = (
    "two-equal", "draft-model", "async-drafts", "drafts", "async-reset", "pause",
    "two-loads", "sync-loads", "failing-loads", "fatal-loads", "workers",
)  # fmt: skip

LENGTHS = {
    "running": "num_running",
    "waiting": "num_waiting",
    "kv_holding": "num_kv_holding",
    "free_queue": "num_free",
    "deferred_fence": "num_deferred",
    "deferred_len": "num_deferred",
    "deferred_blocks": "num_deferred",
    "block_table": "num_blocks",
} | {
    name: "num_steps"
    for name in STATE.index
    if name.startswith("step_")
}  # fmt: skip
"""Fields that are lists, with the field that is their length."""


@cache
def ranges(layout: Layout, c: Record) -> dict[str, tuple[float, float]]:
    """The lowest and the highest value that each field may have in this scope."""
    names: dict[str, int] = {
        name: int(np.max(getattr(c, name))) for name in c.layout.places if c.layout.places[name][1]
    }
    names |= layout.sizes | {"L": c.max_model_len, "k": c.num_speculative_tokens}

    def number(text: str, otherwise: float) -> float:
        return float(eval(text, {}, names)) if text else otherwise

    found = {}
    for field in layout.schema.fields:
        least, dots, most = field.among.partition("..")
        assert dots, field
        found[field.name] = (number(least, -np.inf), number(most, np.inf))
    return found


def outside(layout: Layout, c: Record, rows: np.ndarray) -> Iterator[str]:
    """What in these rows (shape (rows, words)) is out of its range."""
    cells = rows.view(layout.schema.cell)
    for name, (least, most) in ranges(layout, c).items():
        start, end, _shape = layout.places[name]
        values = cells[:, start:end]
        if values.size and not (least <= values.min() and values.max() <= most):
            yield f"{name} is {values.min()}..{values.max()}, not {least:.0f}..{most:.0f}"


def unused_but_not_zero(state: Record) -> Iterator[str]:
    """Places of lists behind their ends that are not zero."""
    for name, length in LENGTHS.items():
        values, used = getattr(state, name), getattr(state, length)
        if isinstance(used, int):
            if values[used:].any():
                yield name
        elif any(line[n:].any() for line, n in zip(values, used, strict=True)):
            yield name
    for line, length in zip(state.worker_table, state.worker_len, strict=True):
        if line[max(length - 1, 0) :].any():
            yield "worker_table"
    for d in range(state.num_steps):
        if state.step_order[d, state.step_len[d] :].any():
            yield "step_order"
    for name in ("ref_cnt", "block_hash", "hash_rank", "kv"):
        if getattr(state, name)[0].any():
            yield f"{name} of the null block"
    if (state.hash_rank[state.block_hash == 0] != 0).any():
        yield "hash_rank of an unpublished block"


def search(name: str, observe: Callable[[Compiled, Chunk], None]) -> None:
    system = SchedulerSystem({**SCOPES, **OTHERS}[name])
    result = explore(system, observe=lambda chunk: observe(system.compiled, chunk))
    assert result.outcome == "holds"


@pytest.mark.parametrize("name", SEARCHED)
def test_no_state_has_a_field_outside_its_range(name: str) -> None:
    found: set[str] = set()
    search(
        name, lambda compiled, chunk: found.update(outside(compiled.state, compiled.c, chunk.rows))
    )
    assert not found


@pytest.mark.parametrize("name", STEPPED)
def test_no_report_has_a_field_outside_its_range_and_what_no_list_uses_is_zero(name: str) -> None:
    found: set[str] = set()

    def observe(compiled: Compiled, chunk: Chunk) -> None:
        for row in chunk.rows:
            found.update(unused_but_not_zero(compiled.read(row)))
        for source, action in zip(chunk.parent, chunk.action, strict=True):
            _after, report, _broken = step(compiled, compiled.read(chunk.rows[source]), int(action))
            found.update(outside(compiled.report, compiled.c, report.row[None]))

    search(name, observe)
    assert not found


@pytest.mark.parametrize("name", SCOPES)
def test_a_compiled_scope_has_no_number_outside_its_range(name: str) -> None:
    c = compile_scope(SCOPES[name]).c
    assert not list(outside(c.layout, c, c.row[None]))


def test_a_value_out_of_range_and_a_cell_behind_a_list_are_told() -> None:
    compiled = compile_scope(SCOPES["async"])
    state = compiled.initial()
    assert not list(outside(compiled.state, compiled.c, state.row[None]))
    assert not list(unused_but_not_zero(state))
    state.num_running = 4
    state.waiting[1] = 2
    (told,) = outside(compiled.state, compiled.c, state.row[None])
    assert told == "num_running is 4..4, not 0..3"
    assert list(unused_but_not_zero(state)) == ["waiting"]


def test_ranges_of_enumerations_are_those_of_their_members() -> None:
    for name, kind in (
        ("phase", Phase),
        ("pause", Pause),
        ("assertion", Assertion),
        ("status", Status),
    ):
        field = STATE.fields[STATE.index[name]]
        assert field.among == f"0..{max(kind)}"
    assert REPORT.fields[REPORT.index["finished"]].among == f"0..{max(Status)}"
    assert all(field.about for schema in (STATE, SCOPE, REPORT) for field in schema.fields)
