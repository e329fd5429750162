"""Mends on the model, on the command line and in Python; the real classes are in checks/."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvproof
from kvproof.checker.known import known_finding
from kvproof.cli.main import main
from kvproof.model.compiled import compile_scope
from kvproof.model.mends import Mend
from kvproof.model.options import ScopeError
from kvproof.scopes.named import SCOPES
from kvproof.spec.findings import FINDINGS
from kvproof.spec.mends import MENDED_BY, MENDS, mended
from kvproof.trace.identify import identity_of
from kvproof.trace.trace import Trace

ROOT = Path(__file__).parent.parent
NAME = "reset-behind-fence"
RUN = ROOT / "counterexamples" / "findings" / f"{NAME}.json"
FINDING = next(one for one in FINDINGS if one.id == NAME)
MEND = MENDED_BY[NAME]
REFUSING = "compare_scheduled_budget"


def test_every_mend_has_its_edits() -> None:
    tree = ast.parse((ROOT / "kvproof" / "vllm" / "mend_edits.py").read_text(encoding="utf-8"))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.AnnAssign))
    assert isinstance(table, ast.Dict)
    keys = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert set(keys) == set(Mend.__members__)
    assert len(keys) == len(MENDS)


def test_a_scope_has_no_mends_unless_it_says_so() -> None:
    assert not any(compile_scope(SCOPES["two-equal"]).c.mends)
    on = compile_scope(SCOPES["two-equal"].with_mends(MEND)).c.mends
    assert [Mend(i).name for i, value in enumerate(on) if value] == [MEND]


def test_a_mend_that_there_is_not_is_refused() -> None:
    with pytest.raises(ScopeError, match=f"mends = 'x': allowed is .*{MEND}"):
        SCOPES["two-equal"].with_mends("x")


def test_a_mend_of_start_up_stays_off_where_it_would_refuse_the_scope() -> None:
    refused = next(one for one in FINDINGS if MENDED_BY.get(one.id) == REFUSING).scope
    assert set(Mend.__members__) - set(mended(refused).mends) == {REFUSING}
    assert set(mended(SCOPES["two-equal"]).mends) == set(Mend.__members__)


def test_a_finding_explains_nothing_where_its_mend_is_made() -> None:
    trace = kvproof.load(RUN)
    assert isinstance(trace, Trace)
    assert trace.broken == ("ResetSound",)
    finding = next(one for one in FINDINGS if one.id == "reset-while-loading")
    load = kvproof.load(RUN.with_stem(finding.id))
    assert isinstance(load, Trace)
    identity = identity_of(load)
    assert known_finding(identity) is not None
    mends = [MENDED_BY[one.id] for one in FINDINGS if one.explains(identity)]
    assert known_finding(identity, mends) is None


def test_a_run_is_taken_again_with_mends_in_python() -> None:
    trace = kvproof.load(RUN)
    assert kvproof.replay(trace).broken == ("ResetSound",)
    run = kvproof.replay(trace, mends=[MEND])
    assert run.broken == ()
    assert run.trace.scope.mends == (MEND,)
    assert kvproof.check(FINDING.scope).outcome == "violated"
    assert kvproof.check(FINDING.scope, mends=[MEND]).outcome == "holds"


@pytest.mark.parametrize("options", [["--mend", MEND], ["--mended"]])
def test_a_run_is_taken_again_with_mends_on_the_command_line(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(monkeypatch, "replay", str(RUN)) == 1
    assert "broken: ResetSound" in capsys.readouterr().out
    assert ended(monkeypatch, "replay", str(RUN), *options) == 0
    said = capsys.readouterr().out
    assert "broken" not in said
    assert MEND in said.partition("mends: ")[2].partition("\n")[0]


def test_minimize_says_that_a_mend_leaves_nothing_to_shrink(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    to = tmp_path / "smaller.json"
    assert ended(monkeypatch, "minimize", str(RUN), "--to", str(to), "--mend", MEND) == 2
    assert f"breaks nothing with {MEND}" in capsys.readouterr().err
    assert not to.exists()


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["kvproof", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    assert isinstance(exited.value.code, int)
    return exited.value.code
