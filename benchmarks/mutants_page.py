"""docs/mutants.md of the record of a mutation run: `python -m benchmarks.mutants_page`.

Survivors of lockstep have a verdict and a reason each in benchmarks/survivors.json, by name.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.mutants import PAGE, REASONS, RECORD

VERDICTS = {
    "equivalent": "nothing that leaves the scheduler, and no later decision, can differ",
    "not modelled": "only a feature that the model leaves out can tell",
    "missed": "a real gap: text with full attention can tell, and nothing here does",
    "unjudged": "nobody has looked yet",
}

COLUMNS = ("lockstep", "alone")

Entry = dict[str, Any]


def entries() -> list[Entry]:
    """The record, in the order of the run."""
    return [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]


def crashed(entry: Entry) -> bool:
    """Whether lockstep saw it by an error that no changed behaviour needs."""
    what = entry["lockstep"].get("what", "")
    return any(
        name in what for name in ("TypeError", "NameError", "AttributeError", "UnboundLocal")
    )


def verdict(entry: Entry, reasons: dict[str, list[str]]) -> str:
    """Why lockstep lets a mutant pass."""
    return reasons.get(entry["mutant"], ["unjudged"])[0]


def _share(what: str, of: list[Entry]) -> str:
    """A row: how many of these are caught, each way."""
    cells = []
    for column in COLUMNS:
        caught = sum(one[column]["how"] != "survives" for one in of)
        cells.append(f"{caught} of {len(of)}, {caught / len(of):.0%}")
    return f"| {what} | " + " | ".join(cells) + " |"


def page(found: list[Entry], reasons: dict[str, list[str]]) -> str:
    """The page in Markdown."""
    survivors = [one for one in found if one["lockstep"]["how"] == "survives"]
    verdicts = Counter(verdict(one, reasons) for one in survivors)
    lines = [
        "# Mutants of vLLM",
        "",
        "Made by `python -m benchmarks.mutants_page` from a run of `python -m benchmarks.mutants`.",
        "",
        f"{len(found)} one-statement mutants of vLLM's scheduler files, drawn with a fixed seed "
        "from those on lines that lockstep reaches, each put into the real classes in the driver's "
        "process. Lockstep is random runs and the small scopes; the invariants alone are random "
        "runs of the real classes with no model beside them, 300 at most.",
        "",
        "| | lockstep | invariants alone |",
        "|---|---|---|",
    ]
    hows = ("difference", "invariant", "driver error", "does not return", "survives")
    crashes = sum(crashed(one) for one in found)
    counts = {c: Counter(one[c]["how"] for one in found) for c in COLUMNS}
    lines += [
        f"| {how} | {counts['lockstep'][how] or '-'} | {counts['alone'][how] or '-'} |"
        for how in hows
    ]
    told = [
        one
        for one in found
        if one not in survivors or verdict(one, reasons) not in ("equivalent", "not modelled")
    ]
    lines += [
        _share("caught, of all", found),
        _share("caught, of those that text with full attention can tell", told),
        _share(
            "the same, without those that make no sense to Python",
            [one for one in told if not crashed(one)],
        ),
        "| median seconds to a catch | "
        + " | ".join(
            f"{median(one[c]['seconds'] for one in found if one[c]['how'] != 'survives'):.2f}"
            for c in COLUMNS
        )
        + " |",
        "",
        f"{crashes} of the mutants make no sense to Python (a TypeError, a NameError, an "
        "AttributeError), which any run tells. A driver error is a catch that names no "
        "difference: vLLM went on, and what it did next no longer fits the run.",
        "",
        "## By file",
        "",
        "| file | mutants | lockstep | invariants alone |",
        "|---|---|---|---|",
    ]
    by_file: dict[str, list[Entry]] = {}
    for one in found:
        by_file.setdefault(Path(one["file"]).name, []).append(one)
    for file, of_file in sorted(by_file.items()):
        shares = (sum(one[c]["how"] != "survives" for one in of_file) for c in COLUMNS)
        lines.append(f"| {file} | {len(of_file)} | " + " | ".join(map(str, shares)) + " |")
    lines += ["", "## What lockstep lets pass", ""]
    lines += [f"- {name}, {verdicts[name]}: {text}." for name, text in VERDICTS.items()]
    lines += ["", "| mutant | change | names there | verdict | reason |", "|---|---|---|---|---|"]
    for one in sorted(survivors, key=lambda one: (verdict(one, reasons), one["mutant"])):
        name = one["mutant"].rpartition("v1.")[2]
        why = reasons.get(one["mutant"], ["unjudged", ""])
        names = ", ".join(f"`{name}`" for name in one["names"])
        lines.append(f"| `{name}` | {one['change']} | {names} | {why[0]} | {why[1]} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the page."""
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    PAGE.write_text(page(entries(), reasons), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
