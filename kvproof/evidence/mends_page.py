"""The page of the mends, made from their table, the findings, and a search with each."""

from __future__ import annotations

from kvproof.checker.check import check
from kvproof.checker.check_progress import check_progress
from kvproof.errors import KvproofError
from kvproof.model.options import ScopeError
from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.hangs import HANGS, Hang
from kvproof.spec.mends import MENDED_BY, MENDS, MendInfo, mended


class MendFails(KvproofError, RuntimeError):
    """A finding that its mend does not remove."""


_HANGS = {one.id: one for one in HANGS}
_FINDINGS = {one.id: one for one in FINDINGS}


def mends_page() -> str:
    """docs/mends.md: each mend, what it removes, what it costs, and what was searched with it."""
    lines = [
        "# Mends\n",
        "A mend is the smallest change of vLLM that removes a finding: in the model a switch of "
        "the scope, off by default, and of the real classes an edit of the function's syntax tree "
        "in the driver's process (`kvproof/vllm/mend_edits.py`), which fails if it does not find "
        "its place exactly once. Each finding's scope was searched to its end with the mend on, "
        "and once more with all mends on: nothing falls. `checks/test_mends.py` does so again, "
        "and takes every transition of it on the real classes with the edit made: equal "
        "observations, for each mend alone and for all of them together. `kvproof check SCOPE "
        "--mend NAME` and `--mended` (all) search any scope so; `replay`, `minimize`, "
        "`check-progress`, `lockstep` and `random` know the options too.\n",
        "What is not measured yet: what the mends cost over the sweep and the multi-turn "
        "workload; the costs below are said, not counted.\n",
        "| mend | removes |",
        "|---|---|",
        *(
            f"| [`{info.name}`](#{info.name}) | {', '.join(map(_link, info.removes))} |"
            for info in MENDS
        ),
        "",
    ]
    for info in MENDS:
        lines += [
            f'<a id="{info.name}"></a>\n',
            f"## {info.name}\n",
            f"{info.statement} `{info.where}`.\n",
            f"**Why it is right.** {info.why}\n",
            f"**What it costs.** {info.costs}\n",
            "| finding | with the mend | with all mends |",
            "|---|---|---|",
            *(
                f"| {_link(finding)} | {_searched(info, finding, alone=True)} "
                f"| {_searched(info, finding, alone=False)} |"
                for finding in info.removes
            ),
            "",
        ]
    left = [one for one in {**_HANGS, **_FINDINGS} if one not in MENDED_BY]
    lines += [
        "## Findings without a mend\n",
        *(f"- {_link(finding)}" for finding in left),
        *([] if left else ["None."]),
        "",
    ]
    return "\n".join(lines)


def _link(finding: str) -> str:
    page = "findings" if finding in _FINDINGS else "progress"
    return f"[{finding}]({page}.md#{finding})"


def _searched(info: MendInfo, finding: str, *, alone: bool) -> str:
    """What a search of the finding's scope says; MendFails where something falls."""
    hang, one = _HANGS.get(finding), _FINDINGS.get(finding)
    told: Finding | Hang | None = one or hang
    assert told is not None
    try:
        scope = told.scope.with_mends(info.name)
    except ScopeError:
        return "start-up refuses the scope"
    scope = scope if alone else mended(told.scope)
    says = []
    if one is not None:
        done = check(scope, ignore=frozenset(one.past if alone else ()))
        fell = done.result.violation
        if fell is not None:
            raise MendFails(f"{finding}: {', '.join(fell.invariants)} with {scope.mends}")
        result = done.result.finished()
        says.append(f"{result.transitions:,} transitions hold")
    if hang is not None:
        progress = check_progress(scope)
        progress.result.finished()
        if progress.lassos:
            raise MendFails(f"{finding}: {progress.lassos[0].broken} with {scope.mends}")
        says.append(f"progress of {progress.result.transitions:,} transitions holds")
    return ", ".join(says)
