"""The invariants by number, and all of them asked at once of a state and of a step.

Made by `kvproof docs` from the table in spec/invariants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kvproof.model import engine
from kvproof.native.jit import kernel
from kvproof.native.record import Record
from kvproof.spec import efficiency_steps, state_invariants, step_invariants
from kvproof.spec.verdicts import BROKEN, VACUOUS, WORKSPACE


class Id(IntEnum):
    """The invariants by name; the value is the invariant's bit in a mask of broken ones."""

    BlockConservation = 0
    PublishedSound = 1
    ReadsCorrect = 2
    NoReuseInFlight = 3
    CountersConsistent = 4
    SlotsRespected = 5
    QueueStatusAgree = 6
    OutputExact = 7
    FreedExactlyOnce = 8
    Isolation = 9
    EvictionOrder = 10
    NoAssertion = 11
    BudgetRespected = 12
    ScheduleSet = 13
    VictimFreeable = 14
    VictimIsLowest = 15
    PolicyOrder = 16
    WrittenSlotsOwned = 17
    HitMaximal = 18
    LeastRecentlyFreed = 19
    ResetSound = 20
    NoWastedStep = 21
    NoStall = 22
    HandOver = 23
    AdmissionFits = 24
    WorkerAgrees = 25
    PublicationComplete = 26


class Efficiency(IntEnum):
    """The efficiency properties by name; the value is the property's bit in a mask."""

    NobodyPassedOver = 0
    NoEmptyStep = 1
    HoldersWithinCap = 2
    IdleIsStill = 3
    EndPublished = 4


def new_workspace(sizes: Mapping[str, int]) -> Record:
    """A workspace for states with these sizes, in which nothing has been put to the test."""
    return WORKSPACE.layout({**sizes, "I": len(Id)}).new()


@kernel
def _note(w, which, verdict):
    """Count the test and give the invariant's bit if it is broken."""
    if verdict != VACUOUS:
        w.tested[which] += 1
    return (1 << which) if verdict == BROKEN else 0


@kernel
def check_state(s, c, w):
    """Mask of the state invariants that the state breaks; bit i is Id(i)."""
    broken = 0
    broken |= _note(w, Id.BlockConservation, state_invariants.block_conservation(s, c, w))
    broken |= _note(w, Id.PublishedSound, state_invariants.published_sound(s, c, w))
    broken |= _note(w, Id.ReadsCorrect, state_invariants.reads_correct(s, c, w))
    broken |= _note(w, Id.NoReuseInFlight, state_invariants.no_reuse_in_flight(s, c, w))
    broken |= _note(w, Id.CountersConsistent, state_invariants.counters_consistent(s, c, w))
    broken |= _note(w, Id.SlotsRespected, state_invariants.slots_respected(s, c, w))
    broken |= _note(w, Id.QueueStatusAgree, state_invariants.queue_status_agree(s, c, w))
    broken |= _note(w, Id.OutputExact, state_invariants.output_exact(s, c, w))
    broken |= _note(w, Id.FreedExactlyOnce, state_invariants.freed_exactly_once(s, c, w))
    broken |= _note(w, Id.Isolation, state_invariants.isolation(s, c, w))
    broken |= _note(w, Id.EvictionOrder, state_invariants.eviction_order(s, c, w))
    broken |= _note(w, Id.NoAssertion, state_invariants.no_assertion(s, c, w))
    return broken


@kernel
def check_step(before, s, c, e, w, action):
    """Mask of the step invariants that an action breaks; bit i is Id(i)."""
    kind = engine.kind_of(action)
    broken = 0
    broken |= _note(w, Id.BudgetRespected, step_invariants.budget_respected(before, s, c, e, kind))
    broken |= _note(w, Id.ScheduleSet, step_invariants.schedule_set(before, s, c, e, kind))
    broken |= _note(w, Id.VictimFreeable, step_invariants.victim_freeable(before, s, c, e, kind))
    broken |= _note(w, Id.VictimIsLowest, step_invariants.victim_is_lowest(before, s, c, e, kind))
    broken |= _note(w, Id.PolicyOrder, step_invariants.policy_order(before, s, c, e, kind))
    broken |= _note(
        w, Id.WrittenSlotsOwned, step_invariants.written_slots_owned(before, s, c, e, kind)
    )
    broken |= _note(w, Id.HitMaximal, step_invariants.hit_maximal(before, s, c, e, kind))
    broken |= _note(
        w, Id.LeastRecentlyFreed, step_invariants.least_recently_freed(before, s, c, e, kind)
    )
    broken |= _note(w, Id.ResetSound, step_invariants.reset_sound(before, s, c, e, kind))
    broken |= _note(w, Id.NoWastedStep, step_invariants.no_wasted_step(before, s, c, e, kind))
    broken |= _note(w, Id.NoStall, step_invariants.no_stall(before, s, c, e, kind))
    broken |= _note(w, Id.HandOver, step_invariants.hand_over(before, s, c, e, kind))
    broken |= _note(w, Id.AdmissionFits, step_invariants.admission_fits(before, s, c, e, kind))
    broken |= _note(w, Id.WorkerAgrees, step_invariants.worker_agrees(before, s, c, e, kind))
    broken |= _note(
        w, Id.PublicationComplete, step_invariants.publication_complete(before, s, c, e, kind)
    )
    return broken


@kernel
def _count(tested, which, verdict):
    """Count the test and give the property's bit if the step misses it."""
    if verdict != VACUOUS:
        tested[which] += 1
    return (1 << which) if verdict == BROKEN else 0


@kernel
def check_efficiency(before, s, c, e, action, tested):
    """Mask of the efficiency properties that an action misses; bit i is Efficiency(i)."""
    kind = engine.kind_of(action)
    missed = 0
    missed |= _count(
        tested,
        Efficiency.NobodyPassedOver,
        efficiency_steps.nobody_passed_over(before, s, c, e, kind),
    )
    missed |= _count(
        tested, Efficiency.NoEmptyStep, efficiency_steps.no_empty_step(before, s, c, e, kind)
    )
    missed |= _count(
        tested,
        Efficiency.HoldersWithinCap,
        efficiency_steps.holders_within_cap(before, s, c, e, kind),
    )
    missed |= _count(
        tested, Efficiency.IdleIsStill, efficiency_steps.idle_is_still(before, s, c, e, kind)
    )
    missed |= _count(
        tested, Efficiency.EndPublished, efficiency_steps.end_published(before, s, c, e, kind)
    )
    return missed
