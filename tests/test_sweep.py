from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from kvproof.checker.check import Limits
from kvproof.model.scope import Scope
from kvproof.scopes.cover import Constraint, Cover, Pair, pairs_of
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.sweep import sweep as sweep_module
from kvproof.sweep.sweep import Swept, sweep
from kvproof.trace.trace import TraceError, replay

ROOT = Path(__file__).parent.parent
FEW = Limits(states=500)

SMALL = {"a": (1, 2, 3), "b": ("x", "y"), "c": (False, True), "d": (1, 2)}
NOT_3X = Constraint(("a", "b"), lambda a, b: a == 3 and b == "x", "3 goes with y")
# Neither constraint refuses a = 1 with d = 2, but c has no value left for them.
NEEDS_C = Constraint(("a", "c"), lambda a, c: a == 1 and not c, "1 needs c")
FORBIDS_C = Constraint(("c", "d"), lambda c, d: c and d == 2, "2 forbids c")


def covered(rows: list[dict[str, str | int | bool]]) -> set[Pair]:
    return {pair for row in rows for pair in pairs_of(row)}


def test_a_round_covers_every_pair() -> None:
    cover = Cover(SMALL)
    rows = list(cover.round())
    assert covered(rows) == set(cover.pairs())
    assert len(rows) < 3 * 2 * 2 * 2
    assert cover.infeasible == set()


def test_a_pair_is_left_out_only_if_constraints_refuse_every_row_with_it() -> None:
    constraints = (NOT_3X, NEEDS_C, FORBIDS_C)
    cover = Cover(SMALL, constraints)
    rows = list(cover.round())
    for row in rows:
        for constraint in constraints:
            assert not constraint.refuses(*(row[name] for name in constraint.names))
    alone = {(("a", 3), ("b", "x")), (("a", 1), ("c", False)), (("c", True), ("d", 2))}
    together: Pair = (("a", 1), ("d", 2))
    assert cover.infeasible == {*alone, together}
    assert covered(rows) == set(cover.pairs()) - cover.infeasible
    assert cover.why_infeasible((("a", 3), ("b", "x"))) == "3 goes with y"
    assert "together" in cover.why_infeasible(together)


def test_later_rounds_cover_every_pair_again_with_other_rows() -> None:
    cover = Cover(PARAMETERS, CONSTRAINTS)
    first, second = list(cover.round()), list(cover.round())
    assert covered(first) == covered(second)
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
    whole = sweep(4, limits=FEW)
    sweep(2, limits=FEW, record=record)
    searched = []
    search = sweep_module.search

    def counted(number: int, row: dict[str, str | int | bool], limits: Limits) -> Swept:
        searched.append(number)
        return search(number, row, limits)

    monkeypatch.setattr(sweep_module, "search", counted)
    assert sweep(4, limits=FEW, record=record).swept == whole.swept
    assert searched == [2, 3]
    assert sweep(4, limits=FEW, record=record).swept == whole.swept
    assert searched == [2, 3]


def test_a_record_of_another_sweep_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    sweep(2, limits=FEW, record=record)
    with pytest.raises(TraceError, match="row 0 is not the one of this sweep"):
        sweep(2, limits=FEW, record=record, seed=1)


def test_a_record_of_another_limit_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    sweep(1, limits=FEW, record=record)
    with pytest.raises(TraceError, match="another limit"):
        sweep(1, limits=Limits(states=400), record=record)


def test_a_line_that_was_cut_off_is_searched_again(tmp_path: Path) -> None:
    record = tmp_path / "sweep.jsonl"
    whole = sweep(2, limits=FEW, record=record)
    lines = record.read_bytes()
    record.write_bytes(lines[:-20])
    assert sweep(2, limits=FEW, record=record).swept == whole.swept
    assert record.read_bytes() == lines


@pytest.mark.parametrize("text", ["mine\n", "mine", "mine\nand more"])
def test_another_file_is_refused_as_a_record_and_kept(tmp_path: Path, text: str) -> None:
    record = tmp_path / "notes.txt"
    record.write_text(text)
    with pytest.raises(TraceError, match=r"notes\.txt"):
        sweep(1, limits=FEW, record=record)
    assert record.read_text() == text


def test_an_interrupted_sweep_keeps_what_is_done() -> None:
    def interrupt(one: Swept, _count: int) -> None:
        if one.number == 1:
            raise KeyboardInterrupt

    assert [one.number for one in sweep(9, limits=FEW, watch=interrupt).swept] == [0, 1]


def test_each_distinct_violation_is_reported_once_with_a_run_that_breaks_it() -> None:
    done = sweep(12, limits=FEW)
    distinct = done.distinct()
    assert distinct
    assert set(distinct) == {found.identity for one in done.swept for found in one.found}
    for identity, found in distinct.items():
        moments = list(replay(found.trace))
        assert set(found.trace.broken) <= set(moments[-1].broken)
        assert identity.action == moments[-1].action.do
