from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvproof.evidence.generated import masks_module, mends_module, rules_module, write_modules
from kvproof.evidence.pages import PAGES
from kvproof.model.mends import Mend
from kvproof.model.rules import Rule
from kvproof.spec import state_invariants, step_invariants
from kvproof.spec.findings import FINDINGS
from kvproof.spec.hangs import HANGS
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id
from kvproof.spec.mends import MENDS
from kvproof.spec.progress import Property
from kvproof.spec.rules import RULES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text == PAGES[name](), "run `kvproof docs`"


def test_every_invariant_is_registered_once_with_a_kernel_of_its_name() -> None:
    assert [invariant.id for invariant in INVARIANTS] == list(Id)
    for invariant in INVARIANTS:
        module = state_invariants if invariant.kind == "state" else step_invariants
        assert hasattr(module, invariant.kernel_name)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("model/rules.py", rules_module),
        ("model/mends.py", mends_module),
        ("spec/masks.py", masks_module),
    ],
)
def test_a_module_made_from_a_table_is_fresh(name: str, module: Callable[[], str]) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == module(), "run `kvproof docs`"


def test_what_a_mend_removes_is_an_open_finding_and_one_mend_removes_it() -> None:
    assert [info.name for info in MENDS] == list(Mend.__members__)
    removed = [finding for info in MENDS for finding in info.removes]
    assert len(set(removed)) == len(removed)
    assert set(removed) <= {one.id for one in (*FINDINGS, *HANGS)}


def test_what_a_table_names_by_text_is_there() -> None:
    assert [info.rule for info in RULES] == list(Rule)
    for info in RULES:
        assert set(info.breaks) | set(info.past) <= set(Id.__members__)
        assert set(info.breaks_progress) <= set(Property.__members__)
        assert info.seed is None or not info.seed.rules_off


def test_a_table_with_one_more_entry_gives_one_more_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(RULES[-1], name="one_more")
    other = replace(INVARIANTS[-1], name="OneMore")
    mend = replace(MENDS[-1], name="one_mend_more")
    monkeypatch.setattr("kvproof.evidence.generated.RULES", (*RULES, one))
    monkeypatch.setattr("kvproof.evidence.generated.MENDS", (*MENDS, mend))
    monkeypatch.setattr("kvproof.evidence.generated.INVARIANTS", (*INVARIANTS, other))
    for name in ("model/rules.py", "model/mends.py", "spec/masks.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    assert len(write_modules(tmp_path)) == 3
    assert f"    one_mend_more = {len(MENDS)}\n" in (tmp_path / "model/mends.py").read_text()
    assert f"    one_more = {len(RULES)}\n" in (tmp_path / "model/rules.py").read_text()
    masks = (tmp_path / "spec/masks.py").read_text()
    assert f"    OneMore = {len(INVARIANTS)}\n" in masks
    assert "step_invariants.one_more(before, s, c, e, kind)" in masks
    assert write_modules(tmp_path) == []
