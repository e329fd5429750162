"""The KV cache manager against a naive twin, call by call, and the twin against the real one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kv_cache_twin import CacheTwin, Call, make, next_call
from pool_twin import pool_differs
from small_model import SmallModel, small_scope

from kvproof.bridge import environment
from kvproof.bridge.observation import scope_values
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.model.state import Assertion, Branch, Status

ROOT = Path(__file__).parent.parent

SCOPES = {
    "plain": small_scope(),
    "watermark": small_scope(watermark=0.34, num_blocks=7),
    "drafting head": small_scope(num_speculative_tokens=2, spec_method="eagle"),
    "no prefix caching": small_scope(prefix_caching=False),
}

RULES = {
    "check_capacity_before_pinning": "plain",
    "count_evictable_hits": "plain",
    "pin_hits_before_allocating": "plain",
    "recompute_last_token": "plain",
    "publish_committed_tokens_only": "plain",
    "reserve_full_sequence": "plain",
    "cap_slots_at_model_length": "plain",
    "publish_loads_when_done": "plain",
    "drop_hit_before_drafting_head": "drafting head",
}


OPTIONS = ("lookahead", "external", "delay", "whole", "reserved", "others")
"""Arguments of allocate_slots in order, behind the new tokens and the hits."""


class Walk:
    """Random calls of the model and the twin."""

    def __init__(self, model: SmallModel, seed: int) -> None:
        model.fresh()
        self.model = model
        self.random = Random(seed)
        self.twin = CacheTwin(model.compiled)
        model.s.num_tokens[:] = self.twin.num_tokens

    def first_difference(self, steps: int) -> str | None:
        """The first call after which the two differ or answer differently."""
        for _ in range(steps):
            call = next_call(self.twin, self.random)
            wanted, answer = make(self.twin, call), self.answer(call)
            if answer != wanted:
                return f"{call}: {answer}, not {wanted}"
            self.model.s.num_computed[:] = self.twin.computed
            if self.differs():
                return str(call)
        return None

    def differs(self) -> bool:
        s, prefixes = self.model.s, self.model.compiled.prefixes
        if s.assertion or pool_differs(s, self.twin.pool, lambda code: prefixes[code][1]):
            return True
        return any(
            s.block_table.row(r)[: s.num_blocks[r]] != table
            or any(s.block_table.row(r)[len(table) :])
            or s.num_published[r] != self.twin.published[r]
            for r, table in enumerate(self.twin.tables)
        )

    def answer(self, call: Call) -> tuple[bool, list[int]]:
        """Whether it is granted and the hits; a refusal that left a trace has none such."""
        r, arguments, s = call.r, call.arguments, self.model.s
        if call.name == "free":
            self.model.call("kv_cache.free", r)
            return True, []
        if call.name == "publish":
            self.model.call("kv_cache.cache_blocks", r, arguments["tokens"])
            return True, []
        hits: list[int] = []
        s.status[r] = arguments.get("status", Status.RUNNING)
        s.num_tokens[r] = self.twin.num_tokens[r]
        if call.name == "admit":
            num_hits = self.model.call("kv_cache.get_computed_blocks", r)
            hits = self.model.e.hits[:num_hits]
        order = [arguments["new"], len(hits), *(arguments.get(name, 0) for name in OPTIONS)]
        before = self.model.cells()
        granted = bool(self.model.call("kv_cache.allocate_slots", r, *order))
        if not granted and self.model.cells() != before:
            return False, [-1]
        return granted, hits


def walks(model: SmallModel, count: int = 150) -> Iterator[str | None]:
    return (Walk(model, seed).first_difference(40) for seed in range(count))


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_slots_are_given_refused_published_and_freed_as_plain_tables_are(scope: Scope) -> None:
    assert [found for found in walks(SmallModel(scope)) if found] == []


@pytest.mark.parametrize("rule", RULES)
def test_the_twin_tells_a_manager_without_a_rule(rule: str) -> None:
    assert any(walks(SmallModel(SCOPES[RULES[rule]], off=(rule,))))


def test_the_walks_reach_every_refusal_and_every_branch_of_the_pool() -> None:
    reached = set()
    for name in ("plain", "watermark"):
        model = SmallModel(SCOPES[name])
        for _ in walks(model):
            reached |= {branch for branch in Branch if model.e.branches[branch]}
    assert reached == {
        Branch.waiting_full_sequence_refused,
        Branch.waiting_watermark_refused,
        Branch.waiting_reservation_refused,
        Branch.prefix_hit_free_block,
        Branch.duplicate_published,
        Branch.evicted_published,
        Branch.freed_shared,
    }


def test_a_request_that_holds_blocks_keeps_them_when_it_loads_again() -> None:
    model = SmallModel(SCOPES["plain"])
    s = model.s
    s.num_tokens[0] = 5
    order = (0, 0, 0, 4, True, False, 0, True)
    for _ in range(2):
        assert model.call("kv_cache.allocate_slots", 0, *order)
        assert (s.num_blocks[0], s.block_table.row(0)) == (2, [1, 2, 0, 0])


@pytest.mark.parametrize(
    ("free", "reserved", "reason"),
    [
        (3, 0, Branch.waiting_watermark_refused),
        (4, 2, Branch.waiting_reservation_refused),
        (2, 0, None),
    ],
)
def test_a_refusal_is_counted_by_its_reason(
    free: int, reserved: int, reason: Branch | None
) -> None:
    model = SmallModel(SCOPES["watermark"])
    s = model.s
    s.num_free, s.num_tokens[0], s.status[0] = free, 5, Status.WAITING
    assert not model.call("kv_cache.allocate_slots", 0, 5, 0, 0, 0, False, False, reserved, True)
    counted = [branch for branch in Branch if model.e.branches[branch]]
    assert counted == ([] if reason is None else [reason])


def test_nobody_may_ask_for_no_slots() -> None:
    model = SmallModel(SCOPES["plain"])
    order = (0, 0, 1, 0, False, False, 0, True)
    assert not model.call("kv_cache.allocate_slots", 0, *order)
    assert model.s.assertion == Assertion.NO_SLOTS_ASKED


def test_a_request_whose_blocks_are_published_adopts_no_hit() -> None:
    model = SmallModel(SCOPES["plain"])
    model.s.num_published[0] = model.s.num_blocks[0] = 1
    assert model.call("kv_cache.get_num_blocks_to_allocate", 0, 4, 0) == 1
    assert model.s.assertion == Assertion.NONE
    model.call("kv_cache.get_num_blocks_to_allocate", 0, 4, 1)
    assert model.s.assertion == Assertion.HIT_FOR_RUNNING_REQUEST


def test_a_block_of_tokens_that_are_not_known_has_no_hash() -> None:
    model = SmallModel(SCOPES["plain"])
    model.s.num_tokens[0] = 5
    model.s.num_blocks[0] = 3
    model.s.block_table[0, 0], model.s.block_table[0, 1], model.s.block_table[0, 2] = 1, 2, 3
    model.call("kv_cache.cache_blocks", 0, 5)
    assert (model.s.num_published[0], model.s.assertion) == (2, Assertion.NONE)
    model.call("kv_cache.cache_blocks", 0, 6)
    assert (model.s.num_published[0], model.s.assertion) == (2, Assertion.HASH_OF_UNKNOWN_TOKENS)


def walk_of_the_twin(scope: Scope, seed: int) -> tuple[list[Any], list[Any]]:
    """Random calls, and after each what the twin has answered and holds."""
    random, twin = Random(seed), CacheTwin(compile_scope(scope))
    calls, answers = [], []
    for _ in range(40):
        call = next_call(twin, random)
        arguments = dict(call.arguments)
        if "status" in arguments:
            arguments["status"] = Status(arguments["status"]).name
        calls.append([call.name, call.r, arguments])
        granted, hits = make(twin, call)
        cached = sorted(["", *code] for code, found in twin.pool.published.items() if found)
        answers.append(
            [
                granted,
                hits,
                list(twin.pool.free),
                [0, *twin.pool.references.values()],
                [[prefix, list(twin.pool.published[tuple(prefix[1:])])] for prefix in cached],
                [list(table) for table in twin.tables],
                list(twin.published),
            ]
        )
    return calls, answers


@pytest.mark.skipif(environment.find() is None, reason="the real vLLM is not here: `make vllm`")
def test_the_real_manager_does_what_the_twin_does_and_another_one_does_not() -> None:
    real = [*SCOPES.values(), small_scope(num_blocks=7)]
    twins = [*SCOPES.values(), SCOPES["watermark"]]
    walks = [[walk_of_the_twin(scope, seed) for seed in range(25)] for scope in twins]
    batches = [
        [scope_values(scope), compile_scope(scope).tokens, [calls for calls, _ in made]]
        for scope, made in zip(real, walks, strict=True)
    ]
    done = subprocess.run(
        [str(environment.find()), "tests/kv_cache_real.py"],
        input=json.dumps(batches),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    agreed = [
        [answer for _calls, answer in made] == seen
        for made, seen in zip(walks, answers, strict=True)
    ]
    assert agreed == [True] * len(SCOPES) + [False]
