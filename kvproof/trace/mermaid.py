"""Traces as Mermaid sequence diagrams: who calls whom, and what the scheduler notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from kvproof.model.state import Load
from kvproof.trace.action_kinds import ACTION_KINDS, Participant
from kvproof.trace.render import changes
from kvproof.trace.trace import Moment, Trace, replay

_PARTICIPANTS = get_args(Participant)


def mermaid(trace: Trace) -> str:
    """The trace as a `sequenceDiagram`; TraceError where an action is not enabled.

    The connector takes part where the trace loads or sends; a note says what changed.
    """
    arrows = [line for moment in replay(trace) for line in _arrows(moment)]
    used = [name for name in _PARTICIPANTS if any(name in line.split(":")[0] for line in arrows)]
    lines = ["sequenceDiagram", *(f"participant {name}" for name in used), *arrows]
    return "\n    ".join(lines) + "\n"


def _arrows(moment: Moment) -> Iterator[str]:
    caller, called = ACTION_KINDS[moment.action.kind].between
    before, after, report = moment.before, moment.after, moment.report
    requests = range(len(after.status))
    yield f"{caller}->>{called}: {moment.number}. {_plain(str(moment.action))}"
    for r in requests:
        if moment.action.do == "output" and before.load[r] >= Load.LANDED and not after.load[r]:
            yield f"Connector->>Scheduler: the load of R{r} is done"
        if moment.action.do == "output" and before.sending[r] == 2 and not after.sending[r]:
            yield f"Connector->>Scheduler: the blocks of R{r} are sent"
        if report.new_load[r]:
            blocks = [int(b) for b in after.transfer_table[r] if b]
            yield f"Scheduler->>Connector: load R{r} into blocks {blocks}"
        if after.sending[r] and not before.sending[r]:
            yield f"Scheduler->>Connector: send the blocks of R{r}"
        if report.delivered[r]:
            yield f"Scheduler->>Client: R{r} gets {report.delivered[r]} tokens"
    yield f"Note over Scheduler: {_plain(changes(moment))}"
    if moment.broken:
        yield f"Note over Scheduler: broken: {', '.join(moment.broken)}"


def _plain(text: str) -> str:
    """Text without what Mermaid reads as its own: the end of a statement, and entities."""
    return text.replace("#", "no. ").replace("; ", "<br/>")
