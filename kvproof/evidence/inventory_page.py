"""The page of what is compared with vLLM, field by field, made from the inventory."""

from __future__ import annotations

from collections import Counter

from kvproof.vllm.inventory import INVENTORY, figures

_KINDS = ("compared", "default", "constant", "excused")


def inventory_page() -> str:
    """docs/inventory.md: what becomes of each field that leaves the scheduler or lives in it."""
    lines = [
        "# Inventory\n",
        "Every field that leaves vLLM's scheduler and every attribute of its objects, and what "
        "becomes of it: *compared* with the model after each action (or with a worker that knows "
        "nothing but the steps that it was sent), held against the one value that text with full "
        "attention ever has (*default*), set when the object is built and seen to change in no "
        "run (*constant*), or *excused* for the reason given. `tests/test_inventory.py` reads the "
        "real classes and fails on a field without a line and on a line without a field.\n",
        "| class | compared | default | constant | excused |",
        "|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for of, numbers in figures().items():
        total += numbers
        lines.append(f"| `{of}` | {_row(numbers)} |")
    lines += [f"| all | {_row(total)} |", ""]
    for of, entries in INVENTORY.items():
        if not entries:
            continue
        lines += [f"## {of}\n", "| field | | how, or why not |", "|---|---|---|"]
        lines += [f"| `{name}` | {entry.how} | {entry.why} |" for name, entry in entries.items()]
        lines.append("")
    return "\n".join(lines)


def _row(numbers: Counter[str]) -> str:
    return " | ".join(str(numbers[kind]) for kind in _KINDS)
