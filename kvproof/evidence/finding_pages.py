"""Open findings: their traces in counterexamples/findings/ and their page in docs/."""

from __future__ import annotations

from pathlib import Path

from kvproof.checker.check import check
from kvproof.errors import KvproofError
from kvproof.evidence.project import project
from kvproof.spec.findings import FINDINGS, Finding, OpenFinding
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, save

FOLDER = Path("counterexamples/findings")


class FindingGone(KvproofError, RuntimeError):
    """A finding that the search does not make any more."""


def find(finding: Finding) -> Trace:
    """A shortest run to the finding in its scope; FindingGone where there is none."""
    done = check(finding.scope, ignore=frozenset(finding.past))
    done.result.finished()
    trace = done.trace
    if trace is None or finding.broken.name not in trace.broken:
        fell = "nothing" if trace is None else ", ".join(trace.broken)
        raise FindingGone(f"{finding.id}: expected {finding.broken.name} to fall, {fell} did")
    return trace


def write_findings(folder: Path | None = None) -> list[Path]:
    """Write the trace of every finding anew; returns the paths."""
    paths = []
    folder = folder or project() / FOLDER
    for finding in FINDINGS:
        path = folder / f"{finding.id}.json"
        save(find(finding), path, force=True)
        paths.append(path)
    return paths


def account(finding: OpenFinding, run: str) -> list[str]:
    """Lines of a page that tell a finding, with a run of it."""
    return [
        f"{finding.account}\n",
        f"**Who can meet it.** {finding.reachable}\n",
        f"**What would mend it.** {finding.mend}\n",
        "```",
        run.rstrip(),
        "```\n",
    ]


def findings_page() -> str:
    """docs/findings.md: each finding with its shortest run, for a maintainer to act on."""
    lines = [
        "# What the checker finds on vLLM 0.31.0\n",
        "Every rule is on: this is vLLM as it is. Each run below is a shortest one in its scope "
        "and was taken by the real classes too, with equal observations after every action (or "
        "the same exception); `checks/test_findings.py` does it again, and fails if a finding "
        "disappears. `kvproof replay counterexamples/findings/<name>.json` shows a run.\n",
        "| finding | what falls |",
        "|---|---|",
        *(
            f"| [{finding.title}](#{finding.id}) | `{finding.broken.name}` |"
            for finding in FINDINGS
        ),
        "",
    ]
    for finding in FINDINGS:
        lines += [
            f'<a id="{finding.id}"></a>\n',
            f"## {finding.title}\n",
            f"`{finding.broken.name}` falls; `{finding.where}`.\n",
            *account(finding, render(find(finding))),
        ]
    return "\n".join(lines)
