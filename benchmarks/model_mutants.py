"""Mutants of the model, by what holds it against vLLM: `python -m benchmarks.model_mutants`.

A mutant is one change of a function of model/, interpreted. It takes the actions of recorded runs
(random ones, walks of the named scopes, traces of the findings, counterexamples without their
rules), of which lockstep knows that the model and the real classes agree: the first step after
which it enables other actions, does something else to vLLM or says something else of it than the
model as it stands is a difference that lockstep would show. What passes is put before the tests of
the model's parts against their naive twins, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mutants import MOST_REQUESTS
from kvproof.bridge.lockstep import expect
from kvproof.bridge.observation import Past, passed
from kvproof.model import engine
from kvproof.model.bounds import max_actions
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.scope import Scope
from kvproof.native.record import Record
from kvproof.proof.interpreted import Interpreted, Plain, kernels
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.trace.codes import name_action
from kvproof.trace.trace import load, replay
from kvproof.vllm.edits import rewritten, source_of
from kvproof.vllm.mutations import changes, mutate
from kvproof.walks.runs import draw_run
from kvproof.walks.walk import Walker

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "mutants" / "model.jsonl"
PARTS = ("block_pool", "connector", "device", "queues")

SEED = 1
RUNS = 200
WALKS = 4
STEPS = 50
SECONDS = 300.0


@dataclass(frozen=True)
class Step:
    """A code that is taken where `enabled` are, and the cells of state and report after it."""

    code: int
    enabled: list[int]
    past: Past
    cells: list[int]
    reported: list[int]


@dataclass(frozen=True)
class Run:
    """The steps of one run from the start of its scope."""

    name: str
    compiled: Compiled
    steps: list[Step]


def _recorded(name: str, compiled: Compiled, codes: tuple[int, ...]) -> Run:
    state, past = compiled.initial(), Past()
    out = np.zeros(max_actions(compiled.scope), np.int32)
    steps = []
    for code in codes:
        count = engine.enabled_actions(state, compiled.c, out)
        before, report = state.copy(), compiled.new_report()
        action = name_action(compiled, before, code)
        engine.apply(state, compiled.c, report, code)
        cells = Plain(state).cells(compiled.state)
        reported = Plain(report).cells(report.layout)
        steps.append(Step(code, out[:count].tolist(), past, cells, reported))
        past = passed(compiled, before, state, action, report, past)
    return Run(name, compiled, steps)


def runs() -> Iterator[Run]:
    """The runs, those of the named scopes first."""
    walked: list[tuple[str, Scope, int]] = [
        (scope.name, scope, seed) for seed in range(WALKS) for scope in SCOPES.values()
    ]
    for i in range(RUNS):
        choose = RandomChooser(f"mutants-{i}")
        scope = draw_run(choose, None, f"random-{i}", MOST_REQUESTS)
        walked.append((scope.name, scope, choose.integer(0, (1 << 30) - 1)))
    for name, scope, seed in walked:
        compiled = compile_scope(scope)
        codes = Walker(compiled).walk(STEPS, seed, guided=True).codes
        yield _recorded(name, compiled, codes)
    kept = ROOT / "counterexamples"
    for path in [*sorted(kept.glob("*.json")), *sorted(kept.glob("findings/*.json"))]:
        trace = load(path)
        compiled = compile_scope(trace.scope)
        yield _recorded(trace.scope.name, compiled, tuple(m.code for m in replay(trace)))


def _record(like: Record, cells: list[int]) -> Record:
    record = like.copy()
    record.cells[: len(cells)] = cells
    return record


def difference(run: Run) -> str:
    """What the model as it is now does otherwise in a run, where vLLM or the search can tell."""
    compiled = run.compiled
    model = Interpreted(compiled)
    state, report = Plain(compiled.initial()), model.report()
    out = [0] * max_actions(compiled.scope)
    true = compiled.initial()
    for number, step in enumerate(run.steps):
        where = f"{run.name}, action {number + 1}"
        count = model.call("engine.enabled_actions", state, model.c, out)
        if out[:count] != step.enabled:
            return f"{where}: other actions are enabled"
        before = _record(true, state.cells(compiled.state))
        report.clear()
        model.apply(state, report, step.code)
        cells = state.cells(compiled.state)
        told = compiled.new_report()
        reported = report.cells(told.layout)
        if cells != step.cells or reported != step.reported:
            sides = []
            for start, after, said in (
                (true, step.cells, step.reported),
                (before, cells, reported),
            ):
                action = name_action(compiled, start, step.code)
                one = _record(true, after), _record(told, said)
                operation, expected = expect(compiled, start, one[0], action, one[1], (), step.past)
                answer = expected.result, expected.observation, expected.asserts
                sides.append((operation, answer))
            if sides[0][0] != sides[1][0]:
                return f"{where}: another call"
            if sides[0][1] != sides[1][1]:
                return f"{where}: another answer"
        true = _record(true, step.cells)
    return ""


def by_runs(every: list[Run]) -> dict[str, Any]:
    """The first run in which the model as it is now is told from the one that was recorded."""
    started = time.perf_counter()
    what = ""
    for run in every:
        try:
            what = difference(run)
        except Exception as error:
            what = f"{run.name}: {type(error).__name__}"
        if what:
            break
    return {"what": what, "seconds": round(time.perf_counter() - started, 3)}


def by_twins(name: str) -> str:
    """Which test of the model's parts against a naive twin fails with the mutant in."""
    files = [f"tests/test_{part}.py" for part in PARTS]
    if name.startswith("kv_cache"):
        files.append("tests/test_kv_cache.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p"]
    command += ["benchmarks.model_mutants", *files]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "KVPROOF_MUTANT": name}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return "does not return"
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return failed[0][:200] if failed else "" if done.returncode == 0 else done.stdout[-200:]


def pytest_configure() -> None:
    """Put in the mutant that the environment names: this module as a plugin of pytest."""
    name = os.environ["KVPROOF_MUTANT"]
    function, _, place = name.partition("#")
    number, _, k = place.partition(".")
    rewritten(kernels()[function], lambda tree: mutate(tree, int(number), int(k))).__enter__()


def listed() -> Iterator[tuple[str, str]]:
    """Every mutant and what it does."""
    for name, function in kernels().items():
        tree, _owner = source_of(function)
        for number, k, _line, what, _make in changes(tree):
            yield f"{name}#{number}.{k}", what


def judge(name: str, every: list[Run]) -> dict[str, Any]:
    """What tells one mutant."""
    function, _, place = name.partition("#")
    number, _, k = place.partition(".")
    with rewritten(kernels()[function], lambda tree: mutate(tree, int(number), int(k))):
        found = by_runs(every)
    found["twins"] = "" if found["what"] else by_twins(name)
    return found


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="mutants in all")
    chosen = parser.parse_args()
    started = time.perf_counter()
    every = list(runs())
    steps = sum(len(run.steps) for run in every)
    print(f"{len(every)} runs, {steps:,} actions, {time.perf_counter() - started:.0f} s")
    print(f"none in: {by_runs(every)}", flush=True)
    mutants = list(listed())
    random.Random(SEED).shuffle(mutants)
    print(f"{len(mutants):,} mutants", flush=True)
    done = set()
    if RECORD.exists():
        done = {json.loads(line)["mutant"] for line in RECORD.read_text("utf-8").splitlines()}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    for name, what in mutants[: chosen.count]:
        if name in done:
            continue
        entry = {"mutant": name, "change": what} | judge(name, every)
        with RECORD.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")
        print(*entry.values(), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
