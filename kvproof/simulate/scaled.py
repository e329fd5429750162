"""The workload scaled down to what the model's record holds, on model and real classes at once.

An episode is a small world of its own: as many turns as a scope has requests, with the same shape
as the large workload. The clock drives the model and the real classes together; after every call
both sides' results and observations must be equal, and all invariants are checked on the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from kvproof.bridge import observation
from kvproof.bridge.client import Client
from kvproof.bridge.differences import Field, compare, told
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.lockstep import expect
from kvproof.bridge.observation import Past
from kvproof.model import scheduler
from kvproof.model.compiled import compile_scope, next_token
from kvproof.model.scope import MAX_BLOCKS, MAX_MODEL_LEN, MAX_REQUESTS, RequestSpec, Scope
from kvproof.trace.actions import Action
from kvproof.trace.codes import enabled_codes, name_action
from kvproof.trace.trace import Trace, find_code, names_of, step
from kvproof.workload import clock
from kvproof.workload.sessions import Session, Turn, draw
from kvproof.workload.settings import Settings, SimulateError

SCALE = 16
"""Tokens of the large workload for one of the small."""

_ALPHABET = 200
_BLOCK_SIZES = (4, 8, 16)
_ROUNDS = 10_000


@dataclass
class Episode:
    """One small run: what was compared, and the first difference or broken invariant with it."""

    settings: Settings
    scope: Scope
    steps: int = 0
    compared: int = 0
    records: list[clock.Record] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    difference: tuple[Field, ...] = ()
    broken: clock.Broken | None = None

    @property
    def agrees(self) -> bool:
        """Whether both sides were equal throughout, and nothing broke."""
        return not self.difference and self.broken is None

    @property
    def trace(self) -> Trace:
        """The run as a trace."""
        broken = () if self.broken is None else tuple(self.broken.invariant.split(", "))
        return Trace(self.scope, tuple(self.actions), broken)


class Differs(Exception):
    """The two sides do not agree: (field, model's value, vLLM's value) of each difference."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        super().__init__("; ".join(told(fields)))
        self.fields = fields


