"""Mutants of vLLM, by lockstep and by the invariants alone: `python -m benchmarks.mutants`.

One-statement mutants of vLLM's scheduler files, made in the driver's process
(kvproof/vllm/mutants.py), drawn with a fixed seed from those on lines that lockstep reaches. Each
goes through random lockstep runs and the small scopes, and through random runs of the real classes
with the invariants alone, until something differs or falls. The record, one JSON line a mutant,
stays on this machine (`build/mutants/`); a run goes on where the record ends.
benchmarks/mutants_page.py makes docs/mutants.md of it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.bridge import observation
from kvproof.bridge.client import Client, DriverError
from kvproof.bridge.differences import Expected, compare
from kvproof.bridge.follow import opener
from kvproof.bridge.lockstep import _tree, _Walk, expect
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.scope import Scope
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import explore
from kvproof.spec.findings import FINDINGS
from kvproof.spec.masks import Id
from kvproof.trace.codes import name_action
from kvproof.walks.runs import draw_run
from kvproof.walks.walk import Walker
from kvproof.walks.worlds import Tally, Violation

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "mutants"
RECORD = FOLDER / "record.jsonl"
REASONS = ROOT / "benchmarks" / "survivors.json"
PAGE = ROOT / "docs" / "mutants.md"

MOST_REQUESTS = 8
"""Of a drawn scope."""

SEED = 1
RUNS = 250
STEPS = 60
MOST_TRANSITIONS = 9000
BATCH = 300
TRACED = 2500
ALONE_RUNS = 300

Item = tuple[list[Any], Expected | None]


@dataclass(frozen=True)
class Way:
    """Operations for the driver with what the model expects of each."""

    name: str
    items: list[Item]


def random_ways() -> Iterator[Way]:
    """Guided random runs of the model over drawn scopes."""
    for i in range(RUNS):
        choose = RandomChooser(f"mutants-{i}")
        scope = draw_run(choose, None, f"random-{i}", MOST_REQUESTS)
        compiled = compile_scope(scope)
        walked = Walker(compiled).walk(STEPS, choose.integer(0, (1 << 30) - 1), guided=True)
        yield run_way(compiled, walked.codes)


def run_way(compiled: Compiled, run: Iterable[int]) -> Way:
    """One run of the model."""
    items: list[Item] = [(observation.new_engine(compiled.scope), None)]
    before, past = compiled.initial(), observation.Past()
    codes: tuple[int, ...] = ()
    for code in run:
        action = name_action(compiled, before, code)
        after, report = before.copy(), compiled.new_report()
        engine.apply(after, compiled.c, report, code)
        codes += (code,)
        operation, expected = expect(compiled, before, after, action, report, codes, past)
        items.append((operation, expected))
        before, past = after, expected.past
    return Way(compiled.scope.name, items)


def scope_ways() -> Iterator[Way]:
    """Every transition of the small named scopes and of the findings' scopes, small ones first."""
    chosen: list[Scope] = [*SCOPES.values(), *(finding.scope for finding in FINDINGS)]
    found = []
    for scope in chosen:
        system = SchedulerSystem(scope, ignore=frozenset(Id))
        result = explore(system, max_states=MOST_TRANSITIONS)
        if result.outcome == "holds" and result.transitions <= MOST_TRANSITIONS:
            found.append((result.transitions, scope, result))
    for _, scope, result in sorted(found, key=lambda one: one[0]):
        walk = _Walk(compile_scope(scope), _tree(result))
        yield Way(scope.name, list(walk.operations()))


def different(way: Way, client: Client, most: int | None = None) -> tuple[int, Any] | None:
    """The first answer that is not the expected one: its number, and what differs."""
    items = way.items[:most]
    for first in range(0, len(items), BATCH):
        part = items[first : first + BATCH]
        answers = client.run([operation for operation, _ in part])
        for k, ((_, expected), answer) in enumerate(zip(part, answers, strict=True)):
            if expected is None:
                if answer is not None:
                    return first + k, answer[0]
                continue
            fields = compare(expected, answer)
            if fields:
                return first + k, [[name, str(a)[:80], str(b)[:80]] for name, a, b in fields]
    return None


