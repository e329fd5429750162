"""Who comes when and wants what: sessions of turns, drawn beforehand.

A session's token at a position is one number that no other session and no other position has, so
two prompts share a prefix exactly where they belong to one session.
"""

from __future__ import annotations

import math
from random import Random

import msgspec

from kvproof.workload.settings import Settings

POSITION_BITS = 24
"""A token is session << POSITION_BITS | position."""


class Turn(msgspec.Struct, frozen=True):
    """A turn: `new` prompt tokens, `out` tokens wanted, then `think` seconds until the next.

    `sent` is the time at which another run sent it, None if only the session decides.
    """

    new: int
    out: int
    think: float = 0.0
    sent: float | None = None


class Session(msgspec.Struct, frozen=True):
    """A client: when it comes and its turns in order."""

    number: int
    arrival: float
    turns: tuple[Turn, ...]


def token(session: int, position: int) -> int:
    """The token of a session at a position."""
    return session << POSITION_BITS | position


def draw(settings: Settings) -> list[Session]:
    """The sessions that arrive up to the horizon, the first at time 0.

    Every session draws from a generator of its own: with another rate the same sessions come at
    other times. Tokens are whole: what is drawn is rounded up.
    """
    arrivals = Random(f"{settings.seed} arrivals")
    sessions: list[Session] = []
    now = 0.0
    while now <= settings.horizon:
        number = len(sessions)
        sessions.append(Session(number, now, _turns(Random(f"{settings.seed} {number}"), settings)))
        now += arrivals.expovariate(settings.rate)
    return sessions


def _turns(random: Random, settings: Settings) -> tuple[Turn, ...]:
    turns = []
    new = random.uniform(*settings.first_turn)
    while True:
        out = random.expovariate(1 / settings.mean_out) + 1
        more = random.random() < settings.continue_probability
        think = random.expovariate(1 / settings.tool_time) if more else 0.0
        turns.append(Turn(max(1, math.ceil(new)), math.ceil(out), think))
        if not more:
            return tuple(turns)
        new = random.expovariate(1 / settings.mean_new)
