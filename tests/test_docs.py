from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.evidence.pages import PAGES
from kvproof.spec import state_invariants, step_invariants
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run `kvproof docs`"


def test_every_invariant_is_registered_once_with_a_kernel_of_its_name() -> None:
    assert [invariant.id for invariant in INVARIANTS] == list(Id)
    for invariant in INVARIANTS:
        snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in invariant.id.name)
        module = state_invariants if invariant.kind == "state" else step_invariants
        assert hasattr(module, snake.lstrip("_"))
