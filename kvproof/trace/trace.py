"""Traces: a scope and the actions that lead to a broken invariant, as a file and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from kvproof import __version__
from kvproof.errors import KvproofError
from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.options import ScopeError
from kvproof.model.scope import Scope, scope_from_dict
from kvproof.model.state import Branch
from kvproof.native.record import Record
from kvproof.shown import Shown
from kvproof.spec import masks
from kvproof.trace.action_kinds import ACTION_KINDS
from kvproof.trace.actions import Action
from kvproof.trace.breach import broken_promise, held_back
from kvproof.trace.codes import code_of, enabled_calls, name_action
from kvproof.trace.files import keep_existing, write_bytes

FORMAT = "kvproof trace"
VERSION = 1

_File = TypeVar("_File", bound=msgspec.Struct)


class TraceError(KvproofError, ValueError):
    """A trace that cannot be used: says what is wrong and where."""


class Trace(Shown, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of a scope: after the last action the named invariants are broken (none: a plain run).

    The rules that are off are the scope's. `recorded_on` is the release of vLLM whose real classes
    made the run, which the model need not follow; it is unset where the model made it.
    """

    scope: Scope
    actions: tuple[Action, ...]
    broken: tuple[str, ...] = ()
    recorded_on: str | msgspec.UnsetType = msgspec.UNSET
    format: str = FORMAT
    version: int = VERSION
    tool: str = __version__

    def __str__(self) -> str:
        from kvproof.trace.render import render

        return render(self)

    def __post_init__(self) -> None:
        for name in self.broken:
            if name not in masks.Id.__members__:
                raise TraceError(f"broken: no invariant is named {name!r}; `kvproof invariants`")


class _Header(msgspec.Struct):
    format: str = ""
    version: int = 0


@dataclass(frozen=True)
class Moment:
    """One action of a replay: the states around it, its report, and what it broke."""

    number: int
    action: Action
    code: int
    before: Record
    after: Record
    report: Record
    broken: tuple[str, ...]


@dataclass(frozen=True)
class Run(Shown):
    """A trace taken on the model again: its moments, one an action."""

    trace: Trace
    moments: tuple[Moment, ...]

    @property
    def broken(self) -> tuple[str, ...]:
        """The invariants that fall anywhere in the run."""
        return tuple(sorted({name for moment in self.moments for name in moment.broken}))

    def __str__(self) -> str:
        return str(self.trace)


def branches_taken(moments: Sequence[Moment], *beginnings: str) -> tuple[str, ...]:
    """The branches of the scheduler that these moments took, of those whose names begin so."""
    taken = np.any([moment.report.branches for moment in moments], axis=0)
    return tuple(b.name for b in Branch if b.name.startswith(beginnings) and taken[b])


def names_of(mask: int) -> tuple[str, ...]:
    """Names of the invariants in a mask of broken ones."""
    return tuple(identity.name for identity in masks.Id if mask >> identity & 1)


def find_code(compiled: Compiled, state: Record, action: Action, number: int) -> int:
    """The code of a named action in a state; TraceError where it is not enabled."""
    code = code_of(compiled, state, action)
    if code is not None:
        return code
    enabled = [name_action(compiled, state, other) for other in enabled_calls(compiled, state)]
    listed = "; ".join(map(str, enabled[:12]))
    more = f" and {len(enabled) - 12} more" if len(enabled) > 12 else ""
    if any(ACTION_KINDS[named.kind].answers is not None for named in enabled):
        more += " (with any answers that the device can give)"
    promise = broken_promise(compiled, state, action)
    breach = "" if promise is None else f"; it breaks the promise {promise}"
    raise TraceError(
        f"action {number} ({action}) is not enabled; "
        f"enabled there: {listed or 'nothing'}{more}{breach}"
    )


def step(compiled: Compiled, state: Record, code: int) -> tuple[Record, Record, int]:
    """Take an action on a copy; returns the state after, the report and the mask of the broken."""
    after = state.copy()
    report = compiled.new_report()
    engine.apply(after, compiled.c, report, code)
    workspace = masks.new_workspace(compiled.state.sizes)
    broken = masks.check_step(state, after, compiled.c, report, workspace, code)
    broken |= masks.check_state(after, compiled.c, workspace)
    return after, report, int(broken)


def replay(trace: Trace) -> Iterator[Moment]:
    """Run a trace on the model, action by action; TraceError at the first that is not enabled."""
    compiled = compile_scope(trace.scope)
    state = compiled.initial()
    for number, action in enumerate(trace.actions, 1):
        code = find_code(compiled, state, action, number)
        after, report, broken = step(compiled, state, code)
        yield Moment(number, action, code, state, after, report, names_of(broken))
        state = after


