"""Rows of a cover searched one after another, within a bound, with a record of what is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

import msgspec

from kvproof.model.options import ScopeError
from kvproof.native.jit import source_key
from kvproof.scopes.cover import Cover, Row
from kvproof.trace.files import append_bytes, write_bytes
from kvproof.trace.trace import TraceError

RECORD_FORMAT = 3

Ended = Literal["count", "round", "minutes", "interrupted"]
Watch = Callable[[float, float], None]
"""Told after each row how much is done, and of how much."""


class OfRow(Protocol):
    """What a search gave for one row: JSON that has the row and its number."""

    @property
    def number(self) -> int:
        """Place of the row in the sweep, from 0."""
        ...

    @property
    def row(self) -> Row:
        """Its values."""
        ...


_Swept = TypeVar("_Swept", bound=OfRow)


@dataclass(frozen=True)
class Bound:
    """How far a sweep goes: `count` rows, or `minutes`, or both; neither: one round of the cover.

    Where the minutes are over the row under way is finished. What a record has costs none.
    """

    count: int | None = None
    minutes: float | None = None

    def rows(self, cover: Cover) -> Iterator[Row]:
        """The rows of the cover up to the count."""
        if self.count is None and self.minutes is None:
            return cover.round()
        return islice(cover.rows(), self.count)


class Made(msgspec.Struct, frozen=True):
    """First line of a record: what its results depend on besides the rows."""

    command: str
    states: int | None
    sources: str = msgspec.field(default_factory=source_key)
    format: int = RECORD_FORMAT


@dataclass(frozen=True)
class Searched(Generic[_Swept]):
    """The rows done, in order, the cover that they come from, and why they end there."""

    swept: tuple[_Swept, ...]
    cover: Cover
    ended: Ended

    @property
    def covered(self) -> int:
        """Possible combinations of values that the rows have."""
        return self.cover.covered(one.row for one in self.swept)

    @property
    def asked(self) -> str:
        """The options of the command that searches these rows."""
        rows = "" if self.ended == "round" else f"--scopes {len(self.swept)} "
        return f"--strength {self.cover.strength} {rows}"

    @property
    def coverage(self) -> str:
        """What is covered, of how much, in a sentence."""
        cover, covered = self.cover, self.covered
        impossible = cover.combined - cover.possible
        left = cover.possible - covered
        return (
            f"Of {cover.combined:,} combinations of {cover.strength} values {impossible:,} are "
            "impossible (start-up refuses them, or one value has no meaning with another); of the "
            f"{cover.possible:,} others {covered:,} are covered, {left:,} are left."
        )


def search_rows(
    cover: Cover,
    search: Callable[[int, Row], _Swept],
    kind: type[_Swept],
    *,
    bound: Bound,
    made: Made,
    record: Path | None = None,
    watch: Watch | None = None,
) -> Searched[_Swept]:
    """Search the rows of the cover within the bound; Ctrl-C ends it with what is done.

    `record` is a file of JSON lines to which each result is added, and which is read first: what
    is there is not done again. A record that was made otherwise is refused with TraceError.
    """
    done = {} if record is None else _recorded(record, made, kind)
    swept: list[_Swept] = []
    ended: Ended = "round" if bound.count is None else "count"
    spent = 0.0
    most = None if bound.minutes is None else 60 * bound.minutes
    try:
        for number, row in enumerate(bound.rows(cover)):
            one = done.get(number)
            if one is None:
                if most is not None and spent >= most:
                    ended = "minutes"
                    break
                started = time.monotonic()
                try:
                    one = search(number, row)
                except ScopeError as error:
                    raise ScopeError(f"row {number} {row}: {error}") from error
                spent += time.monotonic() - started
                if record is not None:
                    append_bytes(record, msgspec.json.encode(one) + b"\n")
            elif one.row != row:
                raise TraceError(f"{record}: row {number} is not the one of this sweep")
            swept.append(one)
            if watch is not None:
                watch(*_how_far(bound, cover, len(swept), spent))
    except KeyboardInterrupt:
        ended = "interrupted"
    return Searched(tuple(swept), cover, ended)


def _how_far(bound: Bound, cover: Cover, rows: int, spent: float) -> tuple[float, float]:
    """What is done and the whole of it: seconds, rows, or combinations of a round."""
    if bound.minutes is not None:
        return min(spent, 60 * bound.minutes), 60 * bound.minutes
    if bound.count is not None:
        return rows, bound.count
    return cover.possible - cover.left, cover.possible


def _recorded(path: Path, made: Made, kind: type[_Swept]) -> dict[int, _Swept]:
    """The results in a record, which is begun if there is none; a line cut off is taken away."""
    head = msgspec.json.encode(made) + b"\n"
    if not path.exists() or path.stat().st_size == 0:
        write_bytes(path, head)
    first, *lines = path.read_bytes().splitlines(keepends=True)
    if first != head:
        raise TraceError(
            f"{path}: made by another command, by other sources or with another limit; name "
            "another file"
        )
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
        write_bytes(path, b"".join((head, *lines)))
    try:
        results = [msgspec.json.decode(line, type=kind) for line in lines]
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: not a record of a sweep: {error}") from error
    return {one.number: one for one in results}
