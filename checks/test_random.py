"""Random runs far beyond the searched scopes: the model, the real classes, and both at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from checks.random_machines import Hunt, account, run
from kvproof.vllm.follow import opener

ROOT = Path(__file__).parent.parent
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
    ("on", "share"), [("model", 1), ("lockstep", REAL_ONES // 2), ("vllm", REAL_ONES)]
)
def test_random_runs_break_nothing_but_open_findings(
    on: str,
    share: int,
    request: pytest.FixtureRequest,
    first_seed: int,
    measured: Callable[[str], None],
) -> None:
    client = None if on == "model" else request.getfixturevalue("vllm")
    hunt = Hunt(opener(on, client))  # type: ignore[arg-type]
    wrong = run(hunt, examples(share), first_seed)
    measured(f"random     on {on:<8} seed {first_seed}: {hunt.tally.summary()}")
    if wrong is not None:
        keep = request.config.getoption("--save-failing-runs")
        pytest.fail(account(wrong, keep=keep), pytrace=False)
    assert hunt.tally.actions > 0
