"""The set of states seen, as 64-bit fingerprints, with how each was first reached."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvproof.native.jit import fast_range, kernel, prefetch
from kvproof.native.record import Words

MAX_STATES = 2**32 - 1
"""States are numbered with 32 bits; the last number stands for "no parent"."""

_NO_PARENT = 2**32 - 1
_FIRST_CAPACITY = 1024
_GROWTH = 1.5
_MAX_LOAD = 0.75
_BATCH = 256
_SLOT_BYTES = 8 + 4
_RECORD_BYTES = 4 + 4

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_EMPTY = np.uint64(0)

Numbers = NDArray[np.uint32]
Record = TypeVar("Record", np.uint32, np.int32)


@kernel
def _rotate(word: np.uint64, bits: int) -> np.uint64:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@kernel
def _merge(total: np.uint64, lane: np.uint64) -> np.uint64:
    return (total ^ _round(_EMPTY, lane)) * _P1 + _P4


@kernel
def fingerprint(rows: Words, k: int) -> np.uint64:
    """XXH64 (seed 0) of row k: four independent lanes; one-to-one on rows of a single word."""
    words = rows.shape[1]
    i = 0
    if words >= 4:
        a = _P1 + _P2
        b = _P2
        c = _EMPTY
        d = _EMPTY - _P1
        while i + 4 <= words:
            a = _round(a, rows[k, i])
            b = _round(b, rows[k, i + 1])
            c = _round(c, rows[k, i + 2])
            d = _round(d, rows[k, i + 3])
            i += 4
        total = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        total = _merge(_merge(_merge(_merge(total, a), b), c), d)
    else:
        total = _P5
    total += np.uint64(8 * words)
    while i < words:
        total = _rotate(total ^ _round(_EMPTY, rows[k, i]), 27) * _P1 + _P4
        i += 1
    total = (total ^ (total >> np.uint64(33))) * _P2
    total = (total ^ (total >> np.uint64(29))) * _P3
    return total ^ (total >> np.uint64(32))


@kernel
def _key(rows: Words, k: int) -> np.uint64:
    """The fingerprint of row k, but never the mark of an empty slot."""
    key = fingerprint(rows, k)
    return key if key != _EMPTY else _P1


@kernel
def _probe(keys: Words, key: np.uint64) -> int:
    """The slot that holds `key`, or else the empty one where it belongs."""
    slot = fast_range(key, len(keys))
    while keys[slot] != key and keys[slot] != _EMPTY:
        slot += 1
        if slot == len(keys):
            slot = 0
    return slot


@kernel
def _insert(
    begin: int,
    rows: Words,
    parents: NDArray[np.int32],
    actions: NDArray[np.int32],
    base: int,
    keys: Words,
    numbers: Numbers,
    count: int,
    all_parents: Numbers,
    all_actions: NDArray[np.int32],
    is_new: NDArray[np.bool_],
    targets: Numbers | None,
) -> tuple[int, int]:
    """Insert rows from `begin` on until all are in or the records are full.

    Returns the row to go on with and the number of states then held. Addresses are known a batch
    ahead, so that the batch's cache misses overlap.
    """
    batch = np.empty(_BATCH, np.uint64)
    for start in range(begin, len(rows), _BATCH):
        stop = min(start + _BATCH, len(rows))
        for k in range(start, stop):
            key = _key(rows, k)
            batch[k - start] = key
            slot = fast_range(key, len(keys))
            prefetch(keys, slot)
            if targets is not None:
                prefetch(numbers, slot)
        for k in range(start, stop):
            key = batch[k - start]
            slot = _probe(keys, key)
            if keys[slot] == _EMPTY:
                if count == len(all_parents):
                    return k, count
                keys[slot] = key
                numbers[slot] = count
                all_parents[count] = base + np.int64(parents[k])
                all_actions[count] = actions[k]
                is_new[k] = True
                count += 1
            if targets is not None:
                targets[k] = numbers[slot]
    return len(rows), count


@kernel
def _find(rows: Words, keys: Words, numbers: Numbers, found: NDArray[np.int64]) -> None:
    for k in range(len(rows)):
        slot = _probe(keys, _key(rows, k))
        found[k] = np.int64(numbers[slot]) if keys[slot] != _EMPTY else -1


@kernel
def _spread(keys: Words, numbers: Numbers, used: int) -> None:
    """Settle the entries of the first `used` slots in the whole, larger table, in place.

    Homes keep the order of keys. So, taken from the top down, an entry moves up, past slots that
    are settled already; the few that would not, or would pass the end, are put in last.
    """
    late = []
    for i in range(used - 1, -1, -1):
        key = keys[i]
        if key == _EMPTY:
            continue
        keys[i] = _EMPTY
        slot = fast_range(key, len(keys))
        if slot > i:
            while slot < len(keys) and keys[slot] != _EMPTY:
                slot += 1
            if slot < len(keys):
                keys[slot] = key
                numbers[slot] = numbers[i]
                continue
        late.append((key, numbers[i]))
    for key, number in late:
        slot = _probe(keys, key)
        keys[slot] = key
        numbers[slot] = number


def _next_capacity(capacity: int) -> int:
    return max(_FIRST_CAPACITY, int(capacity * _GROWTH))


def _room(capacity: int) -> int:
    return min(int(capacity * _MAX_LOAD), MAX_STATES)


def _bytes_of(capacity: int) -> int:
    return capacity * _SLOT_BYTES + _room(capacity) * _RECORD_BYTES


def _enlarged(array: NDArray[Record], room: int) -> NDArray[Record]:
    larger = np.empty(room, array.dtype)
    larger[: len(array)] = array
    return larger


class Store:
    """States numbered 0, 1, ... in the order in which they came.

    A state is known by its 64-bit fingerprint alone, so that two states may be taken for one:
    `collision_probability` bounds the chance that this happened. Memory is 24 to 36 bytes a state
    (one table slot of 12 bytes at a load of 1/2 to 3/4, and 8 bytes of parent and action).
    """

    def __init__(self) -> None:
        self._count = 0
        self._keys: Words = np.zeros(0, np.uint64)
        self._numbers: Numbers = np.zeros(0, np.uint32)
        self._parents: Numbers = np.zeros(0, np.uint32)
        self._actions: NDArray[np.int32] = np.zeros(0, np.int32)
        self._grow()

    def __len__(self) -> int:
        return self._count

    @property
    def parents(self) -> Numbers:
        """For each state the number of the state it was first reached from (2**32 - 1: initial)."""
        return self._parents[: self._count]

    @property
    def actions(self) -> NDArray[np.int32]:
        """For each state the action it was first reached by; for an initial state, its row."""
        return self._actions[: self._count]

    @property
    def nbytes(self) -> int:
        """Memory of the table and the records, in bytes."""
        return _bytes_of(len(self._keys))

    @property
    def collision_probability(self) -> float:
        """Bound on the probability that two of the states stored, or more, shared a fingerprint."""
        return self._count * (self._count - 1) / 2 / 2**64

    def nbytes_with(self, more: int) -> int:
        """What `nbytes` would be with room for `more` states beside those stored."""
        capacity = len(self._keys)
        while _room(capacity) < min(self._count + more, MAX_STATES):
            capacity = _next_capacity(capacity)
        return _bytes_of(capacity)

    def insert_initial(self, rows: Words) -> NDArray[np.intp]:
        """Insert states without a parent; returns the positions in `rows` of those that are new."""
        return self.insert(
            rows, np.zeros(len(rows), np.int32), np.arange(len(rows), dtype=np.int32), _NO_PARENT
        )

    def insert(
        self,
        rows: Words,
        parents: NDArray[np.int32],
        actions: NDArray[np.int32],
        base: int,
        targets: Numbers | None = None,
    ) -> NDArray[np.intp]:
        """Insert states reached from states number `base + parents[k]` by `actions[k]`.

        Returns the positions in `rows` (n, words) of those that are new, in order. Fills `targets`
        (n,), if given, with the state number of every row, new or not. Raises OverflowError when
        there would be more than MAX_STATES states.
        """
        is_new = np.zeros(len(rows), np.bool_)
        done = 0
        with np.errstate(over="ignore"):
            while True:
                done, self._count = _insert(
                    done,
                    rows,
                    parents,
                    actions,
                    base,
                    self._keys,
                    self._numbers,
                    self._count,
                    self._parents,
                    self._actions,
                    is_new,
                    targets,
                )
                if done == len(rows):
                    return np.flatnonzero(is_new)
                self._grow()

    def find(self, rows: Words) -> NDArray[np.int64]:
        """The state number of each row (n, words), -1 where it is not stored."""
        found = np.empty(len(rows), np.int64)
        with np.errstate(over="ignore"):
            _find(rows, self._keys, self._numbers, found)
        return found

    def path_to(self, number: int) -> tuple[int, tuple[int, ...]]:
        """How state `number` was first reached: the row of an initial state, then the actions."""
        if not 0 <= number < self._count:
            raise IndexError(
                f"state {number} is not stored; numbers go from 0 to {self._count - 1}"
            )
        actions = []
        while self._parents[number] != _NO_PARENT:
            actions.append(int(self._actions[number]))
            number = int(self._parents[number])
        return int(self._actions[number]), tuple(reversed(actions))

    def _grow(self) -> None:
        if self._count == MAX_STATES:
            raise OverflowError(
                f"more than {MAX_STATES:,} states: the store numbers them with 32 bits; "
                "narrow the scope or set max_states"
            )
        used = len(self._keys)
        capacity = _next_capacity(used)
        # In place, so that growth needs no second table; nothing else refers to these two.
        self._keys.resize(capacity, refcheck=False)
        self._numbers.resize(capacity, refcheck=False)
        _spread(self._keys, self._numbers, used)
        room = _room(capacity)
        self._parents = _enlarged(self._parents, room)
        self._actions = _enlarged(self._actions, room)
