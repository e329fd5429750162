"""Exit codes: one meaning each, the same for every command."""

from __future__ import annotations

from collections.abc import Iterable

HOLDS = 0
VIOLATED = 1
"""Something falls or differs; nothing else ends with 1."""
USAGE = 2
"""A mistake of use, of a file or of the environment."""
BOUNDED = 3
"""Nothing falls, but a limit was reached: what was covered is said."""
INTERRUPTED = 130
"""Ctrl-C or SIGTERM: what was covered until then is said."""
DEFECT = 70
"""A defect of kvproof itself, with its traceback."""
CLOSED_PIPE = 141
"""Whoever read the output has gone."""

_CODES = {
    "holds": HOLDS,
    "violated": VIOLATED,
    "fails": VIOLATED,
    "bounded": BOUNDED,
    "unknown": BOUNDED,
}


def exit_code(outcomes: Iterable[str], *, interrupted: bool = False) -> int:
    """The code of several outcomes: what falls comes first, then an interrupt, then a limit."""
    codes = {_CODES[outcome] for outcome in outcomes}
    if VIOLATED in codes:
        return VIOLATED
    if interrupted:
        return INTERRUPTED
    return BOUNDED if BOUNDED in codes else HOLDS
