"""The sweep: small scopes that cover every pair of switches and boundary values, each searched.

Nobody can guess the one configuration that breaks. Each row of the pairwise cover is made into a
scope and searched within a budget of states, on past every run that breaks something, so that one
violation does not hide another; and once more past unsound publications, to see who reads them.
Every distinct violation is reported once, in the smallest scope that has it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from kvproof.checker.check import Limits
from kvproof.checker.collect import collect
from kvproof.checker.known import known_finding
from kvproof.checker.minimize import minimize, whole_only
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.options import ScopeError
from kvproof.native.jit import source_key
from kvproof.scopes.cover import Cover, Row, pairs_of
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.spec.identity import Identity
from kvproof.spec.masks import Id
from kvproof.trace.files import append_bytes, write_bytes
from kvproof.trace.identify import identity_of
from kvproof.trace.trace import Trace, TraceError

RECORD_FORMAT = 2

QUICK = 120
FULL = 720
_PASSED = (frozenset[Id](), frozenset({Id.PublishedSound}))


class Found(msgspec.Struct, frozen=True):
    """One violation: what it is, its run, and what had been passed over to get there."""

    identity: Identity
    trace: Trace
    past: tuple[str, ...]


class Swept(msgspec.Struct, frozen=True):
    """One row of the sweep and what its search gave."""

    number: int
    row: dict[str, str | int | bool]
    outcome: str
    states: int
    transitions: int
    found: tuple[Found, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The rows of a sweep so far, and the cover that they come from."""

    swept: tuple[Swept, ...]
    cover: Cover

    def distinct(self) -> dict[Identity, Found]:
        """Each distinct violation once, in the smallest scope that has it."""
        best: dict[Identity, Found] = {}
        for one in self.swept:
            for found in one.found:
                if found.identity not in best or _size(found) < _size(best[found.identity]):
                    best[found.identity] = found
        return dict(sorted(best.items(), key=lambda item: str(item[0])))


def _size(found: Found) -> tuple[int, int, int]:
    scope = found.trace.scope
    return len(scope.requests), len(found.trace.actions), scope.num_blocks


def search(number: int, row: Row, limits: Limits) -> Swept:
    """Search one row's scope for every distinct violation."""
    scope = scope_of(number, row)
    found = []
    states = transitions = 0
    bounded = False
    for past in _PASSED:
        system = SchedulerSystem(scope, ignore=past)
        result, traces = collect(system, max_states=limits.states, max_seconds=limits.seconds)
        result.finished()
        states = max(states, result.states)
        transitions += result.transitions
        bounded = bounded or result.outcome == "bounded"
        names = tuple(sorted(identity.name for identity in past))
        found += [Found(identity_of(trace), trace, names) for trace in traces]
    outcome = "violated" if found else "bounded" if bounded else "holds"
    return Swept(number, row, outcome, states, transitions, tuple(found))


class _Made(msgspec.Struct, frozen=True):
    """First line of a record: what its results depend on besides the rows."""

    sources: str
    states: int | None
    format: int = RECORD_FORMAT


def _recorded(path: Path, made: _Made) -> dict[int, Swept]:
    """The results in a record, which is begun if there is none; a line cut off is taken away."""
    head = msgspec.json.encode(made) + b"\n"
    if not path.exists() or path.stat().st_size == 0:
        write_bytes(path, head)
    first, *lines = path.read_bytes().splitlines(keepends=True)
    if first != head:
        raise TraceError(f"{path}: made by other sources or with another limit; name another file")
    if lines and not lines[-1].endswith(b"\n"):
        del lines[-1]
        write_bytes(path, b"".join((head, *lines)))
    try:
        results = [msgspec.json.decode(line, type=Swept) for line in lines]
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: not a record of a sweep: {error}") from error
    return {one.number: one for one in results}


