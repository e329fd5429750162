"""Lassos: runs that never get anywhere, as a stem and a loop that can be taken for ever."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvproof import __version__
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.shown import Shown
from kvproof.spec.progress import Property
from kvproof.trace.actions import Action
from kvproof.trace.codes import enabled_codes, name_action
from kvproof.trace.files import keep_existing, write_bytes
from kvproof.trace.render import changes, scope_lines
from kvproof.trace.trace import (
    Trace,
    TraceError,
    branches_taken,
    check_requests,
    decode,
    encode,
    read,
    replay,
    step,
)

FORMAT = "kvproof lasso"
VERSION = 1

_MOST_ROUNDS = 1000


class Lasso(Shown, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run that breaks progress properties: after `stem` the actions of `loop` recur for ever.

    The state after the loop is the one before it, block numbers included. Without a loop the stem
    itself shows it: it ends where nothing is enabled, or a request has been passed too often.
    """

    scope: Scope
    broken: tuple[str, ...]
    stem: tuple[Action, ...]
    loop: tuple[Action, ...]
    format: str = FORMAT
    version: int = VERSION
    tool: str = __version__

    def __post_init__(self) -> None:
        for name in self.broken:
            if name not in Property.__members__:
                raise TraceError(
                    f"broken: no progress property is named {name!r}; there are "
                    f"{', '.join(Property.__members__)}"
                )
        if not self.broken:
            raise TraceError("broken is empty: a lasso names what it breaks")
        needs_loop = {Property.NothingStuck.name, Property.NoPreemptionCycle.name}
        if not self.loop and needs_loop.intersection(self.broken):
            raise TraceError(f"loop is empty: {', '.join(self.broken)} needs one")

    def __str__(self) -> str:
        return render_lasso(self)

    def rounds(self, count: int) -> Trace:
        """The run that takes the loop `count` times, as a trace."""
        return Trace(self.scope, self.stem + self.loop * count)


def lasso(
    scope: Scope,
    broken: tuple[Property, ...],
    stem: tuple[int, ...],
    then: tuple[int, ...],
    loop: tuple[int, ...],
) -> Lasso:
    """The lasso of a stem in the codes of the search, and what follows it before the loop.

    The latter two are places among the enabled actions. The search may rename blocks, so its loop
    need not return to the same block numbers at once. It is taken until it does: a renaming that is
    repeated comes back to where it began.
    """
    compiled = compile_scope(scope)
    state = compiled.initial()
    taken: list[Action] = []

    def take(code: int) -> None:
        nonlocal state
        taken.append(name_action(compiled, state, code))
        state, _report, _broken = step(compiled, state, code)

    for code in stem:
        take(code)
    for place in then:
        take(int(enabled_codes(compiled, state)[place]))
    before = len(taken)
    first = state.row.tobytes()
    for _ in range(_MOST_ROUNDS if loop else 0):
        for place in loop:
            take(int(enabled_codes(compiled, state)[place]))
        if state.row.tobytes() == first:
            break
    else:
        if loop:
            raise RuntimeError(
                f"{scope.name}: a loop of {len(loop)} actions does not return to its state in "
                f"{_MOST_ROUNDS} rounds: the renaming of blocks is not a symmetry"
            )
    names = tuple(one.name for one in broken)
    return Lasso(scope, names, tuple(taken[:before]), tuple(taken[before:]))


def check_returns(found: Lasso) -> None:
    """Take a lasso on the model; TraceError where the loop does not return to its state."""
    moments = list(replay(found.rounds(1)))
    if found.loop:
        first, last = moments[len(found.stem)].before, moments[-1].after
        if first.row.tobytes() != last.row.tobytes():
            raise TraceError("the loop does not return to the state that it starts from")
        preempts = branches_taken(moments[len(found.stem) :], "preempted_")
        if Property.NoPreemptionCycle.name in found.broken and not preempts:
            raise TraceError("broken = NoPreemptionCycle: the loop preempts nobody")


def render_lasso(found: Lasso) -> str:
    """The lasso as text: one line an action with what changed, the loop marked."""
    trace = found.rounds(1)
    lines = [*scope_lines(trace), ""]
    width = max((len(str(action)) for action in trace.actions), default=0)
    for moment in replay(trace):
        if found.loop and moment.number == len(found.stem) + 1:
            lines.append("     for ever:")
        lines.append(f"{moment.number:3}  {str(moment.action).ljust(width)}  {changes(moment)}")
    lines.append(f"     broken: {', '.join(found.broken)}")
    return "\n".join(lines) + "\n"


def save_lasso(found: Lasso, path: Path, *, force: bool = False) -> None:
    """Write a lasso as JSON, one action a line; an existing file is kept unless `force`."""
    keep_existing(path, force=force)
    write_bytes(path, encode(found, "stem", "loop"))


def load_lasso(path: Path) -> Lasso:
    """Read a lasso; TraceError where it is damaged, foreign, or does not go round."""
    found = decode(read(path), str(path), Lasso, FORMAT, VERSION)
    check_requests(found.scope, found.stem + found.loop, str(path))
    check_returns(found)
    return found


def is_lasso(path: Path) -> bool:
    """Whether the file says of itself that it is a lasso."""
    return FORMAT.encode() in read(path)
