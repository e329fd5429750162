"""What must eventually happen, under which fairness, and what of a state and a step shows it.

A run is fair if the engine keeps stepping, outputs arrive, and transfers end (the table of action
kinds has it per kind). Clients' actions may come at any time but are never waited for, and failures
are finite: so what goes on for ever is a loop of the engine's own actions, and the kernels say
which these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kvproof.model.rules import Rule
from kvproof.model.scope import Scope
from kvproof.spec.rules import RULES


class Property(IntEnum):
    """Progress properties, in the order in which they are reported."""

    NoDeadEnd = 0
    NothingStuck = 1
    NoPreemptionCycle = 2
    EveryRequestFinishes = 3
    BoundedOvertaking = 4


def most_passes(scope: Scope, r: int) -> int:
    """Calls of schedule that may pass request r while it waits once.

    A victim is set aside until its output in flight has come, which a step at most for each
    place in the pipeline but one can delay; a fresh request as often as its connector asks to be
    asked later.
    """
    external = scope.requests[r].external
    return scope.depth - 1 + (0 if external is None else external.ask_later)


def broken_by(one: Property) -> tuple[Rule, ...]:
    """Rules without which a property falls, for instance."""
    return tuple(info.rule for info in RULES if one.name in info.breaks_progress)


@dataclass(frozen=True)
class Statement:
    """One progress property in words, why it matters, and how it is looked for."""

    property: Property
    statement: str
    why: str
    how: str


STATEMENTS = (
    Statement(
        Property.NoDeadEnd,
        "While a request is unfinished, or finished and still holds blocks, the engine or a "
        "device has something to do.",
        "An engine that goes to sleep with work at hand waits for the next arrival to wake it.",
        "Found during the search: a state with work due whose only actions are clients'.",
    ),
    Statement(
        Property.NothingStuck,
        "No fair run goes on for ever with empty steps while work is due.",
        "The engine looks healthy, and nobody is served ever again.",
        "A fair cycle of empty steps alone.",
    ),
    Statement(
        Property.NoPreemptionCycle,
        "Nobody is preempted again and again without having got further in between, however long "
        "a transfer takes.",
        "Every round costs a prefill and brings nothing; what a transfer takes can be minutes.",
        "A cycle of the engine's own actions that preempts, fair to transfers or not.",
    ),
    Statement(
        Property.EveryRequestFinishes,
        "In a fair run every request that has arrived is finished, and gives up its blocks.",
        "It is what the user waits for.",
        "Any fair cycle with work due, or a dead end: in a finite graph there is no other way to "
        "wait for ever. A run without end comes to a cycle, and one without clients' actions too.",
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
    ),
)
