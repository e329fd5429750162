"""Transitions of the explorer, interpreted, and held against the relations field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.proof.interpreted import Interpreted, Plain
from kvproof.proof.tie.samples import Disagreement, Tie
from kvproof.proof.tie.tie_blocks import BlocksTie
from kvproof.proof.tie.tie_budget import BudgetTie
from kvproof.proof.tie.tie_counters import CountersTie
from kvproof.proof.tie.tie_fence import FenceTie
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Chunk, explore
from kvproof.search.system import Words

Transition = tuple[Words, int]
"""A row and the code of an action that is enabled in it."""

SMALL = 5_500
"""A scope with at most this many transitions is compared whole, of a larger one as many."""

MAX_STATES = 30_000
"""Of a larger scope the first states are explored."""

TIED = (
    *SCOPES.values(),
    Scope(
        name="failing-sync-loads",
        about="synchronous loads that fail: the hashes of what they should have brought go",
        kv_role="kv_consumer",
        kv_load_failure_policy="fail",
        may_fail_loads=True,
        async_scheduling=True,
        requests=(
            RequestSpec((1, 2, 1, 2), max_tokens=2, external=External(3, is_async=False)),
            RequestSpec((1, 2, 1), max_tokens=2),
        ),
        num_blocks=6,
        max_num_batched_tokens=6,
        max_model_len=6,
    ),
)
"""The scopes that the relations are held against."""


@dataclass
class Comparison:
    """What was compared in one scope: transitions, and operations by relation and name.

    `effects` are the fields that an operation was seen to change, requests' numbers left out.
    """

    scope: str
    transitions: int = 0
    whole: bool = False
    differing: int = 0
    operations: dict[tuple[str, str], int] = field(default_factory=dict)
    effects: set[tuple[str, str, str]] = field(default_factory=set)
    samples: int = 0
    disagreements: list[Disagreement] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs, and no state breaks what is proved."""
        return not (self.disagreements or self.differing or self.broken)


def ties(compiled: Compiled) -> tuple[Tie, ...]:
    """One tie for each relation that speaks of the scope: the counters' excludes failing loads
    of a synchronous connector.
    """
    shared = (BlocksTie(compiled), FenceTie(compiled), BudgetTie(compiled))
    requests = compiled.scope.requests
    if compiled.scope.may_fail_loads and any(
        r.external is not None and not r.external.is_async for r in requests
    ):
        return shared
    return (*shared, CountersTie(compiled), CountersTie(compiled, depth=None))


def transitions_of(scope: Scope, most: int = SMALL) -> tuple[list[Transition], int]:
    """Every transition of a scope, or `most` evenly spread ones; and how many there are."""
    system = SchedulerSystem(scope)
    found: list[Transition] = []

    def keep(chunk: Chunk) -> None:
        found.extend(
            (chunk.rows[parent].copy(), action)
            for parent, action in zip(chunk.parent.tolist(), chunk.action.tolist(), strict=True)
        )

    explore(system, max_states=MAX_STATES, observe=keep).finished()
    total = len(found)
    if total > most:
        found = [found[i] for i in np.linspace(0, total - 1, most).astype(int)]
    return found, total


def compare(
    scope: Scope,
    transitions: Iterable[Transition],
    make: Callable[[Compiled], tuple[Tie, ...]] = ties,
) -> Comparison:
    """Interpret the transitions and hold every operation in them against its relation.

    `differing` counts transitions that the interpreted source and the compiled kernels take
    differently.
    """
    compiled = SchedulerSystem(scope).compiled
    watchers = make(compiled)
    model = Interpreted(compiled, watchers)
    done = Comparison(scope.name)
    report = model.report()
    compiled_report = compiled.new_report()
    for row, action in transitions:
        state = model.state(row)
        for tie in watchers:
            tie.begin(state, report, action)
        model.apply(state, report, action)
        for tie in watchers:
            tie.end(action)
        done.transitions += 1
        done.differing += not _same(compiled, compiled_report, row, action, state)
    for tie in watchers:
        name = tie.relation.name
        done.operations |= {(name, o): len(rows) for o, rows in tie.samples.rows.items()}
        done.effects |= {(name, *effect) for effect in tie.samples.effects()}
        done.samples += tie.samples.total
        done.disagreements += tie.samples.disagreements()
        done.broken += tie.samples.broken_clauses()
    return done


def _same(compiled: Compiled, report: object, row: Words, action: int, state: Plain) -> bool:
    """Whether the compiled kernels take the action to the same state."""
    after = compiled.read(row.copy())
    engine.apply(after, compiled.c, report, action)
    cells = state.cells(compiled.state)
    return bool(after.cells[: len(cells)].tolist() == cells)


def compare_scope(scope: Scope, most: int = SMALL) -> Comparison:
    """Compare a scope: all of its transitions if they are few."""
    found, total = transitions_of(scope, most)
    done = compare(scope, found)
    done.whole = done.transitions == total
    return done
