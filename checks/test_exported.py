"""Exported tests under pytest, in vLLM's environment: green and red where they should be."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from checks.test_guards_out import UNSEEN
from kvproof.bridge import environment
from kvproof.bridge.client import Client
from kvproof.bridge.export import export_test
from kvproof.evidence.counterexamples import FOLDER
from kvproof.evidence.finding_pages import FOLDER as FINDINGS_FOLDER
from kvproof.model.rules import Rule
from kvproof.spec.findings import FINDINGS, Finding
from kvproof.trace.trace import load

ROOT = Path(__file__).parent.parent

# A test is named after its rule.
WITHOUT_GUARDS = """
import pytest
from kvproof.vllm.guards_out import taken_out

@pytest.fixture(autouse=True)
def without_the_guard(request):
    with taken_out([request.node.name.removeprefix("test_")]):
        yield
"""


@dataclass(frozen=True)
class Run:
    """The exported files of one pytest process, and for each test its failure (None: it passed)."""

    folder: Path
    failures: dict[str, str | None]


def export(trace: Path, folder: Path) -> None:
    path = folder / f"test_{trace.stem.replace('-', '_')}.py"
    path.write_text(export_test(load(trace)), encoding="utf-8")


def run_pytest(folder: Path) -> Run:
    """Run the folder's tests in vLLM's environment: a process of its own, no word of kvproof's."""
    python = environment.find()
    if python is None:
        pytest.skip("vLLM has no environment here: `make vllm` builds it")
    report = folder / "report.xml"
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "--tb=short", "--rootdir=.", f"--junitxml={report}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT) if (folder / "conftest.py").exists() else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    failures: dict[str, str | None] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        assert case.find("error") is None, f"{case.get('name')}: not a failure of the test"
        failure = case.find("failure")
        failures[str(case.get("name"))] = None if failure is None else failure.text or ""
    return Run(folder, failures)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every rule and every finding on vLLM as it is."""
    folder = tmp_path_factory.mktemp("plain")
    for rule in Rule:
        export(ROOT / FOLDER / f"{rule.name}.json", folder)
    for finding in FINDINGS:
        export(ROOT / FINDINGS_FOLDER / f"{finding.id}.json", folder)
    return run_pytest(folder)


@pytest.fixture(scope="module")
def without(vllm: Client, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The rules whose guards can be taken out, each without its guard."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "conftest.py").write_text(WITHOUT_GUARDS, encoding="utf-8")
    for name in vllm.guards:
        export(ROOT / FOLDER / f"{name}.json", folder)
    return run_pytest(folder)


def test_on_vllm_as_it_is_every_rule_is_green_and_every_finding_red(
    plain: Run, measured: Callable[[str], None]
) -> None:
    red = {name for name, failure in plain.failures.items() if failure is not None}
    assert red == {f"test_{finding.id.replace('-', '_')}" for finding in FINDINGS}
    assert plain.failures.keys() - red == {f"test_{rule.name}" for rule in Rule}
    measured(f"exported   {len(Rule)} green on vLLM as it is, {len(red)} findings red")


def test_without_its_guard_every_rule_is_red_that_is_seen_from_outside(
    without: Run, vllm: Client, measured: Callable[[str], None]
) -> None:
    assert without.failures.keys() == {f"test_{name}" for name in vllm.guards}
    green = {name for name, failure in without.failures.items() if failure is None}
    assert green == {f"test_{name}" for name in UNSEEN}
    measured(f"exported   {len(without.failures) - len(green)} red without the guard")


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.id)
def test_a_finding_is_red_at_its_last_call(plain: Run, finding: Finding) -> None:
    name = finding.id.replace("-", "_")
    source = (plain.folder / f"test_{name}.py").read_text(encoding="utf-8").splitlines()
    calls = [n for n, line in enumerate(source, 1) if re.match(r"    e\.(?!expect\()\w+\(", line)]
    failure = plain.failures[f"test_{name}"] or ""
    failed_at = re.findall(rf"^test_{name}\.py:(\d+): in test_{name}$", failure, re.MULTILINE)
    assert failed_at == [str(calls[-1])], failure
