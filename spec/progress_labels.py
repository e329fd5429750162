"""What of a state and a step progress looks at: what is due, what waits, who is passed.

Clients' actions and failures have no label: what goes on for ever is a loop of the engine's own
actions (kvproof/spec/progress.py).
"""

from __future__ import annotations

from kvproof.model import connector, engine, queues
from kvproof.model.engine import Kind
from kvproof.model.state import Load, Pause, Status
from kvproof.native.jit import kernel

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
            if given and before.num_blocks[other] == 0 and _ranks_before(before, c, r, other):
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