def not_followed(trace: Trace) -> str | None:
    """From which action on the model does not follow a trace, and why; None where it does."""
    number = 0
    try:
        for moment in replay(trace):
            number = moment.number
    except TraceError as error:
        return f"the model does not follow from action {number + 1}: {error}"
    return None


def passed_over(trace: Trace) -> frozenset[masks.Id]:
    """The invariants that fall before those that the trace names: it passes over them.

    TraceError where the named ones do not fall at the last action, or fall before it.
    """
    named = set(trace.broken)
    earlier: set[str] = set()
    last: tuple[str, ...] = ()
    held = ""
    for moment in replay(trace):
        if named.intersection(last):
            raise TraceError(
                f"{', '.join(last)} falls at action {moment.number - 1}: the trace must end there"
            )
        earlier.update(last)
        last = moment.broken
        if moment.action.kind == engine.Kind.OUTPUT and not held:
            held = "".join(
                f"; at action {moment.number} the load of R{r} is over, and the promise "
                "loads-reported-from-their-step-on holds its report back"
                for r in held_back(moment.before)
            )
    missing = named.difference(last)
    if missing:
        raise TraceError(
            f"broken = {', '.join(sorted(missing))}: does not fall at the trace's end; "
            f"were its actions changed?{held}"
        )
    return frozenset(masks.Id[name] for name in earlier if named)


def from_codes(scope: Scope, codes: tuple[int, ...], broken: tuple[str, ...] = ()) -> Trace:
    """The trace of a run given by the codes that the search uses."""
    compiled = compile_scope(scope)
    state = compiled.initial()
    actions = []
    for code in codes:
        actions.append(name_action(compiled, state, code))
        state, _report, _broken = step(compiled, state, code)
    return Trace(scope, tuple(actions), broken)


def dumps(trace: Trace) -> bytes:
    """The trace as JSON, one action a line."""
    return encode(trace, "actions")


def encode(content: msgspec.Struct, *lists: str) -> bytes:
    """A file's content as JSON; the named lists of actions come last, one action a line."""
    values = msgspec.to_builtins(content)
    actions = {name: values.pop(name) for name in lists}
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()]
    for name, listed in actions.items():
        text = ",\n  ".join(map(json.dumps, listed))
        lines.append(
            f"{json.dumps(name)}: [\n  {text}\n ]" if listed else f"{json.dumps(name)}: []"
        )
    return ("{\n " + ",\n ".join(lines) + "\n}\n").encode()


def save(trace: Trace, path: Path, *, force: bool = False) -> None:
    """Write a trace; an existing file is kept unless `force`."""
    keep_existing(path, force=force)
    write_bytes(path, dumps(trace))


def loads(data: bytes, where: str = "trace") -> Trace:
    """A trace from JSON; TraceError with the reason where it is damaged or foreign."""
    trace = decode(data, where, Trace, FORMAT, VERSION)
    check_requests(trace.scope, trace.actions, where)
    return trace


def decode(data: bytes, where: str, kind: type[_File], form: str, version: int) -> _File:
    """A file's content from JSON; TraceError where it is damaged, foreign or of another version."""
    try:
        header = msgspec.json.decode(data, type=_Header)
    except msgspec.ValidationError as error:
        raise TraceError(f"{where}: not a {form.split()[-1]}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{where}: not JSON, or damaged: {error}") from error
    if header.format != form:
        raise TraceError(f"{where}: format is {header.format!r}, a {form.split()[-1]} has {form!r}")
    if header.version != version:
        newer = "; a newer kvproof wrote it" if header.version > version else ""
        raise TraceError(
            f"{where}: version is {header.version}, this kvproof reads {version}{newer}"
        )
    try:
        values = msgspec.json.decode(data)
        if isinstance(values.get("scope"), dict):
            values["scope"] = scope_from_dict(values["scope"])
        return msgspec.convert(values, kind, str_keys=True)
    except ScopeError as error:
        raise TraceError(f"{where}: scope: {error}") from error
    except msgspec.DecodeError as error:
        reason = error.__cause__ if isinstance(error.__cause__, TraceError) else error
        raise TraceError(f"{where}: {reason}") from error


def check_requests(scope: Scope, actions: tuple[Action, ...], where: str) -> None:
    """TraceError where an action names a request that the scope does not have."""
    for number, action in enumerate(actions, 1):
        _check_requests(scope, action, number, where)


def _check_requests(scope: Scope, action: Action, number: int, where: str) -> None:
    named = [*action.outcomes, *action.drafts]
    if action.request is not None:
        named.append(action.request)
    for r in named:
        if not 0 <= r < len(scope.requests):
            raise TraceError(
                f"{where}: action {number} ({action}): request {r}: allowed is "
                f"0..{len(scope.requests) - 1}"
            )


def load(path: Path) -> Trace:
    """Read a trace file."""
    return loads(read(path), str(path))


def read(path: Path) -> bytes:
    """A file's bytes; TraceError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
