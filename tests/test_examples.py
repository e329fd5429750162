"""The examples of the README and of the guide do what they print."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvproof
from kvproof.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page that are written in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def sessions() -> Iterator[tuple[str, str, str]]:
    """Each command of the pages' console blocks: page, command, what it is said to print."""
    for page in PAGES:
        for block in blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, _, printed = part.partition("\n")
                yield page.name, command, printed


@pytest.mark.parametrize(
    ("page", "command", "printed"), list(sessions()), ids=lambda text: str(text).partition("\n")[0]
)
def test_a_command_prints_what_the_page_shows(page: str, command: str, printed: str) -> None:
    name, *words = command.split()
    assert name == "kvproof", page
    called = [sys.executable, "-m", "kvproof", *words]
    got = subprocess.run(called, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    checker = doctest.OutputChecker()
    example = doctest.Example(command, printed)
    assert checker.check_output(printed, got, FLAGS), checker.output_difference(example, got, FLAGS)


def test_the_readme_and_the_guide_each_show_a_result() -> None:
    assert {"README.md", "guide.md"} <= {page for page, _, _ in sessions()}


def test_every_command_of_the_readme_is_one() -> None:
    (uses,) = (text for text in blocks(PAGES[0], "") if "kvproof scopes" in text)
    names = {line.split()[1] for line in uses.splitlines()}
    assert len(names) > 10
    assert names <= set(COMMANDS)


def test_every_scope_of_the_pages_is_one(tmp_path: Path) -> None:
    shown = [text for page in PAGES for text in blocks(page, "toml") if "[[requests]]" in text]
    assert len(shown) >= 2
    for i, text in enumerate(shown):
        path = tmp_path / f"shown-{i}.toml"
        path.write_text(text)
        kvproof.load_scope(path)
