"""Calls and what the device may answer to them: named actions to codes, without listing them all.

The answers to one step are a product over its requests, so that a large scope has more actions
than can be listed. A call has one code for each; here it is put together request by request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.model import engine
from kvproof.model.bounds import max_calls
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.native.record import Record
from kvproof.trace.actions import Action, Outcome, name_action


@dataclass(frozen=True)
class Answers:
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

    def place(self, outcome: Outcome) -> int | None:
        """The number of an answer in 0..len - 1, None where the device cannot give it."""
        load = 0
        if outcome.load_fails:
            load = outcome.load_fails - self.first_block
            if not 0 < load < self.load_choices:
                return None
        if not 0 <= outcome.accepted < len(self.stops):
            return None
        if not 0 <= outcome.stop_at < self.stops[outcome.accepted]:
            return None
        return load + self.load_choices * (sum(self.stops[: outcome.accepted]) + outcome.stop_at)


def enabled_calls(compiled: Compiled, state: Record) -> list[int]:
    """Codes of the enabled actions, one for each call: the device's first answer."""
    out: NDArray[np.int32] = np.zeros(max_calls(compiled.scope), np.int32)
    codes: list[int] = out[: engine.enabled_calls(state, compiled.c, out)].tolist()
    return codes


def output_answers(compiled: Compiled, state: Record) -> dict[int, Answers]:
    """What the device may answer for each request of the oldest step, in the step's order."""
    c = compiled.c
    found = {}
    for k in range(int(state.step_len[0])):
        r = int(state.step_order[0, k]) - 1
        stops: tuple[int, ...] = (1,)
        if engine.num_sample_choices(state, c, r) > 1:
            accepted = range(int(state.step_acceptable[0, r]) + 1)
            stops = tuple(int(engine.num_stop_choices(state, c, r, a)) for a in accepted)
        found[r] = Answers(
            stops,
            int(state.step_load_start[0, r]) // compiled.scope.block_size,
            int(engine.num_load_choices(state, c, r)),
        )
    return found


def code_of(
    compiled: Compiled, state: Record, action: Action, *, nearest: bool = False
) -> int | None:
    """The code of a named action in a state, None where it is not enabled.

    With `nearest` an answer that the device cannot give is replaced by the first one that it can.
    """
    for code in enabled_calls(compiled, state):
        if _same_call(name_action(compiled, state, code), action):
            break
    else:
        return None
    kind = code % engine.KINDS
    if kind == Kind.OUTPUT:
        choice = _output_choice(compiled, state, action, nearest)
    elif kind == Kind.DRAFTS:
        choice = _drafts_choice(compiled, state, action, nearest)
    else:
        return code
    return None if choice is None else int(kind) + engine.KINDS * choice


def _same_call(a: Action, b: Action) -> bool:
    """Whether two actions are the same call but for what the device answers."""
    return (a.do, a.request, a.failed_block, a.running, a.pause) == (
        b.do,
        b.request,
        b.failed_block,
        b.running,
        b.pause,
    )


def _output_choice(compiled: Compiled, state: Record, action: Action, nearest: bool) -> int | None:
    answers = output_answers(compiled, state)
    choice, weight = 0, 1
    for r, ways in answers.items():
        wanted = action.outcomes.get(r)
        place = 0 if wanted is None else ways.place(wanted)
        if place is None and not nearest:
            return None
        choice += weight * (place or 0)
        weight *= len(ways)
    named = name_action(compiled, state, int(Kind.OUTPUT) + engine.KINDS * choice)
    return choice if nearest or named == action else None


def _drafts_choice(compiled: Compiled, state: Record, action: Action, nearest: bool) -> int | None:
    most = compiled.scope.num_speculative_tokens
    drafting = np.flatnonzero(state.drafting).tolist()
    if not nearest and action.drafts.keys() != set(drafting):
        return None
    choice, weight = 0, 1
    for r in drafting:
        wanted = action.drafts.get(r, 0)
        if not 0 <= wanted <= most:
            if not nearest:
                return None
            wanted = 0
        choice += weight * wanted
        weight *= most + 1
    return choice
