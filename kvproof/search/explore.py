"""Exhaustive breadth-first search of a `System`, whole chunks of states at a time."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvproof.search.store import Store
from kvproof.search.system import MOST_INVARIANTS, StepTooLarge, Successors, System, Words

Outcome = Literal["holds", "violated", "bounded"]
Reason = Literal["states", "memory", "seconds", "interrupted"]

# Room for the successors of a chunk if every state had `max_successors`; most stays untouched.
_CHUNK_BYTES = 16 << 20
_CHUNKS_A_BLOCK = 4
_WATCH_SECONDS = 0.1


@dataclass(frozen=True)
class Violation:
    """The invariants broken at the end of `actions`, taken from row `initial` of `initial()`."""

    invariants: tuple[str, ...]
    actions: tuple[int, ...]
    initial: int


@dataclass(frozen=True)
class SoFar:
    """Where a search stands: `frontier` states await expansion, `level_done` is a fraction."""

    states: int
    transitions: int
    depth: int
    frontier: int
    level_done: float
    seconds: float
    memory: int

    @property
    def states_per_second(self) -> float:
        """Distinct states a second so far."""
        return self.states / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Chunk:
    """A chunk of states just expanded, for an observer; the arrays are reused after the call.

    `rows[i]` is state number `first + i`; transition k leads from `rows[parent[k]]` by `action[k]`
    to state number `target[k]`, whose row is `successors[k]`. `new` lists the transitions whose
    target was not known before.
    """

    first: int
    rows: Words
    successors: Words
    parent: NDArray[np.int32]
    action: NDArray[np.int32]
    target: NDArray[np.uint32]
    new: NDArray[np.intp]


@dataclass(frozen=True)
class Result:
    """What a search found and what it covered.

    `outcome` is "holds" (every reachable state was visited), "violated" or "bounded" (`reason`
    names the limit). `levels[d]` states are first reached by d actions; every run of at most
    `covered_depth` actions was checked. `transitions` counts successors, known ones included.
    `dead_ends` are states without a successor. `step_bytes` have room for what one step of the
    search comes to. `seconds` leaves compilation out.
    """

    system: str
    outcome: Outcome
    reason: Reason | None
    violation: Violation | None
    states: int
    initial_states: int
    transitions: int
    dead_ends: int
    levels: tuple[int, ...]
    covered_depth: int
    seconds: float
    store_bytes: int
    peak_frontier_bytes: int
    step_bytes: int = field(compare=False)
    collision_probability: float
    store: Store = field(repr=False, compare=False)

    @property
    def depth(self) -> int:
        """The number of actions to the farthest state found."""
        return len(self.levels) - 1

    @property
    def generated(self) -> int:
        """States generated, as TLC counts them: initial states and successors."""
        return self.initial_states + self.transitions

    @property
    def states_per_second(self) -> float:
        """Distinct states a second, compilation left out."""
        return self.states / self.seconds

    @property
    def bytes_per_state(self) -> float:
        """Memory of the store, without the frontier, divided by the states."""
        return self.store_bytes / self.states

    def finished(self) -> Result:
        """This result, for those who have no use for a part: KeyboardInterrupt after a Ctrl-C."""
        if self.reason == "interrupted":
            raise KeyboardInterrupt
        return self


def explore(
    system: System,
    *,
    max_states: int | None = None,
    max_memory: int | None = None,
    max_process: int | None = None,
    max_seconds: float | None = None,
    watch: Callable[[SoFar], None] | None = None,
    observe: Callable[[Chunk], None] | None = None,
) -> Result:
    """Visit every reachable state, or stop at a first violation or limit.

    The violation reported is one of fewest actions and, among those, the first in the order of
    states and successors. Limits are looked at between chunks, so `max_states` may be passed by a
    chunk; `max_memory` is in bytes, store and frontier together, `max_process` the size of the
    whole process. `watch` is called at most ten times a second. Ctrl-C ends the search after the
    chunk at hand, a second one at once; either way the result says what was covered. Raises
    ValueError for a limit that is not positive and for a system that breaks the contract of
    `System`, StepTooLarge where memory has no room for a step, OverflowError past
    `store.MAX_STATES`.
    """
    for name, limit in (
        ("max_states", max_states),
        ("max_memory", max_memory),
        ("max_process", max_process),
        ("max_seconds", max_seconds),
    ):
        if limit is not None and limit <= 0:
            raise ValueError(f"{name} is {limit}; it must be positive, or None for no limit")

    search = _Search(system, observe)
    reason: Reason | None = None
    next_call = 0.0
    started = time.perf_counter()
    with _interrupts_between_chunks() as interrupted:
        try:
            while search.unfinished:
                seconds = time.perf_counter() - started
                if watch is not None and seconds >= next_call:
                    watch(search.so_far(seconds))
                    next_call = seconds + _WATCH_SECONDS
                if interrupted.is_set():
                    reason = "interrupted"
                elif max_states is not None and len(search.store) >= max_states:
                    reason = "states"
                elif search.is_full(max_memory, max_process):
                    reason = "memory"
                elif max_seconds is not None and seconds >= max_seconds:
                    reason = "seconds"
                if reason is not None:
                    break
                search.advance()
        except KeyboardInterrupt:
            reason = "interrupted"
    return search.result(reason, time.perf_counter() - started)


def process_size() -> int:
    """Bytes of memory that this process takes now, its libraries included.

    Where the system does not tell, the most that it has taken.
    """
    try:
        with open("/proc/self/statm", "rb") as sizes:
            return int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class _Search:
    """The state of one search: states are numbered, and expanded, in the order they are found."""

    def __init__(self, system: System, observe: Callable[[Chunk], None] | None) -> None:
        if len(system.invariants) > MOST_INVARIANTS:
            raise ValueError(
                f"{system.name} has {len(system.invariants)} invariants; "
                f"a search checks at most {MOST_INVARIANTS}"
            )
        if system.words < 1 or system.max_successors < 1:
            raise ValueError(
                f"{system.name} has words = {system.words} and "
                f"max_successors = {system.max_successors}; both must be at least 1"
            )
        self.system = system
        self.observe = observe
        self.store = Store()
        bytes_a_successor = Successors(1, system.words).nbytes
        capacity = max(_CHUNK_BYTES // bytes_a_successor, system.max_successors)
        try:
            self.out = Successors(capacity, system.words)
        except (MemoryError, ValueError, OverflowError):  # the last two: no array can have so many
            raise StepTooLarge(system.name, system.max_successors, system.words) from None
        self.targets = None if observe is None else np.zeros(capacity, np.uint32)
        self.chunk = capacity // system.max_successors
        self.queue = _Queue(system.words, self.chunk * _CHUNKS_A_BLOCK)
        self.levels: list[int] = []
        self.level_left = 0
        self.initial_states = 0
        self.transitions = 0
        self.expanded = 0
        self.dead_ends = 0
        self.peak_frontier_bytes = 0
        self.violation: Violation | None = None
        self._visit(np.zeros((0, system.words), np.uint64))  # compiles, before any clock runs
        self._begin()

    def _begin(self) -> None:
        """Store and check the initial states."""
        rows = self.system.initial()
        if rows.dtype != np.uint64 or rows.ndim != 2 or rows.shape[1] != self.system.words:
            raise ValueError(
                f"{self.system.name}.initial() has type {rows.dtype} and shape {rows.shape}; "
                f"it must be uint64 and (n, {self.system.words})"
            )
        if len(rows) == 0:
            raise ValueError(f"{self.system.name}.initial() is empty; it must name a state")
        self.initial_states = len(rows)
        broken = np.zeros(len(rows), np.uint64)
        self._keep(rows, self.store.insert_initial(np.ascontiguousarray(rows)), broken)
        self._start_level()
        if broken.any():
            row = int(np.argmax(broken != 0))
            self.violation = Violation(self._names(broken[row]), (), row)

    @property
    def unfinished(self) -> bool:
        return self.violation is None and len(self.queue) > 0

    def advance(self) -> None:
        """Expand the next states of the level, at most a chunk."""
        rows = self.queue.take(min(self.chunk, self.level_left))
        self._visit(rows)
        if self.violation is not None:
            return
        self.expanded += len(rows)
        self.level_left -= len(rows)
        if self.level_left == 0 and len(self.queue) > 0:
            self._start_level()

    def _start_level(self) -> None:
        self.level_left = len(self.queue)
        self.levels.append(self.level_left)

    def _visit(self, rows: Words) -> None:
        """Expand rows, the first of which is state number `expanded`, and look at what comes."""
        most = len(rows) * self.system.max_successors
        count = self.system.expand(rows, self.out)
        if not 0 <= count <= most:
            raise ValueError(
                f"{self.system.name}.expand returned {count} successors of {len(rows)} states; "
                f"max_successors = {self.system.max_successors} allows 0 to {most}"
            )
        successors, parent = self.out.rows[:count], self.out.parent[:count]
        action, broken = self.out.action[:count], self.out.broken[:count]
        targets = None if self.targets is None else self.targets[:count]
        new = self.store.insert(successors, parent, action, self.expanded, targets)
        self._keep(successors, new, broken)
        self.transitions += count
        self.dead_ends += len(rows) - int(np.count_nonzero(np.bincount(parent)))
        if self.observe is not None and targets is not None:
            self.observe(Chunk(self.expanded, rows, successors, parent, action, targets, new))
        if broken.any():
            k = int(np.argmax(broken != 0))
            initial, actions = self.store.path_to(self.expanded + int(parent[k]))
            self.violation = Violation(self._names(broken[k]), (*actions, int(action[k])), initial)

    def _keep(self, rows: Words, new: NDArray[np.intp], broken: Words) -> None:
        """Check and queue the new ones of rows; what they break is added to `broken`."""
        fresh = rows[new]
        broken_by_state = np.zeros(len(new), np.uint64)
        self.system.check(fresh, broken_by_state)
        broken[new] |= broken_by_state
        self.queue.put(fresh)
        self.peak_frontier_bytes = max(self.peak_frontier_bytes, self.queue.nbytes)

    def _names(self, mask: np.uint64) -> tuple[str, ...]:
        names = self.system.invariants
        bits = int(mask)
        if bits >> len(names):
            raise ValueError(
                f"{self.system.name} set bit {bits.bit_length() - 1} of a mask of broken "
                f"invariants; it names {len(names)}"
            )
        return tuple(name for bit, name in enumerate(names) if bits >> bit & 1)

    def memory(self) -> int:
        return self.store.nbytes + self.queue.nbytes + self.out.nbytes

    def memory_for_chunk(self) -> int:
        """What `memory` may come to with the next chunk."""
        most = min(self.chunk, self.level_left) * self.system.max_successors
        return self.memory() - self.store.nbytes + self.store.nbytes_with(most)

    def is_full(self, most: int | None, most_of_process: int | None) -> bool:
        """Whether the next chunk may come to more than one of these."""
        if most is not None and self.memory_for_chunk() > most:
            return True
        grown = self.memory_for_chunk() - self.memory()
        return most_of_process is not None and process_size() + grown > most_of_process

    def so_far(self, seconds: float) -> SoFar:
        return SoFar(
            states=len(self.store),
            transitions=self.transitions,
            depth=len(self.levels) - 1,
            frontier=len(self.queue),
            level_done=1 - self.level_left / self.levels[-1],
            seconds=seconds,
            memory=self.memory(),
        )

    def result(self, reason: Reason | None, seconds: float) -> Result:
        levels = list(self.levels)
        beyond = len(self.store) - sum(levels)
        if beyond > 0:
            levels.append(beyond)
        outcome: Outcome = "holds"
        if self.violation is not None:
            outcome = "violated"
        elif reason is not None:
            outcome = "bounded"
        return Result(
            system=self.system.name,
            outcome=outcome,
            reason=reason,
            violation=self.violation,
            states=len(self.store),
            initial_states=self.initial_states,
            transitions=self.transitions,
            dead_ends=self.dead_ends,
            levels=tuple(levels),
            covered_depth=len(self.levels) - 1,
            seconds=seconds,
            store_bytes=self.store.nbytes,
            peak_frontier_bytes=self.peak_frontier_bytes,
            step_bytes=self.out.nbytes,
            collision_probability=self.store.collision_probability,
            store=self.store,
        )


class _Queue:
    """First in, first out rows, in blocks that are given back once they are read."""

    def __init__(self, words: int, block: int) -> None:
        self._words = words
        self._block = block
        self._blocks: deque[Words] = deque()
        self._read = 0
        self._written = block

    def __len__(self) -> int:
        blocks = len(self._blocks)
        return blocks * self._block - self._read - (self._block - self._written) if blocks else 0

    @property
    def nbytes(self) -> int:
        return len(self._blocks) * self._block * self._words * 8

    def put(self, rows: Words) -> None:
        while len(rows) > 0:
            if self._written == self._block:
                self._blocks.append(np.empty((self._block, self._words), np.uint64))
                self._written = 0
            taken = min(len(rows), self._block - self._written)
            self._blocks[-1][self._written : self._written + taken] = rows[:taken]
            self._written += taken
            rows = rows[taken:]

    def take(self, most: int) -> Words:
        """The next rows, some of `most` where 1 <= most <= len(self)."""
        stop = min(self._read + most, self._block)
        rows = self._blocks[0][self._read : stop]
        self._read = stop
        if stop == self._block:
            self._blocks.popleft()
            self._read = 0
        return rows


@contextlib.contextmanager
def _interrupts_between_chunks() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that no chunk is left half done.

    Leaves alone a handler that someone else has installed, and threads, which cannot have one.
    """
    interrupted = threading.Event()
    usual = signal.default_int_handler
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not usual:
        yield interrupted
        return

    def note(_number: int, _frame: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, usual)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, usual)