def by_lockstep(ways: list[Way], client: Client) -> dict[str, Any]:
    """Whether some way tells the mutant, and which."""
    started = time.perf_counter()
    for way in ways:
        found = different(way, client)
        if found is not None:
            what = found[1]
            text = json.dumps(what)
            how = "difference"
            if "does not return" in text:
                how = "does not return"
            return {
                "how": how,
                "way": way.name,
                "seconds": round(time.perf_counter() - started, 3),
                "what": text[:300],
            }
    return {"how": "survives", "seconds": round(time.perf_counter() - started, 3)}


def by_invariants(client: Client) -> dict[str, Any]:
    """Whether an invariant falls in random runs of the real classes alone."""
    started = time.perf_counter()
    open_world = opener("vllm", client)
    for i in range(ALONE_RUNS):
        choose = RandomChooser(f"mutants-{i}")
        scope = draw_run(choose, None, f"random-{i}", MOST_REQUESTS)
        try:
            open_world(scope, Tally()).burst(STEPS, choose.integer(0, (1 << 30) - 1), guided=False)
        except DriverError:
            raise
        except Violation as wrong:
            how = "invariant"
            if "DoesNotReturn" in str(wrong):
                how = "does not return"
            broken = list(wrong.trace.broken)
            seconds = round(time.perf_counter() - started, 3)
            return {"how": how, "run": i, "seconds": seconds, "broken": broken}
        except Exception as error:
            # What was observed makes no sense to the reader of it.
            seconds = round(time.perf_counter() - started, 3)
            return {"how": "driver error", "run": i, "seconds": seconds, "what": repr(error)[:200]}
    return {"how": "survives", "seconds": round(time.perf_counter() - started, 3)}


def reach(ways: list[Way]) -> set[tuple[str, int]]:
    """Lines of vLLM's files that the ways run through, as (file, line); kept on this machine."""
    path = FOLDER / "reach.json"
    if not path.exists():
        with Client(module="kvproof.vllm.mutants") as client:
            client.run([["reach"]])
            for way in ways:
                different(way, client, TRACED)
            lines = client.run([["reach"]])[0]
        path.write_text(json.dumps(lines), encoding="utf-8")
    return {(file, line) for file, line in json.loads(path.read_text(encoding="utf-8"))}


def run(count: int, part: int, parts: int) -> None:
    """Take the drawn mutants that the record has not, each `parts`-th of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    ways = [*random_ways(), *scope_ways()]
    total = sum(len(way.items) for way in ways)
    print(f"{len(ways)} ways, {total:,} operations, {time.perf_counter() - started:.0f} s")
    lines = reach(ways)
    client = Client(module="kvproof.vllm.mutants")
    every = client.run([["mutants"]])[0]
    reached = sorted(one for one in every if (one[1], one[2]) in lines)
    print(f"{len(every):,} mutants, {len(reached):,} on the {len(lines):,} lines reached")
    random.Random(SEED).shuffle(reached)
    done = set()
    if RECORD.exists():
        for line in RECORD.read_text(encoding="utf-8").splitlines():
            done.add(json.loads(line)["mutant"])
    if not done:
        client.run([["mutant", None]])
        print("none in:", by_lockstep(ways, client), by_invariants(client))
    for k, (name, file, line, what, names) in enumerate(reached[:count]):
        if k % parts != part or name in done:
            continue
        entry: dict[str, Any] = {"mutant": name, "change": what, "names": names}
        entry["file"], entry["line"] = file, line
        for column in ("lockstep", "alone"):
            try:
                client.run([["mutant", name]])
                entry[column] = (
                    by_lockstep(ways, client) if column == "lockstep" else by_invariants(client)
                )
            except DriverError as error:
                entry[column] = {"how": "driver error", "seconds": 0.0, "what": str(error)[-300:]}
                client = Client(module="kvproof.vllm.mutants")
        with RECORD.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")
        print(k, name, what, entry["lockstep"]["how"], entry["alone"]["how"], flush=True)
    client.close()


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="mutants in all")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    chosen = parser.parse_args()
    run(chosen.count, chosen.part, chosen.parts)


if __name__ == "__main__":
    main()
