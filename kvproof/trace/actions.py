"""Actions by name: what a trace says, independent of how the model numbers them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.errors import KvproofError
from kvproof.model.engine import Kind


class ActionError(KvproofError, ValueError):
    """An action of no known kind."""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the device answers for one request of a step.

    `accepted` drafts; `stop_at` is the place (from 1) of a stop among the sampled tokens, 0 none;
    `load_fails` is the place (from 1) of the block that a synchronous load could not fill.
    """

    accepted: int = 0
    stop_at: int = 0
    load_fails: int = 0

    def __str__(self) -> str:
        words = f"{self.accepted} accepted"
        if self.stop_at:
            words += f", stop at token {self.stop_at}"
        if self.load_fails:
            words += f", block {self.load_fails - 1} not loaded"
        return words


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One action of the engine or its surroundings; only the fields of its kind are set.

    `do` is the name of a Kind in lower case; ActionError for another.
    """

    do: str
    request: int | None = None
    outcomes: dict[int, Outcome] = {}
    drafts: dict[int, int] = {}
    failed_block: int | None = None
    running: bool = False
    pause: str | None = None

    def __post_init__(self) -> None:
        if self.do not in _KINDS:
            raise ActionError(f"do = {self.do!r}: allowed is {', '.join(_KINDS)}")

    @property
    def kind(self) -> Kind:
        """The kind that `do` names."""
        return _KINDS[self.do]

    def __str__(self) -> str:
        return " ".join((self.do, *self._words()))

    def _words(self) -> list[str]:
        words = []
        if self.request is not None:
            words.append(f"R{self.request}")
        if self.failed_block is not None:
            words.append(f"without its block {self.failed_block}")
        if self.running:
            words.append("with running requests")
        if self.pause is not None:
            words.append(self.pause)
        answers: dict[int, Any] = {**self.outcomes, **self.drafts}
        return words + [f"R{r}:{answer}" for r, answer in answers.items()]


_KINDS = {kind.name.lower(): kind for kind in Kind}
