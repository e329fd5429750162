"""What the device may answer to a call, request by request.

The answers to one step are a product over its requests, so that a large scope has more actions
than can be listed. A call has one code for each; it is put together request by request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.native.record import Record
from kvproof.trace.actions import Outcome


class Answers(Protocol):
    """The answers for one request, numbered from 0."""

    def __len__(self) -> int: ...

    def place(self, wanted: Any) -> int | None:
        """The number of an answer as an action has it, None where the device cannot give it."""
        ...


@dataclass(frozen=True)
class OutputAnswers:
    """The answers for one request of an output.

    `stops[a]` counts the places of a stop, none included, where `a` drafts are accepted;
    `first_block` is the first block of its synchronous load, and `load_choices` counts the ways
    in which the load may end: whole, or one of its blocks fails.
    """

    stops: tuple[int, ...] = (1,)
    first_block: int = 0
    load_choices: int = 1

    def __len__(self) -> int:
        return sum(self.stops) * self.load_choices

    def place(self, wanted: Outcome) -> int | None:
        """The number of an outcome."""
        load = 0
        if wanted.load_fails:
            load = wanted.load_fails - self.first_block
            if not 0 < load < self.load_choices:
                return None
        if not 0 <= wanted.accepted < len(self.stops):
            return None
        if not 0 <= wanted.stop_at < self.stops[wanted.accepted]:
            return None
        return load + self.load_choices * (sum(self.stops[: wanted.accepted]) + wanted.stop_at)


@dataclass(frozen=True)
class DraftAnswers:
    """The answers for one request of the drafter: from none to `most` drafts."""

    most: int

    def __len__(self) -> int:
        return self.most + 1

    def place(self, wanted: int) -> int | None:
        """The number of an answer is that of its drafts."""
        return wanted if 0 <= wanted <= self.most else None


def output_answers(compiled: Compiled, state: Record) -> Mapping[int, Answers]:
    """What the device may answer for each request of the oldest step, in the step's order."""
    c = compiled.c
    answers: dict[int, Answers] = {}
    for k in range(int(state.step_len[0])):
        r = int(state.step_order[0, k]) - 1
        stops: tuple[int, ...] = (1,)
        if engine.num_sample_choices(state, c, r) > 1:
            accepted = range(int(state.step_acceptable[0, r]) + 1)
            stops = tuple(int(engine.num_stop_choices(state, c, r, a)) for a in accepted)
        answers[r] = OutputAnswers(
            stops,
            int(state.step_load_start[0, r]) // compiled.scope.block_size,
            int(engine.num_load_choices(state, c, r)),
        )
    return answers


def draft_answers(compiled: Compiled, state: Record) -> Mapping[int, Answers]:
    """What the drafter may answer for each request that it is asked about."""
    answers = DraftAnswers(compiled.scope.num_speculative_tokens)
    return dict.fromkeys(np.flatnonzero(state.drafting).tolist(), answers)


def choice_of(
    answers: Mapping[int, Answers], wanted: Mapping[int, Any], *, nearest: bool
) -> int | None:
    """The number of what is wanted of each request among the product of their answers.

    The first answer stands for what is not wanted at all, with `nearest` also for what the device
    cannot give; else that is None.
    """
    choice, weight = 0, 1
    for r, ways in answers.items():
        place = ways.place(wanted[r]) if r in wanted else 0
        if place is None and not nearest:
            return None
        choice += weight * (place or 0)
        weight *= len(ways)
    return choice
