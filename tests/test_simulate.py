from __future__ import annotations

import csv
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof.simulate import plot, serq
from kvproof.simulate.comparison import Cause, compare_runs
from kvproof.simulate.serq import MissingSerq, Observed, SerqRun, Variant, run_on_serq
from kvproof.simulate.summary import summarise, write_csv
from kvproof.workload import clock
from kvproof.workload.clock import Admission, Broken, Delivery, Record, Simulation, Step
from kvproof.workload.sessions import Session, Turn, draw, token
from kvproof.workload.settings import Settings, SimulateError

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"rate": 0}, "--rate = 0"),
        ({"rate": math.nan}, "--rate = nan"),
        ({"pool": 0}, "--pool = 0"),
        ({"policy": "lifo"}, "--policy = 'lifo'"),
        ({"depth": 3}, "--depth = 3"),
        ({"seed": -1}, "--seed = -1"),
        ({"horizon": math.inf}, "--horizon = inf"),
        ({"warmup": 3000}, "--warmup = 3000"),
        ({"budget": 4}, "--budget = 4"),
        ({"continue_probability": 1}, "--continue = 1"),
        ({"check_every": -1}, "--check-every = -1"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(SimulateError, match="allowed is") as caught:
        Settings(**options)
    assert named in str(caught.value)


def test_the_same_seed_draws_the_same_sessions_and_another_does_not() -> None:
    short = Settings(horizon=100, warmup=0)
    assert draw(short) == draw(short)
    assert draw(short) != draw(Settings(horizon=100, warmup=0, seed=2))


def test_another_rate_brings_the_same_sessions_at_other_times() -> None:
    slow = draw(Settings(horizon=100, warmup=0))
    fast = draw(Settings(horizon=100, warmup=0, rate=3.0))
    assert len(fast) > 5 * len(slow)
    for a, b in zip(slow, fast, strict=False):
        assert a.turns == b.turns


def test_what_is_drawn_has_the_shape_of_the_workload() -> None:
    sessions = draw(Settings(horizon=20_000, warmup=0))
    turns = [turn for session in sessions for turn in session.turns]
    later = [turn for session in sessions for turn in session.turns[1:]]
    assert len(sessions) / 20_000 == pytest.approx(0.3, rel=0.1)
    assert len(turns) / len(sessions) == pytest.approx(10, rel=0.1)
    assert all(1000 < session.turns[0].new <= 3000 for session in sessions)
    assert sum(turn.new for turn in later) / len(later) == pytest.approx(500, rel=0.1)
    assert sum(turn.out for turn in turns) / len(turns) == pytest.approx(201, rel=0.1)
    assert sum(turn.think for turn in turns) / len(later) == pytest.approx(3, rel=0.1)
    assert all(turn.new >= 1 and turn.out >= 2 for turn in turns)


def test_a_token_belongs_to_one_position_of_one_session() -> None:
    seen = {token(session, position) for session in range(50) for position in range(200)}
    assert len(seen) == 50 * 200
    assert token(3, 9) - token(3, 0) == 9


class OneAtATime:
    """An engine that serves in turn: the whole prompt in a step, then a token a step."""

    def __init__(self) -> None:
        self.queue: list[clock.Request] = []
        self.given: dict[int, int] = {}
        self.planned: list[tuple[int, bool]] = []

    def add(self, request: clock.Request) -> None:
        self.queue.append(request)
        self.given[request.number] = 0

    def has_requests(self) -> bool:
        return bool(self.queue)

    def schedule(self) -> Step:
        request = self.queue[0]
        done = self.given[request.number]
        self.given[request.number] += 1
        last = done + 1 == request.out
        if last:
            self.queue.pop(0)
        self.planned.append((request.number, last))
        admitted = [Admission(request.number, request.prompt, 0)] if done == 0 else []
        return Step(request.prompt if done == 0 else 1, 0, admitted, [])

    def output(self) -> Sequence[Delivery]:
        number, last = self.planned.pop(0)
        return [Delivery(number, 1, last)]


class Stuck(OneAtATime):
    def schedule(self) -> Step:
        self.planned.append((self.queue[0].number, False))
        return Step(0, 0, [], [])

    def output(self) -> Sequence[Delivery]:
        self.planned.pop(0)
        return []


def served(sessions: list[Session], engine: Any = None, **options: Any) -> Simulation:
    settings = Settings(
        **{"horizon": 100.0, "warmup": 0.0, "a": 0.01, "omega": 0.5, "beta": 0.0, **options}
    )
    simulation = Simulation(engine or OneAtATime(), sessions, settings)
    while simulation.advance(100):
        pass
    return simulation


def test_times_are_those_of_the_steps() -> None:
    # The prompt takes 100 x 0.01 s, each further token 0.5 s.
    (record,) = served([Session(0, 2.0, (Turn(100, 3),))]).records
    assert (record.sent, record.ttft, record.response) == (2.0, 1.0, 2.0)
    assert (record.hit, record.prefill) == (0, 100)


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    first, second = served(
        [Session(0, 0.0, (Turn(100, 1),)), Session(1, 0.25, (Turn(10, 1),))]
    ).records
    assert first.response == 1.0
    assert second.admissions == [(1.0, 10, 0)]
    assert second.response == pytest.approx(1.5 - 0.25)


def test_the_next_turn_repeats_the_context_after_a_pause() -> None:
    first, second = served([Session(0, 0.0, (Turn(100, 3, think=4.0), Turn(7, 1)))]).records
    assert second.sent == first.finished + 4.0  # type: ignore[operator]
    assert second.prompt == 100 + 3 + 7


def test_a_recorded_time_of_sending_is_kept_unless_the_answer_is_late() -> None:
    early = (Turn(100, 1), Turn(7, 1, sent=30.0))
    late = (Turn(100, 1), Turn(7, 1, sent=0.5))
    assert served([Session(0, 0.0, early)]).records[1].sent == 30.0
    assert served([Session(0, 0.0, late)]).records[1].sent == 1.0


def test_with_two_steps_in_flight_the_second_is_planned_at_once_and_runs_after() -> None:
    sessions = [Session(0, 0.0, (Turn(100, 1),)), Session(1, 0.0, (Turn(10, 1),))]
    _, one = served(sessions).records
    _, two = served(sessions, depth=2).records
    assert one.admissions[0][0] == 1.0
    assert two.admissions[0][0] == 0.0
    assert one.response == two.response == 1.5


def test_what_does_not_finish_before_the_horizon_has_no_response() -> None:
    records = served(
        [Session(0, 0.0, (Turn(100, 9),)), Session(1, 1.9, (Turn(5, 1),))], horizon=2.0
    ).records
    assert records[0].first_token == 1.0
    assert [record.finished for record in records] == [None, None]
    assert records[1].sent == 1.9


def test_a_turn_longer_than_the_model_length_ends_its_session() -> None:
    turns = (Turn(100, 1), Turn(100, 1), Turn(1, 1))
    simulation = served([Session(0, 0.0, turns)], pool=10)
    assert len(simulation.records) == 1
    assert simulation.totals.refused == 1


def test_an_engine_that_schedules_nothing_stalls() -> None:
    with pytest.raises(Broken, match="NoStall"):
        served([Session(0, 0.0, (Turn(100, 1),))], Stuck())


def record(turn: int = 0, *, sent: float = 10.0, hit: int = 16, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "admissions": [(sent, 100, hit)],
        "first_token": sent + 1,
        "finished": sent + 3,
        **changes,
    }
    return Record(0, turn, sent, prompt=100, new=50, out=4, **values)


def test_a_summary_counts_what_was_observed_after_the_warm_up() -> None:
    records = [
        record(0, sent=1.0, hit=0),
        record(1, sent=10.0, preemptions=1, admissions=[(10.0, 100, 16), (12.0, 102, 96)]),
        record(2, sent=20.0, hit=0, first_token=None, finished=None),
    ]
    summary = summarise(records, warmup=5.0)
    hit, prefill, ttft, response = summary.figures
    assert (hit.observed, hit.mean, hit.p50) == (3, pytest.approx(112 / 3), 16)
    assert prefill.mean == pytest.approx((84 + 6 + 100) / 3)
    assert (ttft.observed, ttft.mean) == (1, 1.0)
    assert (response.observed, response.p99) == (1, 3.0)
    assert summary.served == 1
    assert summary.preemptions == 1
    assert summary.hit_share == pytest.approx(2 / 3)


def test_a_summary_of_nothing_has_no_figures() -> None:
    summary = summarise([], warmup=0.0)
    assert math.isnan(summary.hit_share)
    assert all(figure.observed == 0 and math.isnan(figure.p99) for figure in summary.figures)


def test_a_file_has_a_line_for_each_request_and_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    write_csv([record(), record(1, first_token=None, finished=None)], path)
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    assert [(row["turn"], row["hit"], row["ttft"]) for row in rows] == [
        ("0", "16", "1.0"),
        ("1", "16", ""),
    ]
    with pytest.raises(SimulateError, match="--force"):
        write_csv([], path)
    with pytest.raises(SimulateError, match=r"\.csv"):
        write_csv([], tmp_path / "runs.txt")
    with pytest.raises(SimulateError, match="no directory"):
        write_csv([], tmp_path / "no" / "runs.csv")


def theirs(sent: float = 10.0, hit: float = 16, **changes: Any) -> Observed:
    values = {"waited": 0.0, "ttft": 1.0, "response": 3.0, "preempted": False, **changes}
    return Observed(sent=sent, prompt=100, hit=hit, **values)


def compared(variant: Variant, *pairs: tuple[Record, Observed]) -> Any:
    observed = {(mine.session, mine.turn): seen for mine, seen in pairs}
    run = SerqRun("", [], observed, 1, {})
    return compare_runs(run, [mine for mine, _ in pairs], variant)


def test_equal_requests_are_counted_as_equal() -> None:
    done = compared(Variant.WHOLE, (record(), theirs()))
    assert (done.requests, done.equal, done.differences, done.largest) == (1, 1, (), 0.0)


def test_a_hit_that_changed_while_the_request_waited_is_the_lookup() -> None:
    waited = record(0, hit=0, admissions=[(10.5, 100, 0)])
    shares = record(1, sent=11.0, finished=14.5)
    alone = record(2, sent=50.0)
    done = compared(
        Variant.WHOLE,
        (waited, theirs()),
        (shares, theirs(11.0)),
        (alone, theirs(50.0)),
    )
    assert [d.cause for d in done.differences] == [Cause.LOOKUP, Cause.FOLLOWS]
    assert (done.equal_hit, done.equal_ttft, done.equal_response) == (2, 3, 2)
    assert done.largest == pytest.approx(0.5)


def test_a_difference_without_a_reason_is_unexplained() -> None:
    at_once = compared(Variant.WHOLE, (record(hit=0), theirs()))
    assert [d.cause for d in at_once.differences] == [Cause.UNKNOWN]
    slower = compared(Variant.WHOLE, (record(finished=14.0), theirs()))
    assert [d.cause for d in slower.differences] == [Cause.UNKNOWN]
    admitted = compared(Variant.RESERVED, (record(hit=0, admissions=[(10.5, 100, 0)]), theirs()))
    assert [d.cause for d in admitted.differences] == [Cause.UNKNOWN]


def test_a_later_admission_in_a_full_pool_is_the_reservation() -> None:
    late = record(admissions=[(10.5, 100, 16)], first_token=11.5)
    done = compared(Variant.SCHEDULED, (late, theirs()))
    assert [d.cause for d in done.differences] == [Cause.CAPACITY]


def test_without_pyserq_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyserq", None)
    with pytest.raises(MissingSerq, match=r"pip install 'kvproof\[serq\]'"):
        run_on_serq(Settings(), Variant.WRITTEN)


def test_serq_has_no_other_policy() -> None:
    with pytest.raises(SimulateError, match="--policy"):
        run_on_serq(Settings(policy="priority"), Variant.WRITTEN)


def test_serq_gives_its_known_figures_and_the_page_has_them() -> None:
    pytest.importorskip("pyserq")
    run = run_on_serq(Settings(), Variant.WRITTEN)
    assert run.means["turns"] == 5673
    assert run.arrivals == 626
    assert run.means["hit"] == pytest.approx(0.8931782, abs=1e-7)
    assert run.means["prefill_tokens"] == pytest.approx(766.74147, abs=1e-5)
    assert run.means["ttft"] == pytest.approx(0.0168638, abs=1e-7)
    assert run.means["response"] == pytest.approx(0.0642041, abs=1e-7)
    page = (ROOT / "docs" / "multi-turn.md").read_text(encoding="utf-8")
    assert "5,673 turns of 626 sessions, hit share 0.893, mean prefill 766.7 tokens" in page


def test_serqs_variants_are_different_programs() -> None:
    pytest.importorskip("pyserq")
    tight = Settings(rate=2.0, pool=700, horizon=20.0, warmup=0.0)
    runs = [run_on_serq(tight, variant) for variant in Variant]
    assert len({run.means["response"] for run in runs}) == len(runs)
    assert serq.program().count("reserve") == 0
    for run in runs:
        for session in run.sessions:
            assert all(
                earlier.sent < later.sent  # type: ignore[operator]
                for earlier, later in zip(session.turns, session.turns[1:], strict=False)
            )


def test_a_plot_is_drawn_the_same_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        plot.plot([record(), record(1, sent=20.0)], Settings(horizon=40, warmup=0), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"time to first token" in files[0].read_bytes() or b"<svg" in files[0].read_bytes()


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plot.MissingPlot, match=r"pip install 'kvproof\[plot\]'"):
        plot.figure_class()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("multi-turn", "--pool", "0"), "--pool = 0: allowed is 1..1,000,000"),
        (("multi-turn", "--to", "x.parquet"), "--to = 'x.parquet'"),
        (("multi-turn", "--plot", "x.gif"), "--plot = 'x.gif'"),
        (("lockstep", "--episodes", "0"), "--episodes = 0"),
        (("compare", "--horizon", "-1"), "--horizon = -1.0"),
        (("compare", "nonsense"), "nonsense"),
    ],
)
def test_a_mistake_exits_with_2_and_names_it(arguments: tuple[str, ...], named: str) -> None:
    command = [sys.executable, "-c", "from kvproof.cli.main import main; main()", "simulate"]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
