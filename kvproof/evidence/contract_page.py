"""The page of what is taken for granted of the scheduler's surroundings."""

from __future__ import annotations

from kvproof.spec.contract import CONTRACT, Promise

_TITLES = {
    "engine": "The engine's loop",
    "client": "Clients",
    "worker": "Workers",
    "drafter": "The drafter",
    "connector": "The connector",
}


def contract_page() -> str:
    """docs/environment.md: every promise with its source in vLLM and the tests that hold it."""
    lines = [
        "# Environment\n",
        "The model explores everything that clients, workers and connectors may do, within these "
        "promises. They are given by who they are listed under: where one is broken, what falls is "
        "not the scheduler's fault. Each has its source in vLLM 0.31.0, and the tests that hold "
        "the model, its traces and the driver to it. A trace with an action that breaks one is "
        "refused with the action's number and the promise's name; so is an output that is given "
        "to the real classes.\n",
    ]
    for by, title in _TITLES.items():
        lines.append(f"## {title}\n")
        lines += [_promise(promise) for promise in CONTRACT if promise.by == by]
    return "\n".join(lines)


def _promise(promise: Promise) -> str:
    sources = ", ".join(f"`{source}`" for source in promise.sources)
    tests = ", ".join(f"`{test}`" for test in promise.tests)
    narrower = f" The model is narrower: {promise.narrower}" if promise.narrower else ""
    return (
        f"- **{promise.name}.** {promise.statement}{narrower}\n"
        f"  Source: {sources}.\n"
        f"  Held by: {tests}.\n"
    )
