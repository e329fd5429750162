"""The pages of mutation runs, of their records: `python -m benchmarks.mutants_page OF`.

`vllm` makes docs/mutants.md, `model` docs/model-mutants.md, `relations` docs/relation-mutants.md.
What survives has a verdict and a reason each in benchmarks/survivors.json, by name.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.model_mutants import RECORD as MODEL_RECORD
from benchmarks.mutants import PAGE, REASONS, RECORD
from benchmarks.relation_mutants import RECORD as RELATIONS_RECORD

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
        "Made by `python -m benchmarks.mutants_page vllm` from a run of "
        "`python -m benchmarks.mutants`.",
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


def _survivors(title: str, left: list[Entry], reasons: dict[str, list[str]]) -> list[str]:
    """A table of what survives, with its verdict and reason."""
    lines = ["", title, "", "| mutant | change | verdict | reason |", "|---|---|---|---|"]
    for one in sorted(left, key=lambda one: str(one["mutant"])):
        why = reasons.get(one["mutant"], ["unjudged", ""])
        lines.append(f"| `{one['mutant']}` | {one['change']} | {why[0]} | {why[1]} |")
    return lines


def model_page(found: list[Entry], reasons: dict[str, list[str]]) -> str:
    """The page on the mutants of the model."""
    by_runs = [one for one in found if one["what"]]
    by_twins = [one for one in found if not one["what"] and one["twins"]]
    left = [one for one in found if not one["what"] and not one["twins"]]
    judged = Counter(verdict(one, reasons) for one in left)
    lines = [
        "# Mutants of the model",
        "",
        "Made by `python -m benchmarks.mutants_page model` from a run of "
        "`python -m benchmarks.model_mutants`.",
        "",
        f"{len(found)} one-statement mutants of the model's functions, drawn with a fixed seed. "
        "Each takes the actions of recorded runs in which the model and vLLM agree; where it "
        "enables other actions, calls otherwise or answers otherwise, lockstep and the pinned "
        "counts tell it. What passes is put before the tests of the model's parts against their "
        "naive twins.",
        "",
        "| | mutants |",
        "|---|---|",
        f"| told in a run | {len(by_runs)} |",
        f"| told by a twin only | {len(by_twins)} |",
        *(f"| passes, {name} | {n} |" for name, n in sorted(judged.items())),
        f"| median seconds to a catch in a run | {median(one['seconds'] for one in by_runs):.2f} |",
        *_survivors("## What passes", left, reasons),
    ]
    return "\n".join([*lines, ""])


def relations_page(found: list[Entry], reasons: dict[str, list[str]]) -> str:
    """The page on the mutants of Z3's relations."""
    caught = [one for one in found if one["verdict"] == "caught"]
    senseless = [one for one in caught if one["proof"].startswith("makes no sense")]
    wider = [one for one in found if one["verdict"] == "no transition less"]
    left = [one for one in found if one["verdict"] == "missed"]
    lines = [
        "# Mutants of the relations",
        "",
        "Made by `python -m benchmarks.mutants_page relations` from a run of "
        "`python -m benchmarks.relation_mutants`.",
        "",
        f"{len(found)} changes of the functions that make the operations of Z3's relations, drawn "
        "with a fixed seed. A proof catches one by failing, the tie by a transition of the model "
        "that the changed relation does not have.",
        "",
        "| | mutants |",
        "|---|---|",
        f"| a proof fails and the tie tells it | "
        f"{sum(bool(one['proof'] and one['tie']) for one in caught)} |",
        f"| a proof fails | {sum(not one['tie'] for one in caught) - len(senseless)} |",
        f"| the tie tells it | {sum(not one['proof'] for one in caught)} |",
        f"| makes no sense to Z3 or to Python | {len(senseless)} |",
        f"| has no transition less: what holds of it holds of the relation | {len(wider)} |",
        f"| passes | {len(left)} |",
        *(_survivors("## What passes", left, reasons) if left else []),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Write a page."""
    reasons = json.loads(REASONS.read_text(encoding="utf-8"))
    of = sys.argv[1] if len(sys.argv) == 2 else ""
    if of == "vllm":
        name, text = PAGE.name, page(entries(), reasons)
    elif of == "model":
        kept = MODEL_RECORD.read_text(encoding="utf-8").splitlines()
        name, text = "model-mutants.md", model_page([json.loads(one) for one in kept], reasons)
    elif of == "relations":
        kept_relations = json.loads(RELATIONS_RECORD.read_text(encoding="utf-8"))
        name, text = "relation-mutants.md", relations_page(kept_relations, reasons)
    else:
        raise SystemExit("one of: vllm, model, relations")
    (PAGE.parent / name).write_text(text, encoding="utf-8")
    print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
