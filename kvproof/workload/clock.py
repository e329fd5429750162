"""The simulated clock: the engine's loop, its clients, and what is observed of each request.

The loop is EngineCore's (`step`, and `step_with_batch_queue` where two steps may be in flight):
read what has arrived, schedule if there is room and work, go round again while the queue of steps
has room, else take the oldest step's output. The device runs steps one after the other; planning
takes no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from kvproof.workload.sessions import Session
from kvproof.workload.settings import Settings

_IDLE_STEPS = 8


class Broken(Exception):
    """An invariant fell: its name and what was seen."""

    def __init__(self, invariant: str, seen: str) -> None:
        super().__init__(f"{invariant}: {seen}")
        self.invariant = invariant
        self.seen = seen


class Request(NamedTuple):
    """One turn as the engine gets it."""

    number: int
    session: int
    turn: int
    prompt: int
    out: int
    sent: float


class Admission(NamedTuple):
    """A request that was taken from the waiting: the tokens it has, and how many were cached."""

    request: int
    known: int
    hit: int


class Step(NamedTuple):
    """A scheduled step."""

    scheduled: int
    """Tokens."""
    resident: int
    """Tokens that the blocks of its requests have room for."""
    admitted: Sequence[Admission]
    preempted: Sequence[int]


class Delivery(NamedTuple):
    """New tokens of a request, and whether they were its last."""

    request: int
    tokens: int
    finished: bool


class Engine(Protocol):
    """A scheduler with its queue of steps; requests are told apart by their numbers."""

    def add(self, request: Request) -> None:
        """A request arrives."""

    def has_requests(self) -> bool:
        """Whether there is anything to schedule or to clean up."""

    def schedule(self) -> Step:
        """Plan a step and put it in flight."""

    def output(self) -> Sequence[Delivery]:
        """Process the output of the oldest step in flight."""


class Record(msgspec.Struct):
    """What was observed of one request; times are the clock's, None: not before the horizon."""

    session: int
    turn: int
    sent: float
    prompt: int
    new: int
    out: int
    admissions: list[tuple[float, int, int]] = []
    """Time, tokens known, tokens hit of each admission: more than one after a preemption."""
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0

    @property
    def hit(self) -> int | None:
        """Tokens found cached at the first admission."""
        return self.admissions[0][2] if self.admissions else None

    @property
    def prefill(self) -> int | None:
        """Tokens to compute after the first admission."""
        return self.admissions[0][1] - self.admissions[0][2] if self.admissions else None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token is None else self.first_token - self.sent

    @property
    def response(self) -> float | None:
        """Seconds to the last token."""
        return None if self.finished is None else self.finished - self.sent


class Totals(msgspec.Struct):
    """Counts of a whole run."""

    steps: int = 0
    empty_steps: int = 0
    sessions: int = 0
    refused: int = 0
    """Turns that no longer fit the model length; their sessions end."""
    cut: int = 0
    """Requests that the model length ended."""


class Simulation:
    """Runs sessions on an engine up to the horizon."""

    def __init__(self, engine: Engine, sessions: Sequence[Session], settings: Settings) -> None:
        self.now = 0.0
        self.records: list[Record] = []
        self.totals = Totals(sessions=len(sessions))
        self._engine = engine
        self._settings = settings
        self._sessions = {session.number: session for session in sessions}
        self._events: list[tuple[float, int, int, int, int]] = []
        self._delivered: dict[int, int] = {}
        self._steps: deque[float] = deque()
        self._device_free = 0.0
        self._idle = 0
        self._done = False
        for session in sessions:
            self._send_at(session.arrival, session.number, 0, 0)

    def advance(self, rounds: int) -> bool:
        """Go round the loop at most so many times; whether there is more to do."""
        for _ in range(rounds):
            if self._done:
                return False
            self._round()
        return not self._done

    def _round(self) -> None:
        engine, settings, steps = self._engine, self._settings, self._steps
        events = self._events
        while events and events[0][0] <= self.now:
            self._arrive()
        if engine.has_requests():
            step = engine.schedule()
            self._observe(step)
            start = max(self.now, self._device_free)
            self._device_free = start + settings.cost(step.scheduled, step.resident)
            steps.append(self._device_free)
            if len(steps) < settings.depth and (step.scheduled or engine.has_requests()):
                return
        elif not steps:
            if events and events[0][0] <= settings.horizon:
                self.now = events[0][0]
            else:
                self._done = True
            return
        end = steps.popleft()
        if end > settings.horizon:
            self._end()
            return
        self.now = max(self.now, end)
        for delivery in engine.output():
            self._deliver(delivery)

    def _end(self) -> None:
        self._done = True
        while self._events and self._events[0][0] <= self._settings.horizon:
            self._arrive()

    def _arrive(self) -> None:
        sent, _, number, turn_number, context = heapq.heappop(self._events)
        turn = self._sessions[number].turns[turn_number]
        prompt = context + turn.new
        if prompt >= self._settings.longest:
            self.totals.refused += 1
            return
        request = Request(len(self.records), number, turn_number, prompt, turn.out, sent)
        self.records.append(
            Record(number, turn_number, sent, prompt=prompt, new=turn.new, out=turn.out)
        )
        self._engine.add(request)

    def _send_at(self, time: float, session: int, turn: int, context: int) -> None:
        heapq.heappush(self._events, (time, len(self.records), session, turn, context))

    def _observe(self, step: Step) -> None:
        self.totals.steps += 1
        for admission in step.admitted:
            record = self.records[admission.request]
            record.admissions.append((self.now, admission.known, admission.hit))
        for number in step.preempted:
            self.records[number].preemptions += 1
        if step.scheduled or step.preempted:
            self._idle = 0
            return
        self.totals.empty_steps += 1
        self._idle += 1
        if self._idle > _IDLE_STEPS and self._engine.has_requests():
            raise Broken("NoStall", f"{self._idle} steps in a row scheduled nothing")

    def _deliver(self, delivery: Delivery) -> None:
        number = delivery.request
        record = self.records[number]
        if delivery.tokens and record.first_token is None:
            record.first_token = self.now
        delivered = self._delivered.get(number, 0) + delivery.tokens
        self._delivered[number] = delivered
        if not delivery.finished:
            return
        del self._delivered[number]
        record.finished = self.now
        if delivered < record.out:
            self.totals.cut += 1
        turns = self._sessions[record.session].turns
        if record.turn + 1 < len(turns):
            sent = turns[record.turn + 1].sent
            time = self.now + turns[record.turn].think if sent is None else max(self.now, sent)
            self._send_at(time, record.session, record.turn + 1, record.prompt + delivered)
