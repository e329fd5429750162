"""What must eventually happen, under which fairness, and what of a state and a step shows it.

A run is fair if the engine keeps stepping, outputs arrive, and transfers end (FAIRNESS has it per
kind of action). Clients' actions may come at any time but are never waited for, and failures are
finite: so what goes on for ever is a loop of the engine's own actions, and the kernels say which
these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from model import connector, engine, queues
from model.engine import Kind
from model.jit import kernel
from model.state import Load, Pause, Status
from spec.rules import Rule
from spec.scope import Scope


class Property(IntEnum):
    """Progress properties, in the order in which they are reported."""

    NoDeadEnd = 0
    NothingStuck = 1
    NoPreemptionCycle = 2
    EveryRequestFinishes = 3
    BoundedOvertaking = 4


ENGINE = 1
"""Label of a transition: the engine or a device does it, and nothing fails."""
STEP = 2
"""Label: a step of the engine's loop; the other ENGINE transitions are ends of transfers."""
PREEMPTS = 4
"""Label: a running request is preempted."""
MOVES = 8
"""Label: something is scheduled, comes back, is loaded or sent; all but the empty steps."""
PASSES = 16
"""Label: a waiting request is passed by one that ranks behind it."""


@kernel
def due(s, c):
    """Mask of the requests that are owed something: to be finished, or to give up their blocks.

    Nothing is owed to who waits while the scheduler is paused.
    """
    mask = 0
    for r in range(c.num_requests):
        status = s.status[r]
        if status == Status.ABSENT or status == Status.GONE:
            continue
        serves = s.pause == Pause.UNPAUSED or (
            s.pause == Pause.PAUSED_NEW and status == Status.RUNNING
        )
        if serves or connector.is_finished(status):
            mask |= 1 << r
    return mask


@kernel
def in_transfer(s, c):
    """Mask of the requests whose blocks a load writes or a sending reads, not ended yet."""
    mask = 0
    for r in range(c.num_requests):
        if s.load[r] == Load.PENDING or s.sending[r] == 1:
            mask |= 1 << r
    return mask


@kernel
def _waits(s, r):
    """Whether the request waits for the scheduler, and not for a load."""
    return s.status[r] == Status.WAITING or s.status[r] == Status.PREEMPTED


@kernel
def waiting(s, c):
    """Mask of the requests that wait for the scheduler."""
    mask = 0
    for r in range(c.num_requests):
        if _waits(s, r):
            mask |= 1 << r
    return mask


@kernel
def is_cut(s):
    """Whether the model follows no run past this state, since vLLM does not either."""
    return s.assertion != 0 or s.wrong_output != 0


@kernel
def label(before, after, c, e, action):
    """Label of a transition; `e` is scratch. What clients do has none, nor has what fails."""
    kind = engine.kind_of(action)
    argument = engine.argument_of(action)
    if kind == Kind.SENT:
        return ENGINE | MOVES
    if kind == Kind.TRANSFER_LANDS:
        return ENGINE | MOVES if argument < c.num_requests else MOVES
    if kind == Kind.DRAFTS:
        return ENGINE | STEP | MOVES
    if kind == Kind.OUTPUT:
        found = ENGINE | STEP
        if before.step_len[0] > 0:
            found |= MOVES
        if c.may_fail_loads:
            engine.decode_output(before, c, e, argument)
            for k in range(before.step_len[0]):
                if e.load_fails[before.step_order[0, k] - 1]:
                    found &= ~ENGINE
        return found
    if kind != Kind.SCHEDULE:
        return 0
    found = ENGINE | STEP
    if after.step_len[after.num_steps - 1] > 0:
        found |= MOVES
    for r in range(c.num_requests):
        if before.status[r] == Status.RUNNING and after.status[r] == Status.PREEMPTED:
            found |= PREEMPTS
        if after.load[r] == Load.PENDING and before.load[r] != Load.PENDING:
            found |= MOVES
    if passed(before, after, c):
        found |= PASSES
    return found


@kernel
def passed(before, after, c):
    """Mask of the requests that a call of schedule leaves waiting for one that ranks behind.

    Who holds blocks is served first whatever its rank, so it passes nobody.
    """
    mask = 0
    for r in range(c.num_requests):
        if not _waits(before, r) or before.status[r] != after.status[r]:
            continue
        for other in range(c.num_requests):
            given = _waits(before, other) and (
                after.status[other] == Status.RUNNING
                or after.status[other] == Status.WAITING_FOR_REMOTE_KVS
            )
            if given and before.num_computed[other] == 0 and _ranks_before(before, c, r, other):
                mask |= 1 << r
    return mask


@kernel
def _ranks_before(s, c, r, other):
    """Whether the policy serves r first: by priority, or victims first, then in queue order."""
    if c.priority_policy:
        if c.priority[r] != c.priority[other]:
            return c.priority[r] < c.priority[other]
        return c.arrival[r] < c.arrival[other]
    if s.was_preempted[r] != s.was_preempted[other]:
        return s.was_preempted[r] > s.was_preempted[other]
    place = queues.find(s.waiting, s.num_waiting, r)
    return place < queues.find(s.waiting, s.num_waiting, other)