def scaled(settings: Settings, seed: int) -> Settings:
    """A small workload: sizes over SCALE, sessions shorter and closer, a pool of any size.

    Answers are shrunk half as much, so that requests grow and preempt each other.
    """
    low, high = settings.first_turn
    block_size = _BLOCK_SIZES[seed % len(_BLOCK_SIZES)]
    return msgspec.structs.replace(
        settings,
        seed=seed,
        rate=settings.rate * SCALE**2 * 64,
        pool=_pool(seed, MAX_MODEL_LEN // block_size),
        block_size=block_size,
        budget=max(settings.budget // SCALE, settings.max_requests),
        first_turn=(low / SCALE, high / SCALE),
        mean_new=settings.mean_new / SCALE,
        mean_out=settings.mean_out / SCALE * 2,
        tool_time=settings.tool_time / SCALE**2,
        continue_probability=settings.continue_probability**5,
        horizon=60.0,
        warmup=0.0,
        max_model_len=MAX_MODEL_LEN,
    )


def _pool(seed: int, smallest: int) -> int:
    """Blocks: from what one request needs to what a record holds, more often few."""
    return smallest + int((MAX_BLOCKS - 1 - smallest) * Random(f"{seed} pool").random() ** 3)


def plan(settings: Settings) -> list[Session]:
    """The first sessions of a workload that fit a scope, with turns that fit the model length."""
    sessions = []
    left = MAX_REQUESTS
    for session in draw(settings):
        turns = _fitting(session.turns[:left], settings.longest)
        left -= len(turns)
        if turns:
            sessions.append(Session(session.number, session.arrival, turns))
        if not left:
            break
    return sessions


def _fitting(turns: tuple[Turn, ...], longest: int) -> tuple[Turn, ...]:
    context = 0
    for i, turn in enumerate(turns):
        context += turn.new + turn.out
        if context > longest:
            return turns[:i]
    return turns


def scope_of(settings: Settings, sessions: list[Session]) -> Scope:
    """The scope whose requests are the sessions' turns, in their order.

    A session starts with a token that no other starts with; what it is answered is the model's
    greedy continuation, so that the next prompt repeats it exactly.
    """
    requests = []
    for place, session in enumerate(sessions):
        tokens: list[int] = []
        for number, turn in enumerate(session.turns):
            first = len(tokens)
            tokens += [1 + (place + first + i) % _ALPHABET for i in range(turn.new)]
            requests.append(
                RequestSpec(
                    prompt=tuple(tokens),
                    max_tokens=turn.out,
                    priority=int(settings.policy == "priority" and number == 0),
                )
            )
            for _ in range(turn.out):
                tokens.append(next_token(tokens, _ALPHABET))
    return Scope(
        name="multi-turn",
        requests=tuple(requests),
        num_blocks=settings.pool + 1,
        block_size=settings.block_size,
        max_num_seqs=min(settings.max_requests, MAX_REQUESTS),
        max_num_batched_tokens=settings.budget,
        max_model_len=settings.longest,
        policy=settings.policy,
        async_scheduling=settings.depth > 1,
        alphabet=_ALPHABET,
    )


class LockstepEngine:
    """The model and the real classes as one engine of the clock."""

    def __init__(self, episode: Episode, sessions: list[Session], client: Client) -> None:
        self._episode = episode
        self._client = client
        self._compiled = compile_scope(episode.scope)
        self._state = self._compiled.initial()
        self._past = Past()
        turns = [(s.number, turn) for s in sessions for turn in range(len(s.turns))]
        self._index = {turn: r for r, turn in enumerate(turns)}
        self._numbers: dict[int, int] = {}
        client.run([observation.new_engine(episode.scope)])

    def add(self, request: clock.Request) -> None:
        """A request arrives."""
        r = self._index[request.session, request.turn]
        self._numbers[r] = request.number
        self._take(Action("add", request=r))

    def has_requests(self) -> bool:
        """Whether there is anything to schedule or to clean up."""
        return bool(scheduler.has_requests(self._state, self._compiled.c))

    def schedule(self) -> clock.Step:
        """Plan a step and put it in flight."""
        result = self._take(Action("schedule"))
        self._episode.steps += 1
        size = self._episode.scope.block_size
        new = [r for r, *_ in result["sent_new"]]
        return clock.Step(
            scheduled=result["total"],
            resident=size * sum(len(table) for table in result["tables"].values()),
            admitted=[
                clock.Admission(
                    self._numbers[r], int(self._state.num_tokens[r]), result["start"][r]
                )
                for r in [*new, *result["resumed"]]
            ],
            preempted=[self._numbers[r] for r in result["preempted"]],
        )

    def output(self) -> list[clock.Delivery]:
        """Process the output of the oldest step in flight."""
        enabled = [
            name_action(self._compiled, self._state, int(code))
            for code in enabled_codes(self._compiled, self._state)
        ]
        # Nothing may stop early and nothing is drafted: a step has one output.
        (action,) = [action for action in enabled if action.do == "output"]
        return [
            clock.Delivery(self._numbers[r], len(tokens), reason is not None)
            for r, (tokens, reason, *_) in self._take(action).items()
        ]

    def _take(self, action: Action) -> Any:
        """Take an action on both sides; returns the result that both gave."""
        episode, compiled, before = self._episode, self._compiled, self._state
        code = find_code(compiled, before, action, len(episode.actions) + 1)
        after, report, broken = step(compiled, before, code)
        episode.actions.append(action)
        if broken:
            raise clock.Broken(", ".join(names_of(broken)), f"after {action}")
        operation, expected = expect(compiled, before, after, action, report, (), self._past)
        self._past = expected.past
        (answer,) = self._client.run([operation])
        episode.compared += 1
        fields = compare(expected, answer)
        if fields:
            raise Differs(fields)
        self._state = after
        return expected.result


def run_episode(settings: Settings, client: Client) -> Episode:
    """One small run to its end, or to the first difference or broken invariant."""
    sessions = plan(settings)
    episode = Episode(settings, scope_of(settings, sessions))
    simulation = clock.Simulation(LockstepEngine(episode, sessions, client), sessions, settings)
    episode.records = simulation.records
    try:
        while simulation.advance(_ROUNDS):
            pass
    except Differs as differs:
        episode.difference = differs.fields
    except clock.Broken as broken:
        episode.broken = broken
    return episode


def run_episodes(
    settings: Settings,
    episodes: int,
    *,
    version: str = DEFAULT_VERSION,
    watch: Callable[[float, float, int], None] | None = None,
) -> list[Episode]:
    """Small runs from consecutive seeds, up to the first that does not agree, or to a Ctrl-C.

    `watch` is called with the episodes done, their number and the requests so far.
    """
    if episodes < 1:
        raise SimulateError(f"--episodes = {episodes}: allowed is 1 and more")
    done: list[Episode] = []
    requests = 0
    with Client(version) as client:
        try:
            for number in range(episodes):
                done.append(run_episode(scaled(settings, settings.seed + number), client))
                requests += len(done[-1].records)
                if watch is not None:
                    watch(number + 1, episodes, requests)
                if not done[-1].agrees:
                    break
        except KeyboardInterrupt:
            pass
    return done
