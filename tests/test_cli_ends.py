"""How commands end: interrupts, defects, and how far they say they are."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvproof.bridge import lockstep as lockstep_module
from kvproof.bridge.lockstep import Report, lockstep, lockstep_scope
from kvproof.checker.check import Check, check
from kvproof.checker.minimize import minimize, whole_only
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.cli import console
from kvproof.cli import main as main_module
from kvproof.cli.main import main
from kvproof.cli.outcomes import exit_code
from kvproof.cli.searching import searched
from kvproof.model.scope import Scope
from kvproof.proof import unrolling
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import SoFar, explore
from kvproof.simulate import real
from kvproof.workload.settings import Settings


def end_of(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["kvproof", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What `main` sets for its process is taken back."""
    terminate, hook = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    yield
    signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = hook


def fails_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_arguments: object, **_options: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("a defect"), 70, "RuntimeError: a defect"),
        (EOFError("a defect too"), 70, "EOFError: a defect too"),
        (MemoryError(), 2, "out of memory"),
        (KeyboardInterrupt(), 130, "kvproof: interrupted"),
        (OSError(28, "No space left on device", "x.json"), 2, "x.json: No space left on device"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_a_violation_ends_with_1(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("kvproof.cli.scope.template", fails_with(error))
    assert end_of("scope", monkeypatch=monkeypatch) == code
    assert said in capsys.readouterr().err


def test_an_interrupt_that_the_compiler_loses_is_one_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main_module, "_lost_interrupts", ["a callback"])
    monkeypatch.setattr("kvproof.cli.scope.template", fails_with(RuntimeError("no object yet")))
    assert end_of("scope", monkeypatch=monkeypatch) == 130


def test_sigterm_does_what_a_ctrl_c_does_at_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []

    def listen() -> str:
        signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
        signal.raise_signal(signal.SIGTERM)
        return ""

    usual = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("kvproof.cli.scope.template", listen)
    try:
        monkeypatch.setattr(sys, "argv", ["kvproof", "scope"])
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGINT, usual)
    assert not end.value.code
    assert heard == [signal.SIGINT]


def test_a_fall_goes_before_an_interrupt_and_an_interrupt_before_a_limit() -> None:
    assert exit_code(["holds", "violated", "bounded"], interrupted=True) == 1
    assert exit_code(["holds", "bounded"], interrupted=True) == 130
    assert exit_code(["holds", "bounded"]) == 3
    assert exit_code([]) == 0


class Echo:
    """Answers lockstep as the model expects it, up to a Ctrl-C."""

    version = "none"
    unseen = ()

    def __init__(self, answered: int) -> None:
        self.left = answered
        self.out: list[list[Any]] = []

    def submit(self, batch: list[Any]) -> None:
        self.out.append(batch)

    def collect(self) -> list[Any]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.out.pop(0)


@pytest.mark.parametrize("answered", [0, 2])
def test_an_interrupted_lockstep_says_what_was_compared(
    answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockstep_module, "_BATCH", 5)
    monkeypatch.setattr(lockstep_module, "compare", lambda _expected, _answer: ())
    result = explore(SchedulerSystem(SCOPES["two-equal"]))
    whole: Report = lockstep(SCOPES["two-equal"], result, Echo(1000))  # type: ignore[arg-type]
    assert (whole.transitions, whole.left, whole.interrupted) == (result.transitions, 0, False)
    part = lockstep(SCOPES["two-equal"], result, Echo(answered))  # type: ignore[arg-type]
    assert part.interrupted
    assert part.transitions + part.left == result.transitions
    assert (part.transitions > 0) == (answered > 0)
    assert f"{part.left} left" in part.figures


