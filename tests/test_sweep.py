from __future__ import annotations

import subprocess
import sys
from itertools import combinations, count, islice, product
from pathlib import Path

import pytest

from kvproof.checker.check import Limits
from kvproof.model.scope import Scope
from kvproof.scopes.cover import Constraint, Cover, Row, Value
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.sweep import rows_searched
from kvproof.sweep import sweep as sweep_module
from kvproof.sweep.progress_sweep import progress_sweep
from kvproof.sweep.rows_searched import Bound
from kvproof.sweep.sweep import Swept, sweep
from kvproof.trace.trace import TraceError, replay

ROOT = Path(__file__).parent.parent
FEW = Limits(states=500)

SMALL: dict[str, tuple[Value, ...]] = {
    "a": (1, 2, 3),
    "b": ("x", "y"),
    "c": (False, True),
    "d": (1, 2),
}
NOT_3X = Constraint(("a", "b"), lambda a, b: a == 3 and b == "x", "3 goes with y")
# Neither constraint refuses a = 1 with d = 2, but c has no value left for them.
NEEDS_C = Constraint(("a", "c"), lambda a, c: a == 1 and not c, "1 needs c")
FORBIDS_C = Constraint(("c", "d"), lambda c, d: c and d == 2, "2 forbids c")


Combination = tuple[tuple[str, Value], ...]


def combinations_of(row: Row, strength: int) -> set[Combination]:
    return set(combinations(row.items(), strength))


def every_row(*constraints: Constraint) -> list[Row]:
    """All rows that meet the constraints, one by one."""
    rows = [dict(zip(SMALL, values, strict=True)) for values in product(*SMALL.values())]
    return [
        row
        for row in rows
        if not any(one.refuses(*(row[name] for name in one.names)) for one in constraints)
    ]


@pytest.mark.parametrize("strength", [2, 3, 4])
@pytest.mark.parametrize("constraints", [(), (NOT_3X, NEEDS_C, FORBIDS_C)], ids=["free", "tied"])
def test_a_round_covers_every_combination_that_some_row_has(
    strength: int, constraints: tuple[Constraint, ...]
) -> None:
    cover = Cover(SMALL, constraints, strength=strength)
    rows = list(cover.round())
    all_rows = every_row(*constraints)
    possible = set().union(*(combinations_of(row, strength) for row in all_rows))
    assert all(row in all_rows for row in rows)
    assert set().union(*(combinations_of(row, strength) for row in rows)) == possible
    assert (cover.possible, cover.left) == (len(possible), 0)
    assert cover.combined == len(
        set().union(*(combinations_of(row, strength) for row in every_row()))
    )
    assert len({tuple(row.items()) for row in rows}) == len(rows)


def test_rows_cover_what_they_have() -> None:
    cover = Cover(SMALL, (NOT_3X,), strength=3)
    rows = list(cover.round())
    for some in (rows[:1], rows[:4], rows[:4] * 2, rows):
        assert cover.covered(some) == len(set().union(*(combinations_of(r, 3) for r in some)))
    assert cover.covered([]) == 0


def test_three_values_take_far_fewer_rows_than_there_are() -> None:
    cover = Cover(PARAMETERS, CONSTRAINTS, strength=3)
    assert len(list(cover.round())) < 600


def test_later_rounds_cover_every_pair_again_with_other_rows() -> None:
    cover = Cover(PARAMETERS, CONSTRAINTS)
    first, second = list(cover.round()), list(cover.round())
    assert cover.covered(first) == cover.covered(second) == cover.possible
    assert first != second


def test_the_same_seed_gives_the_same_rows_in_every_process() -> None:
    script = (
        "from itertools import islice; from kvproof.scopes.cover import Cover; "
        "from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS; "
        "print(list(islice(Cover(PARAMETERS, CONSTRAINTS, seed=3).rows(), 40)))"
    )
    here = str(list(islice(Cover(PARAMETERS, CONSTRAINTS, seed=3).rows(), 40)))
    there = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert there.stdout.strip() == here


