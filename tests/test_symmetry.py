"""Renaming of blocks is held against one that knows only which fields name blocks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.checker.symmetry import rename_blocks
from kvproof.model.compiled import Compiled
from kvproof.native.record import Record
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Chunk, explore
from kvproof.trace.codes import enabled_codes
from kvproof.trace.trace import step

NAME_BLOCKS = (
    "free_queue", "block_table", "transfer_table", "deferred_blocks", "step_table", "worker_table",
)  # fmt: skip
OF_A_BLOCK = ("ref_cnt", "block_hash", "hash_rank", "kv")
SEARCHED = {
    name: SCOPES[name]
    for name in ("shared-prefix", "async-reset", "drafts", "consumer", "producer", "failing-loads")
}
# A rule of V2 is not missed on V1, but without it the workers' tables are followed.
SEARCHED["workers"] = SCOPES["reset-running"].with_rules_off("send_resumed_as_new")
MOST = 400


def renamed(state: Record, names: NDArray[np.int32]) -> Record:
    """The state with block b called names[b] everywhere."""
    out = state.copy()
    for field in NAME_BLOCKS:
        getattr(out, field)[...] = names[getattr(state, field)]
    for field in OF_A_BLOCK:
        getattr(out, field)[names] = getattr(state, field)
    return out


def canonical(compiled: Compiled, state: Record) -> tuple[Record, NDArray[np.int32]]:
    """The state as the search keeps it, and the names that it gives."""
    out, names = state.copy(), np.zeros(compiled.scope.num_blocks, np.int32)
    rename_blocks(state, out, compiled.c, names)
    return out, names


def some_states(name: str) -> tuple[Compiled, list[Record]]:
    """States of a scope that no renaming has touched, spread over its whole search."""
    system = SchedulerSystem(SEARCHED[name], rename=False)
    states: list[Record] = []

    def keep(chunk: Chunk) -> None:
        states.extend(system.compiled.read(row.copy()) for row in chunk.rows)

    assert explore(system, observe=keep, max_states=20_000).states
    return system.compiled, random.Random(0).sample(states, min(MOST, len(states)))


@pytest.fixture(scope="module", params=SEARCHED)
def spread(request: pytest.FixtureRequest) -> tuple[Compiled, list[Record]]:
    return some_states(request.param)


def test_every_field_that_names_blocks_is_renamed_and_no_other_changes(
    spread: tuple[Compiled, list[Record]],
) -> None:
    compiled, states = spread
    for state in states:
        found, names = canonical(compiled, state)
        assert sorted(names) == list(range(compiled.scope.num_blocks))
        assert names[0] == 0
        assert found.row.tolist() == renamed(state, names).row.tolist()


def test_states_that_differ_in_block_numbers_alone_become_one(
    spread: tuple[Compiled, list[Record]],
) -> None:
    compiled, states = spread
    draw = random.Random(1)
    for state in states:
        others = draw.sample(range(1, compiled.scope.num_blocks), compiled.scope.num_blocks - 1)
        other = renamed(state, np.array([0, *others], np.int32))
        found, _names = canonical(compiled, state)
        assert canonical(compiled, other)[0].row.tolist() == found.row.tolist()


def test_what_is_canonical_stays_as_it_is(spread: tuple[Compiled, list[Record]]) -> None:
    compiled, states = spread
    for state in states:
        found, _names = canonical(compiled, state)
        again, names = canonical(compiled, found)
        assert again.row.tolist() == found.row.tolist()
        assert names.tolist() == list(range(compiled.scope.num_blocks))


def test_a_renamed_state_goes_on_like_the_state(spread: tuple[Compiled, list[Record]]) -> None:
    compiled, states = spread
    for state in states[:60]:
        found, _names = canonical(compiled, state)
        # An answer that names a block names it by its place in a table, so codes stay.
        for code in enabled_codes(compiled, state).tolist():
            after, _report, broken = step(compiled, state, code)
            of_renamed, _report, broken_too = step(compiled, found, code)
            assert broken == broken_too
            ends = canonical(compiled, after)[0], canonical(compiled, of_renamed)[0]
            assert ends[0].row.tolist() == ends[1].row.tolist()


def test_a_field_that_is_forgotten_would_be_told(spread: tuple[Compiled, list[Record]]) -> None:
    compiled, states = spread
    followed = ("worker_table",) if compiled.c.worker_room else ()
    for forgotten in ("free_queue", "ref_cnt", *followed):
        told = 0
        for state in states:
            found, names = canonical(compiled, state)
            getattr(found, forgotten)[...] = getattr(state, forgotten)
            told += found.row.tolist() != renamed(state, names).row.tolist()
        assert told
