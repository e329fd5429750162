"""The kinds of actions, one entry each: how they are numbered, who takes them, what vLLM is told.

What a kind does to the model, and where it is enabled, is model/engine.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvproof.model import connector, engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.rules import Rule
from kvproof.model.scope import MAX_DRAFTS, MAX_TOKEN, STOP_TOKEN
from kvproof.model.state import Load, Pause
from kvproof.native.record import Record
from kvproof.trace.actions import Action, Outcome
from kvproof.trace.answers import Answers, choice_of, draft_answers, output_answers

Participant = Literal["Client", "Scheduler", "Device", "Connector"]
Fairness = Literal["weak", "strong", "none"]

OBSERVE = "observe"
"""The driver's operation for what the scheduler is not told of."""


@dataclass(frozen=True)
class ActionKind:
    """One kind of action, and all that is known of it outside the model's kernels.

    `between` has who takes the action and who is told. `fairness` is how often it comes: a weak
    one is taken if it stays enabled, a strong one if it is enabled again and again (the model lands
    no transfer between an output and its drafts), another may come, or never; `assumed` says why.
    `fields` are those of Action that its actions set. An action's argument is a number: `argument`
    gives it, `values` the fields back; where the device answers, it is a choice among `answers`,
    which stand in the one field. `told` are the arguments of the driver's operation of that name,
    given the state before and the report (by default the fields; None: the scheduler is not told),
    `returns` what it must return, and `written` how an exported test writes its arguments.
    """

    kind: Kind
    between: tuple[Participant, Participant]
    fairness: Fairness
    assumed: str
    fields: tuple[str, ...] = ()
    argument: Callable[[Compiled, Action], int | None] = lambda _compiled, _action: 0
    values: Callable[[Compiled, Record, int], Mapping[str, Any]] = lambda *_: {}
    answers: Callable[[Compiled, Record], Mapping[int, Answers]] | None = None
    told: Callable[[Compiled, Record, Action, Record], list[Any] | None] | None = None
    returns: Callable[[Record], Any] = lambda _report: None
    written: Callable[[Action, list[Any]], str] | None = None

    @property
    def name(self) -> str:
        """The name that an action's `do` has."""
        return self.kind.name.lower()

    def encode(
        self, compiled: Compiled, state: Record, action: Action, *, nearest: bool = False
    ) -> int | None:
        """The argument of an action of this kind in a state, None where it has none.

        With `nearest` an answer that the device cannot give is replaced by the first one that it
        can.
        """
        if self.answers is None:
            argument = self.argument(compiled, action)
        else:
            wanted = getattr(action, self.fields[0])
            argument = choice_of(self.answers(compiled, state), wanted, nearest=nearest)
        if argument is None or argument < 0:
            return None
        if nearest and self.answers is not None:
            return argument
        return argument if self.decode(compiled, state, argument) == action else None

    def decode(self, compiled: Compiled, state: Record, argument: int) -> Action:
        """The action of this kind that an argument stands for in a state."""
        return Action(self.name, **self.values(compiled, state, argument))

    def operation(
        self, compiled: Compiled, before: Record, action: Action, report: Record
    ) -> list[Any]:
        """The driver's operation for an action that was taken from `before`."""
        arguments = self._arguments(compiled, before, action, report)
        return [OBSERVE] if arguments is None else [self.name, *arguments]

    def call(self, compiled: Compiled, before: Record, action: Action, report: Record) -> str:
        """The exported test's call for an action that was taken from `before`."""
        arguments = self._arguments(compiled, before, action, report)
        if arguments is None:
            arguments = [getattr(action, name) for name in self.fields]
        if self.written is not None:
            return f"{self.name}({self.written(action, arguments)})"
        return f"{self.name}({', '.join(map(_literal, arguments))})"

    def _arguments(
        self, compiled: Compiled, before: Record, action: Action, report: Record
    ) -> list[Any] | None:
        if self.told is None:
            return [getattr(action, name) for name in self.fields]
        return self.told(compiled, before, action, report)


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _request(_compiled: Compiled, action: Action) -> int | None:
    return action.request


def _of_request(_compiled: Compiled, _state: Record, argument: int) -> Mapping[str, Any]:
    return {"request": argument}


def _not_told(_compiled: Compiled, _before: Record, _action: Action, _report: Record) -> None:
    """The scheduler does not hear of it."""


def _outcomes(compiled: Compiled, state: Record, choice: int) -> Mapping[str, Any]:
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
    return {"outcomes": outcomes}


def sampled_tokens(compiled: Compiled, before: Record, report: Record) -> dict[int, list[int]]:
    """The tokens that the device samples for each request of the oldest step."""
    sampled = {}
    for r in _oldest_step(before):
        if before.step_samples[0, r]:
            first = int(report.position[r])
            tokens = list(compiled.tokens[r][first : first + int(report.accepted[r]) + 1])
            if report.stop_at[r]:
                tokens[int(report.stop_at[r]) - 1] = STOP_TOKEN
            sampled[r] = tokens
    return sampled


def _oldest_step(state: Record) -> list[int]:
    return [r - 1 for r in state.step_order[0, : int(state.step_len[0])].tolist()]


def _output_told(compiled: Compiled, before: Record, _action: Action, report: Record) -> list[Any]:
    """Sampled tokens, loads and sendings that are over, and blocks that no load has filled."""
    invalid = {
        int(before.step_table[0, r, int(report.load_fails[r]) - 1])
        for r in _oldest_step(before)
        if report.load_fails[r]
    }
    received = []
    for r, load in enumerate(before.load.tolist()):
        if not connector.is_load_reported(before, r):
            continue
        received.append(r)
        if load >= Load.FAILED:
            invalid.add(int(before.transfer_table[r, load - Load.FAILED]))
    sent = [r for r, sending in enumerate(before.sending.tolist()) if sending == 2]
    return [sampled_tokens(compiled, before, report), received, sent, sorted(invalid)]


