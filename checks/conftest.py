"""What the checks measured, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from kvproof.bridge import environment
from kvproof.bridge.client import Client

_LINES = pytest.StashKey[list[str]]()

settings.register_profile(
    "ci",
    max_examples=120,
    stateful_step_count=8,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=10_000)
settings.register_profile("soak", settings.get_profile("ci"), max_examples=1 << 60)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--save-failing-runs",
        action="store_true",
        help="save what random runs find under counterexamples/random/, as a pinned regression",
    )


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a line to the summary of the run."""
    return request.config.stash.setdefault(_LINES, []).append


@pytest.fixture(scope="session")
def vllm() -> Iterator[Client]:
    """The real classes; what needs them is skipped where they are not."""
    version = environment.DEFAULT_VERSION
    if environment.find(version) is None:
        pytest.skip(f"vLLM {version} has no environment here: `make vllm` builds it")
    with Client(version) as client:
        yield client


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("measured")
        for line in sorted(lines):
            terminalreporter.write_line(line)