def test_a_lockstep_whose_search_is_interrupted_compares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(system: SchedulerSystem) -> Any:
        return explore(system, watch=fails_with(KeyboardInterrupt()))

    monkeypatch.setattr(lockstep_module, "explore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lockstep_scope(SCOPES["two-equal"], Echo(1000))  # type: ignore[arg-type]


def test_a_minimisation_is_whole_where_its_best_so_far_is_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope = SCOPES["shared-prefix"].with_rules_off("evict_hash_on_reuse")
    monkeypatch.setattr("kvproof.checker.minimize.cuts", fails_with(KeyboardInterrupt()))
    assert minimize(scope).actions
    with pytest.raises(KeyboardInterrupt):
        minimize(scope, watch=whole_only)


class Served:
    """A simulation of which `rounds` rounds are over when Ctrl-C comes."""

    rounds = 3
    answers = True

    def __init__(self, _version: str, _module: str) -> None:
        pass

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def run(self, batch: list[list[Any]]) -> list[Any]:
        ((name, *_),) = batch
        if name == "advance":
            if self.rounds == 0:
                raise KeyboardInterrupt
            self.rounds -= 1
            return [[True, 1.0, 2]]
        return [{"broken": None, "records": [], "totals": {}, "full_checks": 7}]

    def settle(self, _seconds: float) -> None:
        if not self.answers:
            raise KeyboardInterrupt


def test_an_interrupted_simulation_keeps_what_was_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "Client", Served)
    run = real.run_on_vllm([], Settings())
    assert run.interrupted
    assert (run.full_checks, run.broken) == (7, None)
    monkeypatch.setattr(Served, "answers", False)
    with pytest.raises(KeyboardInterrupt):
        real.run_on_vllm([], Settings())


class Solver:
    """Z3 after a Ctrl-C, which it takes for itself, or after its time."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def check(self, *_terms: object) -> Any:
        return unrolling.z3.unknown

    def reason_unknown(self) -> str:
        return self._reason


def test_an_interrupt_that_z3_takes_is_raised() -> None:
    assert unrolling.asked(Solver("timeout")) == unrolling.z3.unknown
    with pytest.raises(KeyboardInterrupt):
        unrolling.asked(Solver("interrupted from keyboard"))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 40 columns in the place of standard error."""
    screen = io.StringIO()
    made = Console(file=screen, force_terminal=True, width=40, markup=False, no_color=True)
    monkeypatch.setattr(console, "err", made)
    return screen


def test_progress_says_how_much_of_how_much_is_done_and_what_time_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    times = iter((0.0, 90.0, 230.0))
    monkeypatch.setattr(console, "live_line", lambda: nullcontext(lines.append))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(times))
    with console.counted_line("sweep") as count:
        assert count is not None
        count(0, 23)
        count(9, 23, "scopes")
        count(23, 23)
    assert lines == [
        "sweep 0 of 23 (0%)",
        "sweep 9 of 23 (39%, 2 min left) scopes",
        "sweep 23 of 23 (100%)",
    ]


def test_a_line_of_progress_is_cut_to_the_terminal_and_printed_as_it_is(
    terminal: io.StringIO,
) -> None:
    with console.live_line() as show:
        assert show is not None
        show("[bold]name[/wip]: " + "x" * 100)
    shown = [line for line in terminal.getvalue().splitlines() if "x" in line]
    assert shown
    assert all("[bold]name[/wip]: xxx" in line and "x" * 40 not in line for line in shown)


def test_without_a_terminal_there_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "err", Console(file=io.StringIO()))
    with console.counted_line() as count, console.live_line() as show:
        assert (count, show) == (None, None)


def test_progress_of_a_search_says_whether_the_frontier_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("kvproof.cli.searching.live_line", lambda: nullcontext(lines.append))

    def search(scope: Scope, watch: Callable[[SoFar], None]) -> Check:
        for depth, frontier in enumerate((1, 3, 2)):
            watch(SoFar(5, 9, depth, frontier, 0.25, 2.0, 10**6))
        return check(scope)

    (done,) = searched([SCOPES["two-equal"]], search)
    assert done.result.states == 29
    assert [line.partition("frontier ")[2].partition(",")[0] for line in lines] == [
        "1",
        "3 growing",
        "2 shrinking",
    ]


def test_what_an_error_quotes_does_nothing_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "kvproof.cli.scope.template", fails_with(OSError(2, "no", "a\x1b[31m\r[b]"))
    )
    assert end_of("scope", monkeypatch=monkeypatch) == 2
    assert r"kvproof: a\x1b[31m\r[b]: no" in capsys.readouterr().err


def test_a_record_that_cannot_be_added_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "sweep.jsonl"
    sweep = ("sweep", "--scopes", "1", "--record", str(record))
    usual = Path.open

    def full(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode == "ab":
            raise OSError(28, "No space left on device")
        return usual(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    assert end_of(*sweep, monkeypatch=monkeypatch) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{record}: No space left on device: what it has is kept" in said
