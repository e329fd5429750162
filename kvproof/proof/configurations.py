"""Z3 looks for a configuration in which a rule is missed: budget, block size, k, threshold, pool.

The relation is one request's block table with the configuration as unknown parameters: what is
scheduled, which slots are allocated, which may be written. What is found is given to the explorer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import z3

from kvproof.checker.check import check
from kvproof.model.rules import Rule
from kvproof.model.scope import RequestSpec, Scope
from kvproof.proof.relation import Clause, Operation, Relation, Term, Value, every, least, most
from kvproof.proof.unrolling import Path, search
from kvproof.trace.trace import Trace

LARGEST = 8
"""Every number of a configuration is at most this."""

_STEPS = 8


@dataclass
class _World:
    """The configuration, the request, and the arithmetic of one call of schedule()."""

    off: frozenset[Rule]

    def __post_init__(self) -> None:
        (
            self.budget,
            self.block_size,
            self.k,
            self.threshold,
            self.pool,
            self.max_model_len,
            self.prompt,
            self.max_tokens,
        ) = self.numbers = z3.Ints(
            "max_num_batched_tokens block_size num_speculative_tokens "
            "long_prefill_token_threshold num_blocks max_model_len prompt_len max_tokens"
        )
        self.eagle, self.crowd = z3.Bools("drafter_has_kv another_waits")
        self.computed, self.tokens, self.drafts, self.blocks = z3.Ints(
            "num_computed num_tokens num_drafts blocks"
        )
        self.written, self.flying = z3.Ints("written_end in_flight_drafts")
        self.busy, self.samples = z3.Bools("step_in_flight step_samples")

    @property
    def fields(self) -> tuple[Term, ...]:
        return (
            self.computed,
            self.tokens,
            self.drafts,
            self.blocks,
            self.written,
            self.flying,
            self.busy,
            self.samples,
        )

    @property
    def lookahead(self) -> Term:
        return z3.If(self.eagle, self.k, z3.IntVal(0))

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    def start_up(self) -> Term:
        """What vLLM accepts at start-up (model/scope.py), within the bounds of the search."""
        table = z3.Int("table_len")
        return every(
            (
                *(every((n >= 1, n <= LARGEST)) for n in self.numbers if n is not self.threshold),
                self.k <= 3,
                self.threshold >= 0,
                self.threshold <= self.max_model_len,
                self.prompt < self.max_model_len,
                self.is_ceiling(table, self.max_model_len),
                self.pool - 1 >= table,
            )
        )

    def is_ceiling(self, blocks: Term, slots: Term) -> Term:
        """Whether `blocks` are just enough for the slots."""
        size = self.block_size
        return every((blocks >= 0, blocks * size >= slots, (blocks - 1) * size < slots))

    def scheduled(self, wanted: Term) -> Term:
        """The tokens that are scheduled of those wanted."""
        capped = every((self.crowd, self.threshold > 0, self.threshold < wanted))
        return least(z3.If(capped, self.threshold, wanted), self.budget)

    def step(self, tokens: Term) -> tuple[Term, dict[str, Term]]:
        """Slots for the tokens are allocated and the step goes in flight: guard and effect."""
        held = z3.Int("held")
        need = self.computed + tokens
        if self.on(Rule.reserve_lookahead):
            need = need + self.lookahead
        if self.on(Rule.cap_slots_at_model_length):
            need = least(need, self.max_model_len)
        enough = z3.Int("enough")
        computed = self.computed + tokens
        samples = computed >= self.tokens
        end = computed + z3.If(samples, self.lookahead, z3.IntVal(0))
        guard = every(
            (
                z3.Not(self.busy),
                tokens >= 1,
                self.is_ceiling(enough, need),
                held == most(self.blocks, enough),
                held <= self.pool - 1,
            )
        )
        carried = least(most(computed - self.tokens, z3.IntVal(0)), self.drafts)
        return guard, {
            "num_computed": computed,
            "blocks": held,
            "written_end": least(end, self.max_model_len),
            "in_flight_drafts": carried,
            "num_drafts": z3.IntVal(0),
            "step_in_flight": z3.BoolVal(True),
            "step_samples": samples,
        }


def configurations(off: frozenset[Rule]) -> Relation:
    """One request's block table under an unknown configuration, with these rules switched off."""
    w = _World(off)
    first = w.scheduled(w.tokens)
    admit_guard, admitted = w.step(first)
    wanted = w.scheduled(w.tokens + w.drafts - w.computed)
    if w.on(Rule.cap_positions_at_model_length):
        wanted = least(wanted, w.max_model_len - w.computed - 1)
    serve_guard, served = w.step(wanted)
    accepted, proposed = z3.Ints("accepted proposed")
    tokens = z3.If(w.samples, w.tokens + 1 + accepted, w.tokens)
    operations = (
        Operation(
            "admit",
            "The request is admitted with its first chunk.",
            every((w.computed == 0, w.blocks == 0, admit_guard)),
            admitted,
            (z3.Int("held"), z3.Int("enough")),
        ),
        Operation(
            "serve",
            "The running request is scheduled.",
            every((w.blocks > 0, serve_guard)),
            served,
            (z3.Int("held"), z3.Int("enough")),
        ),
        Operation(
            "output",
            "The step's output comes with accepted drafts; the request goes on, and the drafter "
            "proposes.",
            every(
                (
                    w.busy,
                    accepted >= 0,
                    accepted <= w.flying,
                    tokens < least(w.max_model_len, w.prompt + w.max_tokens),
                    proposed >= 0,
                    proposed <= z3.If(w.samples, w.k, z3.IntVal(0)),
                )
            ),
            {
                "num_tokens": tokens,
                "num_computed": w.computed - z3.If(w.samples, w.flying - accepted, 0),
                "num_drafts": proposed,
                "in_flight_drafts": z3.IntVal(0),
                "step_in_flight": z3.BoolVal(False),
                "step_samples": z3.BoolVal(False),
                "written_end": z3.IntVal(0),
            },
            (accepted, proposed),
        ),
    )
    at_rest = [z3.Not(f) if z3.is_bool(f) else f == 0 for f in w.fields if f is not w.tokens]
    return Relation(
        name="configurations",
        title="One request's block table under an unknown configuration",
        parameters=(*w.numbers, w.eagle, w.crowd, z3.Int("table_len")),
        assumptions=(Clause("start_up", w.start_up(), "What vLLM accepts at start-up."),),
        fields=w.fields,
        initial=every((w.tokens == w.prompt, *at_rest)),
        operations=operations,
        properties=(
            Clause(
                "written_slots_owned",
                w.written <= w.blocks * w.block_size,
                "Every slot that the step may write, lookahead included, lies in the request's "
                "blocks.",
                ("WrittenSlotsOwned",),
            ),
            Clause(
                "table_fits",
                w.blocks <= z3.Int("table_len"),
                "The request has no more blocks than a row of the block table has places.",
                ("BlockConservation",),
            ),
            Clause(
                "positions_within_model_length",
                z3.Implies(w.busy, w.computed <= w.max_model_len),
                "No position past the model length is computed.",
                ("BudgetRespected",),
            ),
        ),
        lemmas=(),
        linear=False,
    )


