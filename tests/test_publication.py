"""Publication is complete: blocks that stay unpublished are noticed in the step that fills them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.checker.check import check
from kvproof.model import block_pool, engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.rules import Rule
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.scopes.named import SCOPES
from kvproof.spec.masks import Id
from kvproof.spec.step_invariants import publication_complete
from kvproof.spec.verdicts import BROKEN, HOLDS
from kvproof.trace.codes import enabled_codes
from kvproof.trace.trace import step

WITH_OUTPUTS_THAT_FILL_BLOCKS = (
    "shared-prefix",
    "priorities",
    "chunks",
    "async",
    "consumer",
    "reset-running",
)


def steps(compiled: Compiled, runs: int) -> Iterator[tuple[Record, Record, Record, int]]:
    """Steps of random runs without aborts: the state before and after, the report, the kind."""
    for seed in range(runs):
        choose = RandomChooser(seed)
        state = compiled.initial()
        for _ in range(80):
            enabled = enabled_codes(compiled, state).tolist()
            codes = [code for code in enabled if engine.kind_of(code) != engine.Kind.ABORT]
            if not codes:
                break
            code = choose.pick(codes)
            before = state
            state, report, _broken = step(compiled, before, code)
            yield before, state, report, engine.kind_of(code)


def last_of_outputs(compiled: Compiled, held: Record, s: Record) -> Iterator[int]:
    """The published blocks that requests fill last, if an output fills them."""
    c = compiled.c
    for r in range(c.num_requests):
        most = min(int(c.prompt_len[r] + c.max_tokens[r]), int(c.max_model_len))
        place = (most - 1) // c.block_size - 1
        filled_by_output = (place + 1) * c.block_size > c.prompt_len[r]
        if filled_by_output and place < held.num_blocks[r]:
            b = int(held.block_table[r, place])
            if s.block_hash[b]:
                yield b


@pytest.mark.parametrize("name", WITH_OUTPUTS_THAT_FILL_BLOCKS)
def test_the_last_block_of_an_output_is_missed_if_it_stays_unpublished(name: str) -> None:
    compiled = compile_scope(SCOPES[name])
    verdicts = []
    for before, state, report, kind in steps(compiled, 60):
        for held in (before, state):
            for b in last_of_outputs(compiled, held, state):
                if before.block_hash[b]:
                    continue
                changed = state.copy()
                block_pool.remove_cached_block_hash(changed, compiled.c, b)
                asked = (before, changed, compiled.c, report, kind)
                verdicts.append(publication_complete(*asked))
    assert verdicts
    assert set(verdicts) == {BROKEN}


def test_under_async_scheduling_the_output_that_ends_a_request_publishes_its_last_block() -> None:
    compiled = compile_scope(SCOPES["async"])
    missed = 0
    for before, state, report, kind in steps(compiled, 60):
        if kind != engine.Kind.OUTPUT:
            continue
        for r in report.finished.nonzero()[0].tolist():
            for i in range(int(before.num_blocks[r])):
                b = int(before.block_table[r, i])
                if state.block_hash[b] and not before.block_hash[b]:
                    assert publication_complete(before, state, compiled.c, report, kind) == HOLDS
                    changed = state.copy()
                    block_pool.remove_cached_block_hash(changed, compiled.c, b)
                    asked = (before, changed, compiled.c, report, kind)
                    assert publication_complete(*asked) == BROKEN
                    missed += 1
    assert missed


def test_a_load_that_is_taken_in_and_not_yet_admitted_is_published() -> None:
    # R0 grows into the block that R1 needs beside the one that it loads.
    scope = Scope(
        name="taken-in-and-refused",
        kv_role="kv_consumer",
        requests=(
            RequestSpec(prompt=(1,), max_tokens=5),
            RequestSpec(prompt=(2, 1, 2), max_tokens=1, external=External(2)),
        ),
        num_blocks=4,
        max_num_batched_tokens=4,
        max_model_len=6,
    )
    compiled = compile_scope(scope)
    missed = 0
    for before, state, report, kind in steps(compiled, 60):
        for r in range(compiled.c.num_requests):
            if report.scheduled[r] or not (before.load_done[r] and not state.load_done[r]):
                continue
            for b in state.block_table[r, : state.num_computed[r] // compiled.c.block_size]:
                changed = state.copy()
                block_pool.remove_cached_block_hash(changed, compiled.c, b)
                asked = (before, changed, compiled.c, report, kind)
                missed += publication_complete(*asked) == BROKEN
    assert missed


@pytest.mark.parametrize("name", WITH_OUTPUTS_THAT_FILL_BLOCKS)
def test_a_scheduler_that_publishes_nothing_with_its_steps_falls(name: str) -> None:
    off = SCOPES[name].with_rules_off(Rule.publish_full_blocks.name)
    violation = check(off).result.finished().violation
    assert violation is not None
    assert violation.invariants == (Id.PublicationComplete.name,)
