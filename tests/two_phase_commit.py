"""Lamport's two-phase commit (TwoPhase.tla, TCommit.tla), as kernels and in plain Python.

Resource managers are working, prepared, committed or aborted; the transaction manager has heard
some of them and decides; messages stay once sent. The literature gives its state counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.native.jit import kernel
from kvproof.search.system import Successors, Words

WORKING, PREPARED, COMMITTED, ABORTED = range(4)
INIT, DONE_COMMITTED, DONE_ABORTED = range(3)

TM_COMMIT, TM_ABORT, TM_RCV_PREPARED, RM_PREPARE = range(4)
RM_CHOOSE_TO_ABORT, RM_RCV_COMMIT, RM_RCV_ABORT, RM_COMMIT_UNASKED = range(4, 8)
NAMES = (
    "TMCommit",
    "TMAbort",
    "TMRcvPrepared",
    "RMPrepare",
    "RMChooseToAbort",
    "RMRcvCommitMsg",
    "RMRcvAbortMsg",
    "RMCommitUnasked",
)

Codes = NDArray[np.int32]
State = tuple[tuple[int, ...], int, int, int]
"""Managers' states, the transaction manager's state, a mask of managers heard, of messages sent."""


@kernel
def _put(
    k: int, rows: Words, parent: Codes, action: Codes, row: int, origin: int, code: int
) -> int:
    rows[k, 0] = np.uint64(row)
    parent[k] = origin
    action[k] = code
    return k + 1


@kernel
def _expand(
    n: int, unasked: bool, sources: Words, rows: Words, parent: Codes, action: Codes
) -> int:
    """Bits of a state: 2n managers, 2 transaction manager, n heard, n prepared, commit, abort."""
    tm_at, heard_at, sent_at = 2 * n, 2 * n + 2, 3 * n + 2
    commit, abort = 1 << (4 * n + 2), 1 << (4 * n + 3)
    everyone = (1 << n) - 1
    k = 0
    for i in range(len(sources)):
        s = int(sources[i, 0])
        tm = s >> tm_at & 3
        if tm == INIT:
            if s >> heard_at & everyone == everyone:
                t = s | DONE_COMMITTED << tm_at | commit
                k = _put(k, rows, parent, action, t, i, TM_COMMIT * n)
            t = s | DONE_ABORTED << tm_at | abort
            k = _put(k, rows, parent, action, t, i, TM_ABORT * n)
        for r in range(n):
            rm = s >> (2 * r) & 3
            others = s & ~(3 << (2 * r))
            if tm == INIT and s >> (sent_at + r) & 1:
                t = s | 1 << (heard_at + r)
                k = _put(k, rows, parent, action, t, i, TM_RCV_PREPARED * n + r)
            if rm == WORKING:
                t = others | PREPARED << (2 * r) | 1 << (sent_at + r)
                k = _put(k, rows, parent, action, t, i, RM_PREPARE * n + r)
                t = others | ABORTED << (2 * r)
                k = _put(k, rows, parent, action, t, i, RM_CHOOSE_TO_ABORT * n + r)
            if s & commit:
                t = others | COMMITTED << (2 * r)
                k = _put(k, rows, parent, action, t, i, RM_RCV_COMMIT * n + r)
            if s & abort:
                t = others | ABORTED << (2 * r)
                k = _put(k, rows, parent, action, t, i, RM_RCV_ABORT * n + r)
            if unasked and rm == PREPARED:
                t = others | COMMITTED << (2 * r)
                k = _put(k, rows, parent, action, t, i, RM_COMMIT_UNASKED * n + r)
    return k


@kernel
def _check(n: int, rows: Words, broken: Words) -> None:
    for i in range(len(rows)):
        s = int(rows[i, 0])
        committed = False
        aborted = False
        for r in range(n):
            rm = s >> (2 * r) & 3
            committed |= rm == COMMITTED
            aborted |= rm == ABORTED
        if committed and aborted:
            broken[i] = 1


class TwoPhaseCommit:
    """Two-phase commit of `managers` resource managers, a state in one word.

    With `commits_unasked` a prepared manager may commit on its own, which breaks `Consistent`.
    """

    words = 1
    invariants = ("Consistent",)

    def __init__(self, managers: int, *, commits_unasked: bool = False) -> None:
        if not 1 <= managers <= 14:
            raise ValueError(f"managers is {managers}; a state of one word holds 1 to 14")
        self.managers = managers
        self.commits_unasked = commits_unasked
        self.name = f"two-phase commit, {managers} managers"
        self.max_successors = 2 + 4 * managers

    def initial(self) -> Words:
        return np.zeros((1, 1), np.uint64)

    def expand(self, rows: Words, out: Successors) -> int:
        return _expand(self.managers, self.commits_unasked, rows, out.rows, out.parent, out.action)

    def check(self, rows: Words, broken: Words) -> None:
        _check(self.managers, rows, broken)

    def describe(self, action: int) -> str:
        kind, manager = divmod(action, self.managers)
        return NAMES[kind] if kind <= TM_ABORT else f"{NAMES[kind]}({manager})"


def initial_state(managers: int) -> State:
    return (WORKING,) * managers, INIT, 0, 0


def successors(state: State, *, commits_unasked: bool = False) -> Iterator[tuple[int, State]]:
    """Actions and next states in plain Python, in the order of the kernel."""
    rms, tm, heard, sent = state
    n = len(rms)
    commit, abort = 1 << n, 2 << n
    if tm == INIT:
        if heard == (1 << n) - 1:
            yield TM_COMMIT * n, (rms, DONE_COMMITTED, heard, sent | commit)
        yield TM_ABORT * n, (rms, DONE_ABORTED, heard, sent | abort)
    for r, rm in enumerate(rms):
        if tm == INIT and sent >> r & 1:
            yield TM_RCV_PREPARED * n + r, (rms, tm, heard | 1 << r, sent)
        if rm == WORKING:
            prepared = (*rms[:r], PREPARED, *rms[r + 1 :])
            yield RM_PREPARE * n + r, (prepared, tm, heard, sent | 1 << r)
            aborted = (*rms[:r], ABORTED, *rms[r + 1 :])
            yield RM_CHOOSE_TO_ABORT * n + r, (aborted, tm, heard, sent)
        if sent & commit:
            committed = (*rms[:r], COMMITTED, *rms[r + 1 :])
            yield RM_RCV_COMMIT * n + r, (committed, tm, heard, sent)
        if sent & abort:
            aborted = (*rms[:r], ABORTED, *rms[r + 1 :])
            yield RM_RCV_ABORT * n + r, (aborted, tm, heard, sent)
        if commits_unasked and rm == PREPARED:
            committed = (*rms[:r], COMMITTED, *rms[r + 1 :])
            yield RM_COMMIT_UNASKED * n + r, (committed, tm, heard, sent)


def consistent(state: State) -> bool:
    return not (COMMITTED in state[0] and ABORTED in state[0])


def pack(state: State) -> int:
    """The word that stands for `state` in `TwoPhaseCommit`."""
    rms, tm, heard, sent = state
    n = len(rms)
    word = sum(rm << (2 * r) for r, rm in enumerate(rms))
    return word | tm << (2 * n) | heard << (2 * n + 2) | sent << (3 * n + 2)


@dataclass(frozen=True)
class PlainResult:
    """States with the state and action that first led to them, in order; transitions made."""

    found: dict[State, tuple[State, int] | None]
    transitions: int
    levels: tuple[int, ...]


def plain_search(managers: int) -> PlainResult:
    """The same breadth-first search in plain Python, with traces and the invariant checked."""
    start = initial_state(managers)
    found: dict[State, tuple[State, int] | None] = {start: None}
    transitions = 0
    levels = []
    frontier = [start]
    while frontier:
        levels.append(len(frontier))
        following = []
        for state in frontier:
            for action, target in successors(state):
                transitions += 1
                if target not in found:
                    found[target] = (state, action)
                    if not consistent(target):
                        raise AssertionError(f"inconsistent: {target}")
                    following.append(target)
        frontier = following
    return PlainResult(found, transitions, tuple(levels))