def test_every_row_is_a_scope_that_start_up_accepts() -> None:
    rows = islice(Cover(PARAMETERS, CONSTRAINTS).rows(), 600)
    scopes = [scope_of(number, row) for number, row in enumerate(rows)]
    assert all(isinstance(scope, Scope) for scope in scopes)
    assert len({scope.max_model_len for scope in scopes}) > 1
    assert max(scope.depth for scope in scopes) == 3


def test_a_sweep_goes_on_where_its_record_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "sweep.jsonl"
    whole = sweep(Bound(4), limits=FEW)
    sweep(Bound(2), limits=FEW, record=record)
    searched = []
    search = sweep_module.search

    def counted(number: int, row: dict[str, str | int | bool], limits: Limits) -> Swept:
        searched.append(number)
        return search(number, row, limits)

    monkeypatch.setattr(sweep_module, "search", counted)
    assert sweep(Bound(4), limits=FEW, record=record).swept == whole.swept
    assert searched == [2, 3]
    assert sweep(Bound(4), limits=FEW, record=record).swept == whole.swept
    assert searched == [2, 3]


def test_a_record_of_another_sweep_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    sweep(Bound(2), limits=FEW, record=record)
    with pytest.raises(TraceError, match="row 0 is not the one of this sweep"):
        sweep(Bound(2), limits=FEW, record=record, seed=1)


def test_a_record_of_another_limit_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    sweep(Bound(1), limits=FEW, record=record)
    with pytest.raises(TraceError, match="another limit"):
        sweep(Bound(1), limits=Limits(states=400), record=record)


def test_a_line_that_was_cut_off_is_searched_again(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    whole = sweep(Bound(2), limits=FEW, record=record)
    lines = record.read_bytes()
    record.write_bytes(lines[:-20])
    assert sweep(Bound(2), limits=FEW, record=record).swept == whole.swept
    assert record.read_bytes() == lines


@pytest.mark.parametrize("text", ["mine\n", "mine", "mine\nand more"])
def test_another_file_is_refused_as_a_record_and_kept(tmp_path: Path, text: str) -> None:
    record = tmp_path / "notes.txt"
    record.write_text(text)
    with pytest.raises(TraceError, match=r"notes\.txt"):
        sweep(Bound(1), limits=FEW, record=record)
    assert record.read_text() == text


def test_an_interrupted_sweep_keeps_what_is_done() -> None:
    def interrupt(done: float, _whole: float) -> None:
        if done == 2:
            raise KeyboardInterrupt

    done = sweep(Bound(9), limits=FEW, watch=interrupt)
    assert [one.number for one in done.swept] == [0, 1]
    assert done.ended == "interrupted"


def test_a_sweep_begins_no_row_when_its_minutes_are_over_and_goes_on_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A row takes a second by this clock.
    monkeypatch.setattr(rows_searched.time, "monotonic", lambda: float(next(clock)))
    clock = count()
    record = tmp_path / "sweep.jsonl"
    short = sweep(Bound(minutes=3 / 60), limits=FEW, record=record)
    assert (len(short.swept), short.ended) == (3, "minutes")
    longer = sweep(Bound(minutes=2 / 60), limits=FEW, record=record)
    assert len(longer.swept) == 5
    assert longer.swept[:3] == short.swept
    assert 0 < short.covered < longer.covered < longer.cover.possible
    assert f"{longer.covered:,} are covered" in longer.coverage


def test_a_progress_sweep_goes_on_where_its_record_ends(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    whole = progress_sweep(Bound(3), limits=FEW)
    progress_sweep(Bound(2), limits=FEW, record=record)
    lines = record.read_bytes()
    assert progress_sweep(Bound(3), limits=FEW, record=record).swept == whole.swept
    assert record.read_bytes().startswith(lines)
    with pytest.raises(TraceError, match="another command"):
        sweep(Bound(3), limits=FEW, record=record)


def test_each_distinct_violation_is_reported_once_with_a_run_that_breaks_it() -> None:
    done = sweep(Bound(12), limits=FEW)
    distinct = done.distinct()
    assert distinct
    assert set(distinct) == {found.identity for one in done.swept for found in one.found}
    for identity, found in distinct.items():
        moments = list(replay(found.trace))
        assert set(found.trace.broken) <= set(moments[-1].broken)
        assert identity.action == moments[-1].action.do
