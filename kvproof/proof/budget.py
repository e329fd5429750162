"""The budget arithmetic of one call of schedule(), for any budgets, demands and caps.

The call is cut where a number is decided: a request asks for tokens, victims leave the step and
give theirs back, the request is put into the step. Fields with an R have one copy a request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import z3

from kvproof.model.rules import Rule
from kvproof.proof.relation import Clause, Operation, Relation, Term, every, least, name_of, some


@dataclass
class _Call:
    """The fields and parameters of one call; `on` tells whether a rule is on."""

    requests: int
    off: frozenset[Rule]

    def __post_init__(self) -> None:
        (
            self.budget,
            self.granted,
            self.input_budget,
            self.slots,
            self.max_model_len,
            self.threshold,
            self.k,
        ) = z3.Ints(
            "token_budget granted input_budget draft_slots max_model_len threshold num_spec_tokens"
        )
        self.priority, self.chunked = z3.Bools("priority_policy chunked_prefill")
        self.token_left, self.input_left = z3.Ints("token_left input_left")
        self.asking, self.asked, self.asked_start = z3.Ints("asking asked asked_start")
        self.assertion = z3.Bool("nothing_to_schedule")
        numbers = range(self.requests)
        self.scheduled = [z3.Int(f"scheduled{r}") for r in numbers]
        self.start = [z3.Int(f"start{r}") for r in numbers]
        self.in_step = [z3.Bool(f"in_step{r}") for r in numbers]
        self.victim = [z3.Bool(f"victim{r}") for r in numbers]

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    @property
    def parameters(self) -> tuple[Term, ...]:
        return (
            self.budget,
            self.granted,
            self.input_budget,
            self.slots,
            self.max_model_len,
            self.threshold,
            self.k,
            self.priority,
            self.chunked,
        )

    @property
    def fields(self) -> tuple[Term, ...]:
        return (
            self.token_left,
            self.input_left,
            self.asking,
            self.asked,
            self.asked_start,
            self.assertion,
            *self.scheduled,
            *self.start,
            *self.in_step,
            *self.victim,
        )

    @property
    def spent(self) -> Term:
        return z3.Sum(*self.scheduled)

    @property
    def spent_input(self) -> Term:
        pairs = zip(self.scheduled, self.in_step, strict=True)
        return z3.Sum(*(z3.If(inside, n + self.slots, 0) for n, inside in pairs))

    def open(self) -> list[Term]:
        """What both scans ask of the budgets before they look at a request."""
        guards = [self.asking == 0, z3.Not(self.assertion)]
        if self.on(Rule.respect_token_budget):
            guards.append(self.token_left > 0)
        if self.on(Rule.respect_input_budget):
            guards.append(self.input_left > self.slots)
        return guards

    def within_threshold(self, tokens: Term) -> Term:
        cut = every((self.threshold > 0, self.threshold < tokens))
        return z3.If(cut, self.threshold, tokens)

    def asks(self, r: int, tokens: Term, start: Term) -> dict[str, Term]:
        return {"asking": z3.IntVal(r + 1), "asked": tokens, "asked_start": start}


_NOBODY = {"asking": z3.IntVal(0), "asked": z3.IntVal(0), "asked_start": z3.IntVal(0)}


def _ask_running(call: _Call, r: int) -> Operation:
    wanted, computed = z3.Ints("wanted num_computed")
    tokens = call.within_threshold(wanted)
    if call.on(Rule.respect_token_budget):
        tokens = least(tokens, call.token_left)
    if call.on(Rule.respect_input_budget):
        tokens = least(tokens, call.input_left - call.slots)
    if call.on(Rule.cap_positions_at_model_length):
        tokens = least(tokens, call.max_model_len - computed - 1)
    return Operation(
        f"ask R{r}",
        f"R{r} runs and asks for its tokens, cut to what is left.",
        every(
            (
                *call.open(),
                z3.Not(call.in_step[r]),
                z3.Not(call.victim[r]),
                # What the proof of the counters gives: demand_is_never_negative.
                wanted >= 0,
                computed >= 0,
                computed <= call.max_model_len - 1,
                tokens != 0,
            )
        ),
        call.asks(r, tokens, computed),
        (wanted, computed),
    )


def _ask_waiting(call: _Call, r: int) -> Operation:
    known, computed = z3.Ints("num_tokens num_computed")
    padded = z3.Bool("padded")
    room = call.max_model_len
    if call.on(Rule.respect_token_budget):
        room = least(room, call.token_left)
    if call.on(Rule.respect_input_budget):
        room = least(room, call.input_left - call.slots)
    rest = known - computed
    tokens = call.within_threshold(z3.If(padded, 1 + call.k, rest))
    cut = least(tokens, room)
    nothing = cut <= 0
    asks = call.asks(r, cut, computed)
    before = {name_of(field): field for field in (call.asking, call.asked, call.asked_start)}
    guard = [
        *call.open(),
        z3.Not(call.in_step[r]),
        # What the proof of the counters gives: alive_below_the_limit.
        known >= 1,
        known <= call.max_model_len - 1,
        computed >= 0,
        computed <= (known - 1 if call.on(Rule.recompute_last_token) else known),
        z3.Implies(
            padded,
            every(
                (
                    call.k > 0,
                    rest == 1,
                    computed + call.k + 2 <= call.max_model_len,
                    1 + call.k <= room,
                )
            ),
        ),
        some((call.chunked, tokens <= room)),
    ]
    if call.on(Rule.admit_nobody_after_preemption):
        guard += [z3.Not(victim) for victim in call.victim]
    return Operation(
        f"ask waiting R{r}",
        f"R{r} waits and asks for its tokens, a padded decode for 1 + k.",
        every(guard),
        {name: z3.If(nothing, before[name], asks[name]) for name in asks}
        | {"nothing_to_schedule": nothing},
        (known, computed, padded),
    )


def _evict(call: _Call, v: int) -> Operation:
    """Under FCFS the victim is the last one running, so it stands at the cursor or behind."""
    out: dict[str, Term] = {}
    leaves = every((call.priority, call.in_step[v]))
    if call.on(Rule.drop_victim_from_step):
        out = {
            f"scheduled{v}": z3.If(leaves, 0, call.scheduled[v]),
            f"start{v}": z3.If(leaves, 0, call.start[v]),
            f"in_step{v}": every((call.in_step[v], z3.Not(leaves))),
        }
        if call.on(Rule.refund_victim_budget):
            tokens = call.scheduled[v]
            given_back = tokens + call.slots
            out |= {
                "token_left": z3.If(leaves, call.token_left + tokens, call.token_left),
                "input_left": z3.If(leaves, call.input_left + given_back, call.input_left),
            }
    itself = call.asking == v + 1
    names = {name_of(field): field for field in (call.asking, call.asked, call.asked_start)}
    guard = [call.asking > 0, z3.Not(call.victim[v])]
    if call.on(Rule.preempt_policy_last):
        guard.append(some((call.priority, z3.Not(call.in_step[v]))))
    return Operation(
        f"evict R{v}",
        f"R{v} is preempted for the one that asks, or for itself; what it was given in this call "
        "goes back.",
        every(guard),
        out
        | {name: z3.If(itself, none, names[name]) for name, none in _NOBODY.items()}
        | {f"victim{v}": z3.BoolVal(True)},
    )


def _put(call: _Call, r: int) -> Operation:
    return Operation(
        f"put R{r}",
        f"R{r} has its slots and is put into the step.",
        call.asking == r + 1,
        {
            f"scheduled{r}": call.asked,
            f"start{r}": call.asked_start,
            f"in_step{r}": z3.BoolVal(True),
            "token_left": call.token_left - call.asked,
            "input_left": call.input_left - call.asked - call.slots,
            **_NOBODY,
        },
    )


def _properties(call: _Call) -> Iterable[Clause]:
    rows = list(zip(call.scheduled, call.start, call.in_step, call.victim, strict=True))
    yield Clause(
        "budgets_are_what_is_left",
        every(
            (
                call.token_left == call.granted - call.spent,
                call.input_left == call.input_budget - call.spent_input,
            )
        ),
        "What is left of the budgets is what the requests of the step have not spent, draft slots "
        "included.",
        ("BudgetRespected",),
    )
    yield Clause(
        "never_negative",
        every((call.token_left >= 0, call.input_left >= 0)),
        "Neither budget is ever negative.",
        ("BudgetRespected", "NoAssertion"),
    )
    yield Clause(
        "within_the_budgets",
        every((call.spent <= call.budget, call.spent_input <= call.input_budget)),
        "The step has no more tokens than its budget and needs no more input slots.",
        ("BudgetRespected",),
        derived=True,
    )
    yield Clause(
        "every_count_is_positive",
        every(z3.If(inside, n >= 1, n == 0) for n, _start, inside, _victim in rows),
        "Every request of the step has at least one token.",
        ("BudgetRespected",),
    )
    yield Clause(
        "within_the_caps",
        every(
            z3.Implies(
                inside,
                every(
                    (
                        some((call.threshold == 0, n <= call.threshold)),
                        start + n <= call.max_model_len,
                    )
                ),
            )
            for n, start, inside, _victim in rows
        ),
        "No request has more tokens than the long-prefill threshold allows, nor a position past "
        "the model length.",
        ("BudgetRespected",),
    )
    yield Clause(
        "no_victim_in_the_step",
        every(z3.Not(every((inside, victim))) for _n, _start, inside, victim in rows),
        "Nobody is in the step that was preempted in this call.",
        ("ScheduleSet",),
    )
    yield Clause(
        "something_to_schedule",
        z3.Not(call.assertion),
        "No admission comes to zero tokens, which vLLM asserts.",
        ("NoAssertion",),
    )


def _lemmas(call: _Call) -> Iterable[Clause]:
    askers = [call.asking == r + 1 for r in range(call.requests)]
    yield Clause(
        "asked_fits",
        z3.Implies(
            call.asking != 0,
            every(
                (
                    call.asked >= 1,
                    call.asked <= call.token_left,
                    call.asked + call.slots <= call.input_left,
                    some((call.threshold == 0, call.asked <= call.threshold)),
                    call.asked_start >= 0,
                    call.asked_start + call.asked <= call.max_model_len,
                )
            ),
        ),
        "What was asked for fits in what is left; victims only add to that before it is spent.",
    )
    yield Clause(
        "asker_is_not_in_the_step",
        every(
            (
                call.asking >= 0,
                call.asking <= call.requests,
                *(
                    z3.Implies(asks, z3.Not(some((inside, victim))))
                    for asks, inside, victim in zip(askers, call.in_step, call.victim, strict=True)
                ),
            )
        ),
        "The one that asks was not served in this call before, and is no victim.",
    )


def _assumptions(call: _Call) -> Iterable[Clause]:
    yield Clause(
        "granted",
        every((call.budget >= 1, some((call.granted == call.budget, call.granted == 0)))),
        "The step may schedule the whole token budget, or nothing while the engine is paused.",
    )
    yield Clause(
        "draft_slots",
        every((call.slots >= 0, call.input_budget > call.slots)),
        "The input budget exceeds the draft slots of one request (checked at start-up).",
    )
    yield Clause(
        "lengths",
        every((call.max_model_len >= 2, call.threshold >= 0, call.k >= 0)),
        "The model length is 2 at least; threshold and k are not negative.",
    )


@cache
def budget(off: frozenset[Rule] = frozenset(), requests: int = 6) -> Relation:
    """The relation of one call over `requests` requests, with these rules switched off."""
    call = _Call(requests, off)
    numbers = range(requests)
    left = (call.token_left, call.input_left)
    others = [f for f in call.fields if not any(f.eq(budget) for budget in left)]
    return Relation(
        name="budget",
        title="The budget arithmetic of one schedule()",
        parameters=call.parameters,
        assumptions=tuple(_assumptions(call)),
        fields=call.fields,
        initial=every(
            (
                call.token_left == call.granted,
                call.input_left == call.input_budget,
                *(z3.Not(f) if z3.is_bool(f) else f == 0 for f in others),
            )
        ),
        operations=(
            *(_ask_running(call, r) for r in numbers),
            *(_ask_waiting(call, r) for r in numbers),
            *(_evict(call, r) for r in numbers),
            *(_put(call, r) for r in numbers),
            Operation(
                "end",
                "The scan ends; what was asked for and not given is forgotten.",
                z3.BoolVal(True),
                _NOBODY,
            ),
        ),
        properties=tuple(_properties(call)),
        lemmas=tuple(_lemmas(call)),
    )
