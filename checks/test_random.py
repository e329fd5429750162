"""Random runs far beyond the searched scopes: the model, the real classes, and both at once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, Verbosity, settings

from checks.random_machines import FOLDER, Hunt, account, run
from checks.random_page import PAGE, sampled_rules, states_row
from kvproof.bridge.client import Client
from kvproof.bridge.follow import Difference, On, opener
from kvproof.bridge.vllm_replay import replay_on_vllm
from kvproof.checker.minimize import follow
from kvproof.model.rules import Rule
from kvproof.scopes.named import SCOPES
from kvproof.trace.trace import load, replay
from kvproof.walks.coverage import states_reached
from kvproof.walks.runs import random_runs
from kvproof.walks.worlds import ModelWorld, Violation

ROOT = Path(__file__).parent.parent
HARD_TO_MEET = {Rule.reserve_spec_step_for_loads}
"""What goes wrong without it is met by a search only: no example of the page's number shows it."""

STALE = "run `python -m checks.random_page`"
REAL_ONES = 10
"""The real classes take so many times longer than the model."""


@pytest.fixture
def first_seed(request: pytest.FixtureRequest) -> int:
    """Hypothesis' own option, or 0: a run is a function of it."""
    chosen = request.config.getoption("--hypothesis-seed")
    if chosen == "random":
        return random.SystemRandom().randrange(1 << 32)
    return 0 if chosen is None else int(chosen)


def examples(share: int) -> settings:
    """The profile's settings with a share of its examples."""
    profile = settings.default
    assert profile is not None
    return settings(profile, max_examples=max(profile.max_examples // share, 1))


@pytest.mark.parametrize(
    ("on", "share"),
    [("model", 1), ("lockstep", REAL_ONES // 2), ("vllm", REAL_ONES)],
    ids=["on_model", "on_lockstep", "on_vllm"],
)
def test_random_runs_break_nothing_but_open_findings(
    on: On,
    share: int,
    request: pytest.FixtureRequest,
    first_seed: int,
    measured: Callable[[str], None],
) -> None:
    client = None if on == "model" else request.getfixturevalue("vllm")
    hunt = Hunt(opener(on, client))
    wrong = run(hunt, examples(share), first_seed)
    measured(f"random     on {on:<8} seed {first_seed}: {hunt.tally}")
    if wrong is not None:
        keep = request.config.getoption("--save-failing-runs")
        pytest.fail(account(wrong, keep=keep), pytrace=False)
    assert hunt.tally.actions > 0


@pytest.fixture(scope="module")
def guided_cells() -> dict[str, str]:
    """The page's cells, from an interpreter of its own, as the page is written.

    Hypothesis draws constants that it finds in the modules that are imported, so the number of
    examples is another one beside other checks.
    """
    script = "from checks.random_page import print_guided_cells; print_guided_cells()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return dict(line.split("\t") for line in done.stdout.splitlines())


@pytest.mark.parametrize("rule", sampled_rules(), ids=lambda rule: rule.name)
def test_the_machines_find_what_goes_wrong_without_a_rule(
    rule: Rule, guided_cells: dict[str, str], measured: Callable[[str], None]
) -> None:
    cell = guided_cells[rule.name]
    measured(f"random     without {rule.name:<33} {cell:>5} examples")
    assert cell.startswith("not in") == (rule in HARD_TO_MEET)
    assert f"| {rule.name} | {cell} |" in PAGE.read_text(encoding="utf-8"), STALE


@pytest.mark.parametrize("name", ["drafts", "failing-loads"])
def test_a_guided_walk_meets_more_states_and_the_page_says_so(name: str) -> None:
    row = states_row(name)
    assert row in PAGE.read_text(encoding="utf-8").splitlines(), STALE
    plain, guided = (
        states_reached(SCOPES[name], 100, steps=50, seed=1, guided=guided)
        for guided in (False, True)
    )
    assert guided > 1.2 * plain


def test_lockstep_tells_the_real_classes_from_a_model_without_a_rule(vllm: Client) -> None:
    hunt = Hunt(opener("lockstep", vllm), rules_off=("free_tail_first",))
    wrong = run(hunt, settings(examples(1), phases=[Phase.generate]), 0)
    assert isinstance(wrong, Difference)
    assert "free" in {name for name, _model, _real in wrong.fields}


def test_equal_seeds_give_equal_runs() -> None:
    first, again, other = (random_runs(ModelWorld, 60, steps=40, seed=seed) for seed in (3, 3, 4))
    assert str(first) == str(again)
    assert (first.branches == again.branches).all()
    assert str(first) != str(other)


def saved_runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


@pytest.mark.parametrize("path", saved_runs(ROOT / FOLDER), ids=lambda path: path.stem)
def test_a_saved_run_stays_mended(path: Path, request: pytest.FixtureRequest) -> None:
    trace = load(path)
    if trace.scope.rules_off:
        *_, last = replay(trace)
        assert set(trace.broken) <= set(last.broken)
        return
    assert follow(trace.scope, trace.actions)[1] == ()
    if not trace.broken:
        answer = replay_on_vllm(trace, request.getfixturevalue("vllm"))
        assert answer.agrees, answer.fields


def test_a_failing_run_is_shrunk_told_and_saved_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    scope = SCOPES["two-equal"].with_rules_off("free_tail_first")
    hunt = Hunt(lambda _drawn, tally: ModelWorld(scope, tally), sizes=("tiny",))
    options = settings(examples(1), stateful_step_count=2, verbosity=Verbosity.quiet)
    wrong = run(hunt, options, 0)
    assert isinstance(wrong, Violation)
    told = account(wrong, keep=False)
    assert not (tmp_path / FOLDER).exists()
    command, path = told.splitlines()[-1].rsplit(" ", 1)
    assert command == "kvproof replay"
    trace = load(Path(path))
    assert len(trace.actions) <= len(wrong.trace.actions)
    *_, last = replay(trace)
    assert set(trace.broken) <= set(last.broken)
    account(wrong, keep=True)
    assert [load(saved) for saved in saved_runs(tmp_path / FOLDER)] == [trace]
