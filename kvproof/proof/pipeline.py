"""The steps in flight of one request: slot by slot, or summed up for any depth.

Both answer the same questions, so that one relation is proved over either. A step in flight has
`tokens`, `drafts`, whether it `samples`, and whether it is `stale`: scheduled before the request
was last preempted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import z3

from kvproof.proof.relation import Clause, Term, every, name_of, number


@dataclass(frozen=True)
class Step:
    """One step in flight."""

    tokens: Term
    drafts: Term
    samples: Term
    stale: Term


class Pipeline(Protocol):
    """What the counters need to know of the steps in flight."""

    fields: tuple[Term, ...]
    inputs: tuple[Term, ...]
    oldest: Step
    tokens: Term
    stale_tokens: Term
    fresh_drafts: Term
    planned: Term
    sampling: Term
    lemmas: tuple[Clause, ...]

    def room(self) -> Term:
        """Whether one more step may go in flight."""

    def has_oldest(self) -> Term:
        """Whether there is a step to be taken in, and it is `oldest`."""

    def empty(self) -> Term:
        """Whether nothing is in flight."""

    def one_at_most(self) -> Term:
        """Whether no two steps are in flight."""

    def pushed(self, tokens: Term, drafts: Term, samples: Term) -> dict[str, Term]:
        """The fields after a step went in flight."""

    def popped(self) -> dict[str, Term]:
        """The fields after the oldest step was taken in."""

    def made_stale(self) -> dict[str, Term]:
        """The fields after a preemption."""


def cleared(fields: tuple[Term, ...]) -> dict[str, Term]:
    """Every field zero or false."""
    return {name_of(f): z3.BoolVal(False) if z3.is_bool(f) else z3.IntVal(0) for f in fields}


@dataclass
class Slots:
    """At most `depth` steps in flight, each of them kept: `tokens0` is the oldest."""

    depth: int
    inputs: tuple[Term, ...] = ()
    steps: list[Step] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [
            Step(
                z3.Int(f"tokens{d}"),
                z3.Int(f"drafts{d}"),
                z3.Bool(f"samples{d}"),
                z3.Bool(f"stale{d}"),
            )
            for d in range(self.depth)
        ]
        self.fields = tuple(
            term for s in self.steps for term in (s.tokens, s.drafts, s.samples, s.stale)
        )
        self.oldest = self.steps[0]
        steps = self.steps
        self.tokens = z3.Sum(*(s.tokens for s in steps))
        self.stale_tokens = z3.Sum(*(z3.If(s.stale, s.tokens, 0) for s in steps))
        self.fresh_drafts = z3.Sum(*(z3.If(s.stale, 0, s.drafts) for s in steps))
        fresh = [every((s.samples, z3.Not(s.stale))) for s in steps]
        pairs = list(zip(steps, fresh, strict=True))
        self.planned = z3.Sum(*(z3.If(sampling, 1 + s.drafts, 0) for s, sampling in pairs))
        self.sampling = z3.Sum(*(number(sampling) for sampling in fresh))
        self.lemmas: tuple[Clause, ...] = (self._well_formed(),)

    def _well_formed(self) -> Clause:
        parts = []
        for s in self.steps:
            unused = every((s.drafts == 0, z3.Not(s.samples), z3.Not(s.stale)))
            parts += [
                s.tokens >= 0,
                s.drafts >= 0,
                z3.Implies(s.tokens == 0, unused),
                z3.Implies(z3.Not(s.samples), s.drafts == 0),
            ]
        for older, newer in zip(self.steps, self.steps[1:], strict=False):
            parts.append(z3.Implies(older.tokens == 0, newer.tokens == 0))
            parts.append(z3.Implies(newer.stale, older.stale))
        return Clause(
            "steps_in_order",
            every(parts),
            "The steps in flight stand in order without gaps, each with tokens; drafts are "
            "sampled; stale steps are older than those scheduled since.",
        )

    def room(self) -> Term:
        return self.steps[-1].tokens == 0

    def has_oldest(self) -> Term:
        return self.oldest.tokens > 0

    def empty(self) -> Term:
        return self.oldest.tokens == 0

    def one_at_most(self) -> Term:
        return every(s.tokens == 0 for s in self.steps[1:])

    def pushed(self, tokens: Term, drafts: Term, samples: Term) -> dict[str, Term]:
        after: dict[str, Term] = {}
        before: Term = z3.BoolVal(True)
        for s in self.steps:
            here = every((before, s.tokens == 0))
            after[name_of(s.tokens)] = z3.If(here, tokens, s.tokens)
            after[name_of(s.drafts)] = z3.If(here, drafts, s.drafts)
            after[name_of(s.samples)] = z3.If(here, samples, s.samples)
            before = s.tokens > 0
        return after

    def popped(self) -> dict[str, Term]:
        none = Step(z3.IntVal(0), z3.IntVal(0), z3.BoolVal(False), z3.BoolVal(False))
        after = {}
        for s, following in zip(self.steps, [*self.steps[1:], none], strict=True):
            after[name_of(s.tokens)] = following.tokens
            after[name_of(s.drafts)] = following.drafts
            after[name_of(s.samples)] = following.samples
            after[name_of(s.stale)] = following.stale
        return after

    def made_stale(self) -> dict[str, Term]:
        return {name_of(s.stale): s.tokens > 0 for s in self.steps}


class Sums:
    """Any number of steps in flight, of which the sums are kept.

    The oldest step is an input: whatever fits the sums. Stale steps come before the others, since
    a preemption makes every step stale that is in flight.
    """

    def __init__(self) -> None:
        self.steps = z3.Int("sum_steps")
        names = "sum_tokens sum_stale sum_drafts sum_planned sum_sampling"
        self.tokens, self.stale_tokens, self.fresh_drafts, self.planned, self.sampling = z3.Ints(
            names
        )
        self.fields: tuple[Term, ...] = (
            self.steps,
            self.tokens,
            self.stale_tokens,
            self.fresh_drafts,
            self.planned,
            self.sampling,
        )
        self.oldest = Step(
            z3.Int("oldest_tokens"),
            z3.Int("oldest_drafts"),
            z3.Bool("oldest_samples"),
            self.stale_tokens > 0,
        )
        self.inputs: tuple[Term, ...] = (
            self.oldest.tokens,
            self.oldest.drafts,
            self.oldest.samples,
        )
        self.lemmas: tuple[Clause, ...] = (
            Clause(
                "sums_of_steps",
                every(
                    (
                        self.stale_tokens >= 0,
                        self.tokens >= self.stale_tokens,
                        self.sampling >= 0,
                        self.steps >= self.sampling,
                        self.fresh_drafts >= 0,
                        self.planned == self.sampling + self.fresh_drafts,
                        self.tokens >= self.steps,
                        z3.Implies(self.steps == 0, self.tokens == 0),
                        self.tokens - self.stale_tokens >= self.sampling,
                        z3.Implies(self.sampling == 0, self.fresh_drafts == 0),
                    )
                ),
                "The sums are those of some steps in flight: each has a token at least, and "
                "drafts only where it samples.",
            ),
        )

    def room(self) -> Term:
        return z3.BoolVal(True)

    def empty(self) -> Term:
        return self.tokens == 0

    def one_at_most(self) -> Term:
        return self.steps <= 1

    def has_oldest(self) -> Term:
        s = self.oldest
        fresh = z3.Not(s.stale)
        mine = every((fresh, s.samples))
        rest = self.tokens - s.tokens
        rest_sampling = self.sampling - number(mine)
        rest_drafts = self.fresh_drafts - z3.If(mine, s.drafts, 0)
        return every(
            (
                s.tokens > 0,
                s.drafts >= 0,
                z3.Implies(z3.Not(s.samples), s.drafts == 0),
                self.steps >= 1,
                rest >= self.steps - 1,
                z3.Implies(self.steps == 1, rest == 0),
                self.steps - 1 >= rest_sampling,
                z3.If(
                    s.stale,
                    s.tokens <= self.stale_tokens,
                    every(
                        (
                            rest - self.stale_tokens >= rest_sampling,
                            rest_sampling >= 0,
                            rest_drafts >= 0,
                            z3.Implies(rest_sampling == 0, rest_drafts == 0),
                        )
                    ),
                ),
            )
        )

    def pushed(self, tokens: Term, drafts: Term, samples: Term) -> dict[str, Term]:
        return {
            "sum_steps": self.steps + 1,
            "sum_tokens": self.tokens + tokens,
            "sum_drafts": self.fresh_drafts + drafts,
            "sum_planned": self.planned + z3.If(samples, 1 + drafts, 0),
            "sum_sampling": self.sampling + number(samples),
        }

    def popped(self) -> dict[str, Term]:
        s = self.oldest
        mine = every((z3.Not(s.stale), s.samples))
        return {
            "sum_steps": self.steps - 1,
            "sum_tokens": self.tokens - s.tokens,
            "sum_stale": self.stale_tokens - z3.If(s.stale, s.tokens, 0),
            "sum_drafts": self.fresh_drafts - z3.If(mine, s.drafts, 0),
            "sum_planned": self.planned - z3.If(mine, 1 + s.drafts, 0),
            "sum_sampling": self.sampling - number(mine),
        }

    def made_stale(self) -> dict[str, Term]:
        return {
            "sum_stale": self.tokens,
            "sum_drafts": z3.IntVal(0),
            "sum_planned": z3.IntVal(0),
            "sum_sampling": z3.IntVal(0),
        }
