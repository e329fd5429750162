"""Actions by name: what a trace says, independent of how the model numbers them."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvproof.model import engine
from kvproof.model.bounds import max_actions
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.state import Pause
from kvproof.native.record import Record

Do = Literal[
    "add",
    "abort",
    "schedule",
    "output",
    "drafts",
    "transfer_lands",
    "sent",
    "reset_prefix_cache",
    "set_pause_state",
]


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the device answers for one request of a step.

    `accepted` drafts; `stop_at` is the place (from 1) of a stop among the sampled tokens, 0 none;
    `load_fails` is the place (from 1) of the block that a synchronous load could not fill.
    """

    accepted: int = 0
    stop_at: int = 0
    load_fails: int = 0


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One action of the engine or its surroundings; only the fields of its kind are set."""

    do: Do
    request: int | None = None
    outcomes: dict[int, Outcome] = {}
    drafts: dict[int, int] = {}
    failed_block: int | None = None
    running: bool = False
    pause: str | None = None

    def __str__(self) -> str:
        words: list[str] = [self.do]
        if self.request is not None:
            words.append(f"R{self.request}")
        if self.failed_block is not None:
            words.append(f"without its block {self.failed_block}")
        if self.do == "reset_prefix_cache" and self.running:
            words.append("with running requests")
        if self.pause is not None:
            words.append(self.pause)
        for r, outcome in self.outcomes.items():
            words.append(f"R{r}:{_outcome_words(outcome)}")
        for r, count in self.drafts.items():
            words.append(f"R{r}:{count}")
        return " ".join(words)


def _outcome_words(outcome: Outcome) -> str:
    words = f"{outcome.accepted} accepted"
    if outcome.stop_at:
        words += f", stop at token {outcome.stop_at}"
    if outcome.load_fails:
        words += f", block {outcome.load_fails - 1} not loaded"
    return words


def name_action(compiled: Compiled, state: Record, code: int) -> Action:
    """The action that `code` stands for in `state`."""
    kind = Kind(code % engine.KINDS)
    argument = code // engine.KINDS
    do: Do = kind.name.lower()  # type: ignore[assignment]
    if kind in (Kind.ADD, Kind.ABORT, Kind.SENT):
        return Action(do, request=argument)
    if kind == Kind.TRANSFER_LANDS:
        failed, r = divmod(argument, len(compiled.scope.requests))
        return Action(do, request=r, failed_block=failed - 1 if failed else None)
    if kind == Kind.RESET_PREFIX_CACHE:
        return Action(do, running=argument == 1)
    if kind == Kind.SET_PAUSE_STATE:
        return Action(do, pause=Pause(argument).name)
    if kind == Kind.DRAFTS:
        ways = compiled.scope.num_speculative_tokens + 1
        drafts = {}
        for r in np.flatnonzero(state.drafting).tolist():
            argument, drafts[r] = divmod(argument, ways)
        return Action(do, drafts=drafts)
    if kind == Kind.OUTPUT:
        return Action(do, outcomes=output_outcomes(compiled, state, argument))
    return Action(do)


def output_outcomes(compiled: Compiled, state: Record, choice: int) -> dict[int, Outcome]:
    """What the device answers for each request that the oldest step samples or loads for."""
    report = compiled.new_report()
    engine.decode_output(state, compiled.c, report, choice)
    outcomes = {}
    for k in range(int(state.step_len[0])):
        r = int(state.step_order[0, k]) - 1
        if state.step_samples[0, r] or report.load_fails[r]:
            outcomes[r] = Outcome(
                accepted=int(report.accepted[r]),
                stop_at=int(report.stop_at[r]),
                load_fails=int(report.load_fails[r]),
            )
    return outcomes


def enabled_codes(compiled: Compiled, state: Record) -> NDArray[np.int32]:
    """Codes of the actions enabled in a state."""
    out: NDArray[np.int32] = np.zeros(max_actions(compiled.scope), np.int32)
    return out[: engine.enabled_actions(state, compiled.c, out)]