def most_passes(scope: Scope, r: int) -> int:
    """Calls of schedule that may pass request r while it waits once.

    A victim is set aside until its output in flight has come, which a step at most for each
    place in the pipeline but one can delay; a fresh request as often as its connector asks to be
    asked later.
    """
    external = scope.requests[r].external
    return scope.depth - 1 + (0 if external is None else external.ask_later)


@dataclass(frozen=True)
class Fairness:
    """What is assumed of one kind of action: how often it comes, and why that may be assumed."""

    kind: Kind
    strength: Literal["weak", "strong", "none"]
    statement: str


FAIRNESS = (
    Fairness(Kind.ADD, "none", "Arrivals are never waited for; each request arrives once."),
    Fairness(Kind.ABORT, "none", "Aborts are never waited for; each request is aborted once."),
    Fairness(
        Kind.SCHEDULE, "weak", "The engine keeps stepping: where its loop may go on, it does."
    ),
    Fairness(
        Kind.OUTPUT,
        "weak",
        "The output of a step arrives, with any answer: any number of drafts accepted, a stop or "
        "none. That a synchronous load fails is finite.",
    ),
    Fairness(Kind.DRAFTS, "weak", "The drafter answers, with any number of drafts."),
    Fairness(
        Kind.TRANSFER_LANDS,
        "strong",
        "Each request's load ends sooner or later; that one fails is finite. NoPreemptionCycle "
        "does without this assumption.",
    ),
    Fairness(
        Kind.SENT,
        "strong",
        "Each request's sending ends sooner or later. NoPreemptionCycle does without this "
        "assumption.",
    ),
    Fairness(
        Kind.RESET_PREFIX_CACHE, "none", "Resets are finite: they may throw back, not for ever."
    ),
    Fairness(
        Kind.SET_PAUSE_STATE,
        "none",
        "Pauses are finite, and a resume is never waited for: nothing is owed to who waits while "
        "the scheduler is paused.",
    ),
)
"""Weak: an action that stays enabled is taken. Strong: one that is enabled again and again is taken
(the model lands no transfer between an output and its drafts). None: it may come, or never."""


@dataclass(frozen=True)
class Statement:
    """One progress property in words, why it matters, how it is looked for, and what breaks it."""

    property: Property
    statement: str
    why: str
    how: str
    broken_by: tuple[Rule, ...]


STATEMENTS = (
    Statement(
        Property.NoDeadEnd,
        "While a request is unfinished, or finished and still holds blocks, the engine or a "
        "device has something to do.",
        "An engine that goes to sleep with work at hand waits for the next arrival to wake it.",
        "Found during the search: a state with work due whose only actions are clients'.",
        (Rule.stay_awake_for_delayed_frees,),
    ),
    Statement(
        Property.NothingStuck,
        "No fair run goes on for ever with empty steps while work is due.",
        "The engine looks healthy, and nobody is served ever again.",
        "A fair cycle of empty steps alone.",
        (
            Rule.reserve_for_inflight_prefills,
            Rule.reserve_spec_step_for_loads,
            Rule.drain_block_holders_first,
            Rule.check_capacity_before_pinning,
            Rule.release_hold_if_load_already_done,
            Rule.remove_aborted_from_queues,
            Rule.forget_victim_placeholders,
        ),
    ),
    Statement(
        Property.NoPreemptionCycle,
        "Nobody is preempted again and again without having got further in between, however long "
        "a transfer takes.",
        "Every round costs a prefill and brings nothing; what a transfer takes can be minutes.",
        "A cycle of the engine's own actions that preempts, fair to transfers or not.",
        (Rule.victim_must_be_freeable, Rule.reserve_full_sequence),
    ),
    Statement(
        Property.EveryRequestFinishes,
        "In a fair run every request that has arrived is finished, and gives up its blocks.",
        "It is what the user waits for.",
        "Any fair cycle with work due, or a dead end: in a finite graph there is no other way to "
        "wait for ever. A run without end comes to a cycle, and one without clients' actions too.",
        (Rule.victim_must_be_freeable, Rule.drain_block_holders_first),
    ),
    Statement(
        Property.BoundedOvertaking,
        "A waiting request is passed by requests that rank behind it in at most depth - 1 calls of "
        "schedule, and once more for each time that its connector asks to be asked later.",
        "Under load there is always another request to be served first.",
        "Calls that pass a request are counted along every run while it waits. Victims rank before "
        "requests that were never admitted, else the queue's order counts (FCFS), or priority and "
        "arrival. Requests that hold blocks are served before others by design and pass nobody; "
        "who waits for a load is not passed.",
        (Rule.requeue_victim_first,),
    ),
)