def _output_written(_action: Action, arguments: list[Any]) -> str:
    sampled, *reported = arguments
    named = zip(("loaded", "sent", "invalid"), reported, strict=True)
    return ", ".join([repr(sampled), *(f"{name}={tuple(v)}" for name, v in named if v)])


def _drafts(compiled: Compiled, state: Record, choice: int) -> Mapping[str, Any]:
    drafts = {}
    for r, answers in draft_answers(compiled, state).items():
        choice, drafts[r] = divmod(choice, len(answers))
    return {"drafts": drafts}


def _drafts_told(compiled: Compiled, before: Record, action: Action, _report: Record) -> list[Any]:
    drafts = {r: draft_tokens(compiled, before, r, n) for r, n in action.drafts.items()}
    for r in (before.running[: int(before.num_running)] - 1).tolist():
        if before.prefill_chunk[r]:
            # The drafter proposes for prefill chunks too; the scheduler must not take it.
            drafts[r] = draft_tokens(compiled, before, r, compiled.scope.num_speculative_tokens)
    return [drafts]


def draft_tokens(compiled: Compiled, state: Record, r: int, count: int) -> list[int]:
    """The tokens that the drafter proposes for a request: a value for each request and place.

    Which of them are right is not theirs to say: acceptance is the device's answer. But the model
    publishes a draft, without the rule against it, as what follows.
    """
    if not compiled.c.rules[Rule.publish_committed_tokens_only]:
        known = int(state.num_tokens[r])
        return list(compiled.tokens[r][known : known + count])
    first = MAX_TOKEN - r * MAX_DRAFTS
    return list(range(first, first - count, -1))


def _transfer(compiled: Compiled, action: Action) -> int | None:
    if action.request is None:
        return None
    failed = 0 if action.failed_block is None else action.failed_block + 1
    return action.request + failed * len(compiled.scope.requests)


def _of_transfer(compiled: Compiled, _state: Record, argument: int) -> Mapping[str, Any]:
    failed, r = divmod(argument, len(compiled.scope.requests))
    return {"request": r, "failed_block": failed - 1 if failed else None}


def _transfer_written(action: Action, _arguments: list[Any]) -> str:
    without = "" if action.failed_block is None else f", without={action.failed_block}"
    return f"{action.request}{without}"


def _pause(_compiled: Compiled, action: Action) -> int | None:
    return next((int(pause) for pause in Pause if pause.name == action.pause), None)


_ENTRIES = (
    ActionKind(
        Kind.ADD,
        between=("Client", "Scheduler"),
        fairness="none",
        assumed="Arrivals are never waited for; each request arrives once.",
        fields=("request",),
        argument=_request,
        values=_of_request,
    ),
    ActionKind(
        Kind.ABORT,
        between=("Client", "Scheduler"),
        fairness="none",
        assumed="Aborts are never waited for; each request is aborted once.",
        fields=("request",),
        argument=_request,
        values=_of_request,
    ),
    ActionKind(
        Kind.SCHEDULE,
        between=("Scheduler", "Device"),
        fairness="weak",
        assumed="The engine keeps stepping: where its loop may go on, it does.",
    ),
    ActionKind(
        Kind.OUTPUT,
        between=("Device", "Scheduler"),
        fairness="weak",
        assumed="The output of a step arrives, with any answer: any number of drafts accepted, a "
        "stop or none. That a synchronous load fails is finite.",
        fields=("outcomes",),
        values=_outcomes,
        answers=output_answers,
        told=_output_told,
        written=_output_written,
    ),
    ActionKind(
        Kind.DRAFTS,
        between=("Device", "Scheduler"),
        fairness="weak",
        assumed="The drafter answers, with any number of drafts.",
        fields=("drafts",),
        values=_drafts,
        answers=draft_answers,
        told=_drafts_told,
    ),
    ActionKind(
        Kind.TRANSFER_LANDS,
        between=("Connector", "Device"),
        fairness="strong",
        assumed="Each request's load ends sooner or later; that one fails is finite. "
        "NoPreemptionCycle does without this assumption.",
        fields=("request", "failed_block"),
        argument=_transfer,
        values=_of_transfer,
        told=_not_told,
        written=_transfer_written,
    ),
    ActionKind(
        Kind.SENT,
        between=("Device", "Connector"),
        fairness="strong",
        assumed="Each request's sending ends sooner or later. NoPreemptionCycle does without this "
        "assumption.",
        fields=("request",),
        argument=_request,
        values=_of_request,
        told=_not_told,
    ),
    ActionKind(
        Kind.RESET_PREFIX_CACHE,
        between=("Client", "Scheduler"),
        fairness="none",
        assumed="Resets are finite: they may throw back, not for ever.",
        fields=("running",),
        argument=lambda _compiled, action: int(action.running),
        values=lambda _compiled, _state, argument: {"running": argument == 1},
        returns=lambda report: "raised" if report.reset_ok < 0 else bool(report.reset_ok),
        written=lambda action, _arguments: f"running={action.running}",
    ),
    ActionKind(
        Kind.SET_PAUSE_STATE,
        between=("Client", "Scheduler"),
        fairness="none",
        assumed="Pauses are finite, and a resume is never waited for: nothing is owed to who waits "
        "while the scheduler is paused.",
        fields=("pause",),
        argument=_pause,
        values=lambda _compiled, _state, argument: {"pause": Pause(argument).name},
    ),
)

ACTION_KINDS = {entry.kind: entry for entry in _ENTRIES}
"""Every kind's entry."""
