"""What the checks measured, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvproof.vllm import environment
from kvproof.vllm.client import Client

_LINES = pytest.StashKey[list[str]]()


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