SEARCHED = (
    Rule.reserve_lookahead,
    Rule.cap_slots_at_model_length,
    Rule.cap_positions_at_model_length,
)
"""Rules for which the search has something to find."""


@dataclass(frozen=True)
class Found:
    """A configuration, the symbolic run in it, and the explorer's run in the same."""

    configuration: Mapping[str, Value]
    run: Path
    scope: Scope
    trace: Trace | None

    @property
    def confirmed(self) -> bool:
        """Whether the explorer breaks an invariant that the broken property answers."""
        relation = configurations(frozenset())
        wanted = {i for name in self.run.broken for i in relation.clause(name).invariants}
        return self.trace is not None and not wanted.isdisjoint(self.trace.broken)


def find_configuration(rule: Rule | None, *, seconds: float = 60.0) -> Found | None:
    """A configuration with a shortest run that breaks a property without the rule."""
    off = frozenset() if rule is None else frozenset({rule})
    relation = configurations(off)
    run, _searched = search(relation, relation.properties, steps=_STEPS, seconds=seconds)
    if run is None:
        return None
    scope = scope_of(run.parameters, off)
    done = check(scope)
    done.result.finished()
    return Found(run.parameters, run, scope, done.trace)


def scope_of(values: Mapping[str, Value], off: frozenset[Rule]) -> Scope:
    """The scope of a configuration that Z3 has found."""
    requests = [RequestSpec((1,) * values["prompt_len"], max_tokens=values["max_tokens"])]
    if values["another_waits"]:
        requests.append(RequestSpec((1,), max_tokens=1))
    return Scope(
        name="found-by-z3",
        requests=tuple(requests),
        num_blocks=values["num_blocks"],
        block_size=values["block_size"],
        max_num_seqs=1,
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_model_len=values["max_model_len"],
        long_prefill_token_threshold=values["long_prefill_token_threshold"],
        num_speculative_tokens=values["num_speculative_tokens"],
        spec_method="eagle" if values["drafter_has_kv"] else "ngram",
        prefix_caching=False,
        rules_off=tuple(sorted(rule.name for rule in off)),
    )