def sweep(
    count: int,
    *,
    limits: Limits = Limits(states=30_000, seconds=20.0),  # noqa: B008 (immutable)
    seed: int = 0,
    record: Path | None = None,
    watch: Callable[[Swept, int], None] | None = None,
) -> Sweep:
    """Search the first `count` rows of the cover; Ctrl-C ends it with what is done.

    `record` is a file of JSON lines to which each result is added, and which is read first: what
    is there is not done again. A record of other rows, made by other sources or with another
    limit of states is refused with TraceError.
    """
    cover = Cover(PARAMETERS, CONSTRAINTS, seed=seed)
    done = {} if record is None else _recorded(record, _Made(source_key(), limits.states))
    swept = []
    try:
        for number, row in enumerate(islice(cover.rows(), count)):
            one = done.get(number)
            if one is None:
                try:
                    one = search(number, row, limits)
                except ScopeError as error:
                    raise ScopeError(f"row {number} {row}: {error}") from error
                if record is not None:
                    append_bytes(record, msgspec.json.encode(one) + b"\n")
            elif one.row != row:
                raise TraceError(f"{record}: row {number} is not the one of this sweep")
            swept.append(one)
            if watch is not None:
                watch(one, count)
    except KeyboardInterrupt:
        pass
    return Sweep(tuple(swept), cover)


def minimal(found: Found) -> Trace:
    """The violation in the smallest scope, as short as it gets there; as found if it drifts.

    In a smaller scope the same invariant may fall in another way first. A Ctrl-C is raised.
    """
    past = frozenset(Id[name] for name in found.past)
    trace = minimize(found.trace, found.trace.broken, past=past, watch=whole_only)
    return trace if identity_of(trace) == found.identity else found.trace


def summary_page(done: Sweep) -> str:
    """docs/sweep.md: what was covered, what ended how, and every distinct violation."""
    outcomes = Counter(one.outcome for one in done.swept)
    covered = {pair for one in done.swept for pair in pairs_of(one.row)}
    pairs = done.cover.pairs()
    left = [p for p in pairs if p not in covered and p not in done.cover.infeasible]
    amount = "--full" if len(done.swept) == FULL else f"--scopes {len(done.swept)}"
    lines = [
        f"<!-- Generated by `kvproof sweep {amount} --to docs/sweep.md`. -->\n",
        "# The sweep\n",
        f"{len(done.swept)} scopes, {sum(one.states for one in done.swept):,} states, "
        f"{sum(one.transitions for one in done.swept):,} transitions: "
        f"{outcomes['holds']} hold, {outcomes['violated']} are violated, "
        f"{outcomes['bounded']} ended bounded.\n",
        f"Of {len(pairs)} pairs of values {len(covered)} were covered, "
        f"{len(done.cover.infeasible)} are infeasible (start-up refuses them, or one of the two "
        f"has no meaning with the other), {len(left)} are left.\n",
        "## Violations\n",
        "Each distinct one: what falls, at which action, and why. A scope is searched on past what "
        "it breaks, so one scope may be counted in several rows.\n",
        "| what falls, where | scopes | explained by |",
        "|---|---|---|",
    ]
    times = Counter(i for one in done.swept for i in {found.identity for found in one.found})
    for identity in done.distinct():
        finding = known_finding(identity)
        link = f"[{finding.id}](findings.md#{finding.id})" if finding else "**not explained**"
        lines.append(f"| {identity} | {times[identity]} | {link} |")
    lines += ["", "## Values\n", "| parameter | value | scopes | violated | bounded |"]
    lines.append("|---|---|---|---|---|")
    for name, values in PARAMETERS.items():
        for value in values:
            rows = [one for one in done.swept if one.row[name] == value]
            ends = Counter(one.outcome for one in rows)
            lines.append(
                f"| {name} | {json.dumps(value)} | {len(rows)} | {ends['violated']} "
                f"| {ends['bounded']} |"
            )
    return "\n".join(lines) + "\n"
