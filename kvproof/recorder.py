"""The graph of a search, with what progress asks of each state and each transition."""

from __future__ import annotations

import numpy as np

from kvproof.explore import Chunk
from kvproof.graph import Column, Graph
from kvproof.scheduler_system import SchedulerSystem
from model.jit import kernel
from model.record import at
from spec import progress
from spec.progress import ENGINE, PASSES


@kernel
def _look_at_states(rows, like, c, due, transfers, waiting):
    """Fill the masks of each state; returns how many states cut their runs short."""
    cut = 0
    for m in range(rows.shape[0]):
        s = at(like, rows, m)
        transfers[m] = progress.in_transfer(s, c)
        waiting[m] = progress.waiting(s, c)
        due[m] = 0
        if progress.is_cut(s):
            cut += 1
        else:
            due[m] = progress.due(s, c)
    return cut


@kernel
def _look_at_steps(rows, successors, like, c, e, parent, action, labels, goes_on, passed):
    """Fill the label of each transition and what it passes; note the states that have one."""
    passes = 0
    for k in range(successors.shape[0]):
        before = at(like, rows, parent[k])
        after = at(like, successors, k)
        labels[k] = progress.label(before, after, c, e, action[k])
        if labels[k] & ENGINE:
            goes_on[parent[k]] = True
        if labels[k] & PASSES:
            passed[passes] = progress.passed(before, after, c)
            passes += 1
    return passes


class Recorder:
    """Keeps the graph of a search, chunk by chunk, and notes its first dead end.

    `due`, `transfers` and `waiting` have a mask of requests for each state; `passing` lists the
    transitions that pass someone, `passed` whom.
    """

    def __init__(self, system: SchedulerSystem) -> None:
        self._system = system
        self._report = system.compiled.new_report()
        self._like = system.compiled.state.new()
        self.graph = Graph()
        self.due = Column(np.uint16)
        self.transfers = Column(np.uint16)
        self.waiting = Column(np.uint16)
        self.cut = 0
        self.dead_end: int | None = None
        self.passing = Column(np.uint32)
        self.passed = Column(np.uint16)

    def __call__(self, chunk: Chunk) -> None:
        """Take in a chunk of the search."""
        states, steps = len(chunk.rows), len(chunk.action)
        c = self._system.compiled.c
        due, transfers, waiting = (np.empty(states, np.uint16) for _ in range(3))
        self.cut += _look_at_states(chunk.rows, self._like, c, due, transfers, waiting)
        labels, passed = np.empty(steps, np.uint8), np.empty(steps, np.uint16)
        goes_on = np.zeros(states, np.bool_)
        passes = _look_at_steps(
            chunk.rows,
            chunk.successors,
            self._like,
            c,
            self._report,
            chunk.parent,
            chunk.action,
            labels,
            goes_on,
            passed,
        )
        if self.dead_end is None and (stays := (due != 0) & ~goes_on).any():
            self.dead_end = chunk.first + int(np.argmax(stays))
        if passes:
            first = self.graph.edges
            self.passing.extend((first + np.flatnonzero(labels & PASSES)).astype(np.uint32))
            self.passed.extend(passed[:passes])
        self.due.extend(due)
        self.transfers.extend(transfers)
        self.waiting.extend(waiting)
        self.graph.extend(states, chunk.parent, chunk.target, labels)

    @property
    def nbytes(self) -> int:
        """Memory of the graph and all that is kept with it."""
        columns = (self.due, self.transfers, self.waiting, self.passing, self.passed)
        return self.graph.nbytes + sum(column.nbytes for column in columns)
