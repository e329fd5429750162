"""The graph of a search, with what progress asks of each state and each transition."""

from __future__ import annotations

import numpy as np

from kvproof.checker.expand import look_at_states, look_at_steps
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.search.explore import Chunk
from kvproof.search.graph import Column, Graph
from kvproof.spec.progress_labels import PASSES


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
        self.cut += look_at_states(chunk.rows, self._like, c, due, transfers, waiting)
        labels, passed = np.empty(steps, np.uint8), np.empty(steps, np.uint16)
        goes_on = np.zeros(states, np.bool_)
        passes = look_at_steps(
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
