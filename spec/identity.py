"""What a violation is: what falls, at which action, where in the scheduler, and after what.

Two runs with equal identities show the same bug, as far as can be told from outside. Findings say
which identities they explain by a `Pattern`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """What happened earlier in a run, or is so in its scope, that tells its violation apart."""

    FAILED_SYNC_LOAD = "after a failed synchronous load"
    FAILED_LOAD = "after a failed load"
    SCHEDULED_VICTIM = "after a scheduled victim"
    RAISED_RESET = "after a reset that raised"
    ONE_TOKEN_LOAD = "with a load of one token"
    FIRST_CHUNK_ADMISSION = "without full-sequence admission"
    LOOKAHEAD = "with lookahead"
    STRAY_PLACEHOLDER = "with a placeholder that nothing fills"
    OWN_RESERVE = "with a reserve for itself"
    HELD = "with blocks held by others that wait"


OF_A_STALL = (Cause.ONE_TOKEN_LOAD, Cause.OWN_RESERVE, Cause.HELD)
"""The causes that the state of a stuck scheduler shows, whatever came before."""


class Identity(msgspec.Struct, frozen=True, order=True):
    """Invariants or progress properties that fall, and what tells their fall from others.

    `action` is the kind of the last action, "" for a lasso. `where` has vLLM's assertion, or the
    branches of the scheduler that tell: the ways out of a scan that schedules nothing, for a lasso
    those that its loop takes. Names are those of the invariants, action kinds and branches.
    """

    broken: tuple[str, ...]
    action: str = ""
    where: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def way(self) -> tuple[str, tuple[str, ...], tuple[Cause, ...]]:
        """How it falls, whatever falls: what a smaller scope must have in common with it."""
        return self.action, self.where, tuple(c for c in self.causes if c in OF_A_STALL)

    def __str__(self) -> str:
        at = ["at", self.action] if self.action else []
        return " ".join(["+".join(self.broken), *at, *self.where, *self.causes])


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A set of identities: those that agree with every field that is given.

    `broken` and `causes` are given whole, `falls`, `where` and `after` in part.
    """

    broken: tuple[str, ...] | None = None
    falls: str | None = None
    action: str | None = None
    where: tuple[str, ...] = ()
    causes: tuple[Cause, ...] | None = None
    after: Cause | None = None

    def has(self, identity: Identity) -> bool:
        """Whether an identity is one of them."""
        return (
            (self.broken is None or self.broken == identity.broken)
            and (self.falls is None or self.falls in identity.broken)
            and (self.action is None or self.action == identity.action)
            and set(self.where) <= set(identity.where)
            and (self.causes is None or self.causes == identity.causes)
            and (self.after is None or self.after in identity.causes)
        )
