"""What the runs reach of vLLM's files: `python -m benchmarks.reach` makes docs/reach.md.

Statements are counted in the driver's process (kvproof/vllm/mutants.py) while walks of the named
scopes, the findings and random runs go through the real classes. benchmarks/reach.json keeps the
numbers of each function, benchmarks/unreached.json has by hand why a function is never reached;
the page is made of the two alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.mutants import BATCH, MOST_REQUESTS, ROOT, Way, run_way
from kvproof.bridge.client import Client
from kvproof.evidence.counterexamples import FOLDER
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.spec.findings import FINDINGS
from kvproof.trace.trace import load, replay
from kvproof.walks.runs import draw_run
from kvproof.walks.walk import Walker

RECORD = ROOT / "benchmarks" / "reach.json"
REASONS = ROOT / "benchmarks" / "unreached.json"
PAGE = ROOT / "docs" / "reach.md"

RUNS = 300
WALKS = 12
STEPS = 60

TEXT = "Text with full attention"
"""How the groups begin that no other feature explains."""

Lines = set[tuple[str, int]]
Record = dict[str, dict[str, list[int]]]


def scope_ways(scope: Scope, walks: int = WALKS) -> Iterator[Way]:
    """Guided and unguided walks of a scope."""
    compiled = compile_scope(scope)
    for seed in range(walks):
        yield run_way(compiled, Walker(compiled).walk(STEPS, seed, guided=seed % 2 == 0).codes)


def named_ways() -> Iterator[Way]:
    """Walks of the named scopes."""
    for scope in SCOPES.values():
        yield from scope_ways(scope)


def finding_ways() -> Iterator[Way]:
    """The recorded run of each finding, and walks of its scope."""
    for finding in FINDINGS:
        trace = load(ROOT / FOLDER / "findings" / f"{finding.id}.json")
        yield run_way(compile_scope(trace.scope), [moment.code for moment in replay(trace)])
        yield from scope_ways(finding.scope)


def random_ways(runs: Iterable[int] = range(RUNS)) -> Iterator[Way]:
    """Guided random runs over drawn scopes."""
    for i in runs:
        choose = RandomChooser(f"reach-{i}")
        compiled = compile_scope(draw_run(choose, None, f"random-{i}", MOST_REQUESTS))
        seed = choose.integer(0, (1 << 30) - 1)
        yield run_way(compiled, Walker(compiled).walk(STEPS, seed, guided=True).codes)


PARTS: dict[str, Callable[[], Iterator[Way]]] = {
    "named scopes": named_ways,
    "findings": finding_ways,
    "random runs": random_ways,
}


def lines_of(ways: Iterable[Way], client: Client) -> Lines:
    """Lines of vLLM's files that run in these, as (file, line)."""
    client.run([["reach"]])
    for way in ways:
        operations = [operation for operation, _ in way.items]
        for first in range(0, len(operations), BATCH):
            client.run(operations[first : first + BATCH])
    return {(file, line) for file, line in client.run([["reach"]])[0]}


def is_reached(file: str, span: list[int], lines: Lines) -> bool:
    """Whether a statement has run, given its first and last line."""
    first, last = span
    return any((file, line) in lines for line in range(first, last + 1))


def measure() -> Record:
    """Of each function: its statements, those that each part reaches, those that any reaches."""
    out: Record = {}
    with Client(module="kvproof.vllm.mutants") as client:
        statements = client.run([["statements"]])[0]
        by_part = [lines_of(ways(), client) for ways in PARTS.values()]
    by_part.append(set().union(*by_part))
    for name, file, spans in statements:
        numbers = [sum(is_reached(file, span, lines) for span in spans) for lines in by_part]
        out.setdefault(file, {})[name.rpartition(":")[2]] = [len(spans), *numbers]
    return out


def never_reached(record: Record) -> list[str]:
    """Functions that no part reaches, as file:function."""
    return [
        f"{Path(file).stem}:{function}"
        for file, functions in record.items()
        for function, numbers in functions.items()
        if not numbers[-1]
    ]


def group_of(function: str, reasons: dict[str, list[str]]) -> str | None:
    """Why a function is never reached: the group with the longest beginning of its name."""
    beginnings = [
        (len(beginning), group)
        for group, listed in reasons.items()
        for beginning in listed
        if function.startswith(beginning)
    ]
    return max(beginnings)[1] if beginnings else None


def page(record: Record, reasons: dict[str, list[str]]) -> str:
    """The page in Markdown."""
    lines = [
        "# What the runs reach of vLLM",
        "",
        "Made by `python -m benchmarks.reach`; `tests/test_reach.py` holds it against the real "
        "classes.",
        "",
        f"Statements of functions in vLLM's scheduler files that run in the driver's process, in "
        f"{WALKS} walks of at most {STEPS} actions over each named scope, in the recorded run of "
        f"each finding and as many walks over its scope, and in {RUNS} random runs over drawn "
        "scopes. *For text* leaves out the functions that are never reached and that text with "
        "full attention has no use for (below).",
        "",
        f"| file | statements | {' | '.join(PARTS)} | all | share | for text |",
        "|---|---|" + "---|" * (len(PARTS) + 3),
    ]
    everything: list[tuple[str, list[int]]] = []
    for file, functions in record.items():
        rows = [(f"{Path(file).stem}:{name}", numbers) for name, numbers in functions.items()]
        everything += rows
        lines.append(_row(f"`{file}`", rows, reasons))
    lines += [_row("all", everything, reasons), "", "## Functions that are never reached", ""]
    grouped: dict[str, list[str]] = {}
    for function in never_reached(record):
        grouped.setdefault(group_of(function, reasons) or "Nobody knows why", []).append(function)
    for group in [*reasons, "Nobody knows why"]:
        if group in grouped:
            names = ", ".join(f"`{name.partition(':')[2]}`" for name in grouped[group])
            lines += [f"**{group}** ({len(grouped[group])}). {names}.", ""]
    lines += ["## Functions that are reached in part", "", "| function | statements | reached |"]
    lines.append("|---|---|---|")
    lines += [
        f"| `{name}` | {numbers[0]} | {numbers[-1]} |"
        for name, numbers in everything
        if 0 < numbers[-1] < numbers[0]
    ]
    return "\n".join([*lines, ""])


def _row(title: str, rows: list[tuple[str, list[int]]], reasons: dict[str, list[str]]) -> str:
    totals = [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]
    for_text = [
        numbers
        for name, numbers in rows
        if numbers[-1] or (group_of(name, reasons) or TEXT).startswith(TEXT)
    ]
    share = sum(one[-1] for one in for_text) / sum(one[0] for one in for_text)
    cells = [*map(str, totals), f"{totals[-1] / totals[0]:.0%}", f"{share:.0%}"]
    return f"| {title} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure, and write the record and the page."""
    record = measure()
    RECORD.write_text(_dumped(record), encoding="utf-8")
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    PAGE.write_text(page(record, reasons), encoding="utf-8")
    print(f"wrote {PAGE}")


def _dumped(record: Record) -> str:
    """One function a line."""
    files = [
        f" {json.dumps(file)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(n)}" for name, n in functions.items())
        + "\n }"
        for file, functions in record.items()
    ]
    return "{\n" + ",\n".join(files) + "\n}\n"


if __name__ == "__main__":
    main()
