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


_MEASURED = """\
`checks/test_engine_tie.py` leads the real `EngineCoreProc`, with an executor that follows a script,
through random runs of the model, and compares the calls that it makes of the scheduler with those
of the driver, arguments and order included. Clients' pauses (`abort`, `wait` and `keep`, with and
without clearing caches) are compared on written runs. Measured on 1 December 2026:

```
python - <<'END'
from kvproof.bridge.client import Client
from kvproof.bridge.engine_tie import MODULE, tie_runs

with Client(module=MODULE) as engine:
    tied = tie_runs(engine, 5000)
print(tied.runs, tied.calls.total(), tied.raised, len(tied.differences))
END
```

5,000 runs with 191,105 calls: 0 differences; vLLM raises in none of them.
"""


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
    lines += ["## The loop against the real one\n", _MEASURED]
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
