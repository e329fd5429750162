from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvproof.checker.known import known_finding, known_hang
from kvproof.spec.findings import FINDINGS
from kvproof.spec.hangs import HANGS
from kvproof.spec.identity import Cause, Identity, Pattern
from kvproof.trace.identify import identity_of, identity_of_lasso
from kvproof.trace.lasso import load_lasso
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| ([A-Z]\S*(?: \S+)*) \| \d+ \| \[([\w-]+)\]", re.MULTILINE)


def told(page: str) -> list[tuple[str, str]]:
    """What a page lists: the identity in words, and the finding that explains it."""
    rows = ROW.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert len(rows) > 10
    return rows


def parse(text: str) -> Identity:
    """The identity that prints so."""
    causes = []
    for cause in reversed(Cause):
        if text.endswith(f" {cause}"):
            text = text.removesuffix(f" {cause}")
            causes.insert(0, cause)
    broken, *words = text.split()
    action = words[1] if words[:1] == ["at"] else ""
    where = words[2:] if action else words
    return Identity(tuple(broken.split("+")), action, tuple(where), tuple(causes))


@pytest.mark.parametrize(("text", "finding"), told("sweep.md"))
def test_what_the_sweep_tells_apart_is_explained_as_its_page_says(text: str, finding: str) -> None:
    identity = parse(text)
    assert str(identity) == text
    known = known_finding(identity)
    assert known is not None
    assert known.id == finding


@pytest.mark.parametrize(("text", "hang"), told("progress-sweep.md"))
def test_what_the_progress_sweep_tells_apart_is_explained_as_its_page_says(
    text: str, hang: str
) -> None:
    identity = parse(text)
    assert str(identity) == text
    known = known_hang(identity)
    assert known is not None
    assert known.id == hang


def test_a_recorded_run_has_an_identity_that_its_finding_explains() -> None:
    for finding in FINDINGS:
        trace = load(ROOT / f"counterexamples/findings/{finding.id}.json")
        identity = identity_of(trace)
        assert finding.broken.name in identity.broken or identity.broken == ("NoAssertion",)
        if finding.patterns:
            assert finding.explains(identity)
    for hang in HANGS:
        found = load_lasso(ROOT / f"counterexamples/progress/{hang.id}.json")
        assert hang.explains(identity_of_lasso(found))


def test_an_identity_goes_through_json_and_has_an_order() -> None:
    one = Identity(("NoStall",), "schedule", ("waiting_no_blocks",), (Cause.FAILED_LOAD,))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Identity) == one
    assert one.way == ("schedule", ("waiting_no_blocks",), ())
    held = Identity(("NoStall",), causes=(Cause.FAILED_LOAD, Cause.HELD))
    assert held.way == ("", (), (Cause.HELD,))
    other = Identity(("NoStall",), "schedule", ("waiting_chunk",))
    assert sorted((one, other)) == [other, one]
    assert len({one, other, one}) == 2


STALL = Identity(("NoStall", "HandOver"), "schedule", ("waiting_chunk",), (Cause.FAILED_LOAD,))


@pytest.mark.parametrize(
    ("agrees", "does_not"),
    [
        (Pattern(broken=("NoStall", "HandOver")), Pattern(broken=("NoStall",))),
        (Pattern(falls="HandOver"), Pattern(falls="ResetSound")),
        (Pattern(action="schedule"), Pattern(action="output")),
        (Pattern(where=("waiting_chunk",)), Pattern(where=("waiting_chunk", "prefix_hit"))),
        (Pattern(causes=(Cause.FAILED_LOAD,)), Pattern(causes=())),
        (Pattern(after=Cause.FAILED_LOAD), Pattern(after=Cause.LOOKAHEAD)),
    ],
)
def test_a_pattern_has_what_agrees_with_every_field(agrees: Pattern, does_not: Pattern) -> None:
    assert agrees.has(STALL)
    assert not does_not.has(STALL)
