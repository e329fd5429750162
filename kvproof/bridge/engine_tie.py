"""The driver's loop held against the real EngineCore: the same calls, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.model.compiled import compile_scope
from kvproof.model.engine import Kind
from kvproof.scopes.draw import RandomChooser
from kvproof.trace.trace import Trace, from_codes, replay
from kvproof.walks.runs import draw_run
from kvproof.walks.walk import Walker

MODULE = "kvproof.vllm.engine_core"
_BATCH = 20


@dataclass
class Tied:
    """What was compared: runs, the scheduler's calls by name, the runs that differ, with why."""

    runs: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    repeated_aborts: int = 0
    raised: int = 0
    differences: list[tuple[Trace, str]] = field(default_factory=list)


def tie_runs(
    client: Client,
    runs: int,
    *,
    steps: int = 60,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> Tied:
    """Lead the real loop through random runs of the model; Ctrl-C ends it with what is done.

    `client` runs MODULE. Runs end where the model's do; one in which vLLM raises is counted and
    not compared past it.
    """
    tied = Tied()
    batch: list[Trace] = []
    try:
        for i in range(runs):
            batch.append(_run(RandomChooser(f"{seed}-{i}"), f"tie-{seed}-{i}", steps))
            if len(batch) == _BATCH or i == runs - 1:
                _compare(client, batch, tied)
                batch = []
                if watch is not None:
                    watch(i + 1, runs)
    except KeyboardInterrupt:
        pass
    return tied


def _run(choose: RandomChooser, name: str, steps: int) -> Trace:
    scope = draw_run(choose, None, name)
    walked = Walker(compile_scope(scope)).walk(steps, choose.integer(0, (1 << 30) - 1), guided=True)
    return from_codes(scope, walked.codes)


def operations(trace: Trace) -> Iterator[list[Any]]:
    """The driver's operations of a run, up to where vLLM asserts.

    Every second reset or so is one of the connector too, of which the model has nothing to tell.
    """
    compiled = compile_scope(trace.scope)
    for moment in replay(trace):
        if moment.after.assertion:
            return
        operation = observation.operation(compiled, moment.before, moment.action, moment.report)
        if moment.action.kind == Kind.RESET_PREFIX_CACHE and moment.number % 2:
            operation.append(True)
        yield operation


def _compare(client: Client, traces: list[Trace], tied: Tied) -> None:
    batch = [
        ["tie", observation.scope_values(trace.scope), list(operations(trace))] for trace in traces
    ]
    for trace, answer in zip(traces, client.run(batch), strict=True):
        tied.runs += 1
        if "raised" in answer:
            tied.raised += 1
            continue
        why = difference(answer)
        tied.repeated_aborts += _one_by_one(answer["core"])[1]
        tied.calls.update(call[0] for call in answer["driver"])
        if why is not None:
            tied.differences.append((trace, why))


def difference(answer: dict[str, Any]) -> str | None:
    """Why the two loops differ in a run, None where they do not."""
    if answer["parted"] is not None:
        return str(answer["parted"])
    ours, theirs = _one_by_one(answer["driver"])[0], _one_by_one(answer["core"])[0]
    for k, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return f"call {k + 1}: the driver makes {one}, EngineCore {other}"
    if len(ours) != len(theirs):
        return f"the driver makes {len(ours)} calls, EngineCore {len(theirs)}"
    return None


def _one_by_one(calls: list[list[Any]]) -> tuple[list[list[Any]], int]:
    """The calls with one request to each finish, the first of each request; how many are left out.

    The engine joins aborts that came during a step, and finds each once more in its input queue.
    """
    finished: set[str] = set()
    kept = []
    repeated = 0
    for call in calls:
        if call[0] != "finish_requests":
            kept.append(call)
            continue
        for name in [call[1]] if isinstance(call[1], str) else call[1]:
            if name in finished:
                repeated += 1
            else:
                finished.add(name)
                kept.append([call[0], name, *call[2:]])
    return kept, repeated
