"""The ghost device against a naive twin: a dictionary from slots to the prefixes they hold KV of.

The states are made up: a step reads and writes whatever table it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from small_model import SmallModel, small_scope

from kvproof.model import device
from kvproof.model.scope import Scope
from kvproof.model.state import Load
from kvproof.scopes.named import SCOPES

Slot = tuple[int, int]
Kv = dict[Slot, tuple[int, ...]]

SCOPE = small_scope(
    async_scheduling=True,
    pipeline_parallel_size=2,
    v2_model_runner=True,
    num_speculative_tokens=2,
    spec_method="draft_model",
)


class Step:
    """A step in flight as plain values, by request."""

    def __init__(self, model: SmallModel, d: int) -> None:
        s, c = model.s, model.c
        self.requests = [s.step_order[d, k] - 1 for k in range(s.step_len[d])]
        self.tables = [s.step_table.row(d, r) for r in range(c.num_requests)]
        self.start, self.tokens, self.drafts, self.known, self.stale, self.samples = (
            field.row(d)
            for field in (
                s.step_start,
                s.step_tokens,
                s.step_drafts,
                s.step_known,
                s.step_stale,
                s.step_samples,
            )
        )
        self.load_start = s.step_load_start.row(d)
        self.load_tokens = s.step_load_tokens.row(d)
        self.size = c.block_size
        self.line = model.compiled.tokens

    def slot(self, r: int, position: int) -> Slot | None:
        """Where the step has the KV of a position."""
        places = self.tables[r]
        if not 0 <= position < len(places) * self.size:
            return None
        block = places[position // self.size]
        return (block, position % self.size) if block else None

    def run(
        self, kv: Kv, accepted: list[int], fails: list[int], behind: list[int]
    ) -> tuple[Kv, set[int]]:
        """The KV after the step, and the requests that misread: the fewest that explain it."""
        misread: set[int] = set()
        while True:
            after = self._written(kv, accepted, fails, behind, misread)
            more = {r for r in self.requests if self._misreads(after, behind, r)} - misread
            if not more:
                return after, misread
            misread |= more

    def _written(
        self,
        kv: Kv,
        accepted: list[int],
        fails: list[int],
        behind: list[int],
        misread: set[int],
    ) -> Kv:
        after = dict(kv)
        for r in self.requests:
            for position in range(self.load_start[r], self.load_start[r] + self.load_tokens[r]):
                lost = fails[r] == position // self.size + 1
                self._put(after, r, position, not lost)
        for garbage in (False, True):
            for r in self.requests:
                certain = self.tokens[r] - self.drafts[r]
                if garbage and r not in misread:
                    continue
                for j in range(self.tokens[r]):
                    position = self.start[r] - behind[r] + j
                    sound = position < self.known[r] if j < certain else j < certain + accepted[r]
                    self._put(after, r, position, sound and not garbage)
        return after

    def _put(self, kv: Kv, r: int, position: int, sound: bool) -> None:
        slot = self.slot(r, position)
        if slot is not None:
            kv.pop(slot, None)
            if sound:
                kv[slot] = self.line[r][: position + 1]

    def _misreads(self, kv: Kv, behind: list[int], r: int) -> bool:
        start = self.start[r] - behind[r]
        read = [self.slot(r, position) for position in range(start)]
        wanted = [self.line[r][: position + 1] for position in range(start)]
        found = [slot and kv.get(slot) for slot in read]
        return found != wanted or start + self.tokens[r] - self.drafts[r] > self.known[r]


def kv_of(model: SmallModel) -> Kv:
    prefixes, kv = model.compiled.prefixes, model.s.kv
    return {
        (b, i): prefixes[kv[b, i]][1]
        for b in range(model.c.num_blocks)
        for i in range(model.c.block_size)
        if kv[b, i]
    }


def make_up(model: SmallModel, random: Random) -> None:
    """Steps in flight and KV; most of a request's KV stands where its tables say."""
    model.fresh()
    s, c = model.s, model.c
    tables = [random.sample(range(1, c.num_blocks), c.table_len) for _ in range(3)]
    if random.random() < 0.5:
        tables[1][:2] = tables[0][:2]
    for r in random.sample(range(3), 3):
        for position in range(random.randrange(9)):
            s.kv[tables[r][position // 2], position % 2] = c.prefix[r, position + 1]
    if random.random() < 0.3:
        s.kv[random.randrange(1, c.num_blocks), random.randrange(2)] = 0
    s.num_steps = random.randint(1, c.depth)
    preempted = [random.choice([0, 0, 1, 2, 3]) for _ in range(3)]  # after so many steps
    for d in range(s.num_steps):
        requests = random.sample(range(3), random.randint(1, 3))
        s.step_len[d] = len(requests)
        for k, r in enumerate(requests):
            s.step_order[d, k] = r + 1
            s.step_tokens[d, r] = random.randint(1, 3)
            s.step_drafts[d, r] = random.randrange(s.step_tokens[d, r])
            s.step_start[d, r] = random.randrange(6)
            s.step_known[d, r] = s.step_start[d, r] + random.randrange(4)
            s.step_samples[d, r] = random.random() < 0.7
            s.step_stale[d, r] = d < preempted[r]
            if random.random() < 0.3:
                s.step_load_start[d, r] = random.randrange(4)
                s.step_load_tokens[d, r] = random.randint(1, 4)
            for i in range(c.table_len):
                s.step_table[d, r, i] = tables[r][i] if random.random() < 0.95 else 0
    for r in range(3):
        model.e.accepted[r] = random.randint(0, s.step_drafts[0, r])
        model.e.load_fails[r] = random.choice([0, 1, 2])


def made_up(count: int = 400) -> Iterator[SmallModel]:
    model = SmallModel(SCOPE)
    for seed in range(count):
        make_up(model, Random(seed))
        yield model


def test_a_step_writes_what_it_knows_where_its_table_says_and_reads_its_own_prefix() -> None:
    misreads = []
    for model in made_up():
        s, e = model.s, model.e
        step = Step(model, 0)
        wanted, misread = step.run(kv_of(model), e.accepted, e.load_fails, [0, 0, 0])
        model.call("device.run_step", s.kv, 0)
        assert kv_of(model) == wanted
        assert {r for r in step.requests if e.misread[r]} == misread
        misreads.append(len(misread))
    assert {0, 1, 2, 3} == set(misreads)


def test_rejected_drafts_move_later_steps_back_and_accepted_ones_are_known_to_them() -> None:
    moved = 0
    for model in made_up():
        s, e = model.s, model.e
        steps = [Step(model, d) for d in range(s.num_steps)]
        before = kv_of(model)
        model.call("device.execute")
        first = steps[0]
        assert kv_of(model) == first.run(before, e.accepted, e.load_fails, [0, 0, 0])[0]
        for r in first.requests:
            sampled_at = first.start[r] + first.tokens[r] - first.drafts[r]
            assert e.position[r] == sampled_at
        for d, step in enumerate(steps[1:], 1):
            for r in range(3):
                start, known = step.start[r], step.known[r]
                follows = r in first.requests and r in step.requests
                if follows and first.samples[r] and first.stale[r] == step.stale[r]:
                    moved += 1
                    start -= first.drafts[r] - e.accepted[r]
                    known = max(known, e.position[r] + e.accepted[r] + 1)
                assert (s.step_start[d, r], s.step_known[d, r]) == (start, known)
    assert moved


def test_the_steps_in_flight_run_on_a_copy_with_every_draft_rejected() -> None:
    moved = 0
    for model in made_up():
        s, none = model.s, [0, 0, 0]
        steps = [Step(model, d) for d in range(s.num_steps)]
        kv = kv_of(model)
        for d, step in enumerate(steps):
            behind = [
                sum(
                    before.drafts[r]
                    for before in steps[:d]
                    if r in before.requests and before.samples[r] and before.stale[r] == stale
                )
                for r, stale in enumerate(step.stale)
            ]
            moved += any(behind)
            kv, _ = step.run(kv, none, none, behind)
        cells = model.cells()
        copy = model.model.state(model.compiled.state.new().row).kv
        copy.cells[:] = s.kv.cells
        model.call("device.run_in_flight", copy)
        assert model.cells() == cells
        s.kv.cells[:] = copy.cells
        assert kv_of(model) == kv
    assert moved


def cells_of(field: Any) -> list[int]:
    cells: list[int] = getattr(field, "cells", field)
    return cells


def test_the_oldest_step_is_forgotten_and_the_others_move_up() -> None:
    for model in made_up(100):
        s = model.s
        fields = [name for name in vars(s) if name.startswith("step_")]
        cells = {
            name: list(getattr(getattr(s, name), "cells", getattr(s, name))) for name in fields
        }
        others = model.cells()
        steps = s.num_steps
        model.call("device.pop_step")
        assert s.num_steps == steps - 1
        for name, before in cells.items():
            field = getattr(s, name)
            one = len(before) // model.c.depth
            moved = before[one : one * steps]
            assert cells_of(field) == moved + [0] * (len(before) - len(moved))
            cells_of(field)[:] = before
        s.num_steps = steps
        assert model.cells() == others


@pytest.mark.parametrize("bad", [-1, 0, 1, 2])
def test_a_load_writes_its_positions_but_those_of_the_block_that_failed(bad: int) -> None:
    model = SmallModel(SCOPE)
    s = model.s
    for start in range(6):
        for tokens in range(1, 8 - start):
            model.fresh()
            s = model.s
            for i, block in enumerate((3, 1, 0, 2)):
                s.transfer_table[1, i] = block
            s.kv.cells[:] = [1] * len(s.kv.cells)
            s.load[1], s.load_start[1], s.load_tokens[1] = Load.PENDING, start, tokens
            wanted = kv_of(model)
            for position in range(start, start + tokens):
                block = (3, 1, 0, 2)[position // 2]
                if block:
                    wanted.pop((block, position % 2))
                    if position // 2 != bad:
                        wanted[block, position % 2] = model.compiled.tokens[1][: position + 1]
            model.call("device.transfer_lands", 1, bad)
            assert kv_of(model) == wanted
            assert s.load[1] == (Load.LANDED if bad < 0 else Load.FAILED + bad)


FOLLOWED = {
    "shared": SCOPES["shared-prefix"],
    "asynchronous": SCOPES["async-drafts"],
    "loads": SCOPES["two-loads"],
    "misreading": SCOPES["two-loads"].with_rules_off("wait_for_remote_load"),
}


def followed(scope: Scope, most: int) -> tuple[int, int, set[tuple[int, int]]]:
    """Runs two devices side by side, of which one erases: over all actions, to `most` states.

    Returns the states in which their KV differs, those in which anything else does, and the
    verdicts met: requests that misread or were given a token out of place.
    """
    erasing = SmallModel(scope)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "forget_unreadable", lambda s, c: None)
        keeping = SmallModel(scope)
    models = (erasing, keeping)
    kv = erasing.compiled.state.places["kv"][:2]
    todo = [(erasing.cells(), keeping.cells())]
    seen, erased, differing, verdicts = {str(todo[0])}, 0, 0, set()
    while todo and len(seen) < most:
        pair = todo.pop()
        restore(erasing, pair[0])
        out = [0] * 4000
        for action in out[: erasing.call("engine.enabled_actions", out)]:
            for model, cells in zip(models, pair, strict=True):
                restore(model, cells)
                model.call("engine.apply", action)
            after = erasing.cells(), keeping.cells()
            erased += after[0][slice(*kv)] != after[1][slice(*kv)]
            differing += any(
                cells[: kv[0]] + cells[kv[1] :] != after[0][: kv[0]] + after[0][kv[1] :]
                for cells in after
            )
            verdicts.add((erasing.s.misread, erasing.s.wrong_output))
            if str(after) not in seen:
                seen.add(str(after))
                todo.append(after)
    return erased, differing, verdicts


def restore(model: SmallModel, cells: list[int]) -> None:
    for name, (start, end, shape) in model.compiled.state.places.items():
        if shape:
            cells_of(getattr(model.s, name))[:] = cells[start:end]
        else:
            setattr(model.s, name, cells[start])


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_erased_is_never_read(name: str) -> None:
    erased, differing, verdicts = followed(FOLLOWED[name], 400)
    assert erased
    assert differing == 0
    assert any(misread for misread, _ in verdicts) == (name == "misreading")


def erase_all(s: Any, c: Any) -> None:
    s.kv.cells[:] = [0] * len(s.kv.cells)


def test_erasing_what_is_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "forget_unreadable", erase_all)
    assert followed(FOLLOWED["shared"], 300)[1]
