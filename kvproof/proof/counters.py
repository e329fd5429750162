"""The counters of one request, for any lengths, drafts and limits, and any pipeline depth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import z3

from kvproof.model.rules import Rule
from kvproof.proof.pipeline import Pipeline, Slots, Sums, cleared
from kvproof.proof.relation import (
    Clause,
    Operation,
    Relation,
    Term,
    every,
    least,
    most,
    name_of,
    some,
)

ABSENT, WAITING, RUNNING, LOADING, FINISHED = range(5)
"""`life`: no request (not arrived or gone), in a waiting queue (preempted or not), running,
waiting for its load, and finished while a transfer holds its blocks."""


@dataclass
class _Request:
    """The fields and parameters of one request, and what operations do to them."""

    steps: Pipeline
    off: frozenset[Rule]

    def __post_init__(self) -> None:
        self.prompt, self.max_tokens, self.max_model_len, self.k = z3.Ints(
            "prompt_len max_tokens max_model_len num_spec_tokens"
        )
        self.is_async = z3.Bool("async_scheduling")
        (
            self.life,
            self.tokens,
            self.computed,
            self.placeholders,
            self.in_flight,
            self.stale,
            self.drafts,
            self.published,
        ) = z3.Ints(
            "life num_tokens num_computed placeholders in_flight stale num_drafts published"
        )
        self.drop, self.chunk, self.drafting = z3.Bools("drop_stale prefill_chunk drafting")

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    @property
    def parameters(self) -> tuple[Term, ...]:
        return (self.prompt, self.max_tokens, self.max_model_len, self.k, self.is_async)

    @property
    def counters(self) -> tuple[Term, ...]:
        return (
            self.tokens,
            self.computed,
            self.placeholders,
            self.in_flight,
            self.stale,
            self.drafts,
            self.published,
            self.drop,
            self.chunk,
            self.drafting,
        )

    @property
    def fields(self) -> tuple[Term, ...]:
        return (self.life, *self.counters, *self.steps.fields)

    @property
    def limit(self) -> Term:
        """The tokens at which the request ends by length."""
        return least(self.max_model_len, self.prompt + self.max_tokens)

    @property
    def alive(self) -> Term:
        return every((self.life >= WAITING, self.life <= LOADING))

    @property
    def alone(self) -> Term:
        """Synchronous speculation has one step in flight at most."""
        return z3.Implies(every((z3.Not(self.is_async), self.k > 0)), self.steps.empty())

    @property
    def may_start(self) -> Term:
        """Deliverable stale output was drained."""
        if not self.on(Rule.drain_stale_outputs):
            return z3.BoolVal(True)
        return some((self.stale == 0, self.drop))

    def forgotten(self) -> dict[str, Term]:
        """The request is gone (forget_request)."""
        return cleared(self.fields)

    def either(
        self, condition: Term, then: dict[str, Term], other: dict[str, Term]
    ) -> dict[str, Term]:
        names = {name_of(term): term for term in self.fields}
        return {
            name: z3.If(condition, then.get(name, names[name]), other.get(name, names[name]))
            for name in {**then, **other}
        }

    def published_within(self, after: Term, start: Term, known: Term) -> Term:
        """Publication goes up to a full block of the known tokens, never back (cache_blocks)."""
        return every((after >= start, after <= most(start, known)))


def _arrival(q: _Request) -> Operation:
    return Operation(
        "add",
        "The request arrives.",
        every((q.life == ABSENT, q.steps.empty())),
        {"life": z3.IntVal(WAITING), "num_tokens": q.prompt},
    )


def _dispatch(q: _Request, start: Term, tokens: Term, drafts: Term, left: Term) -> dict[str, Term]:
    """Scheduled tokens count as computed (Scheduler and AsyncScheduler, update_after_schedule).

    `left` drafts stay unless new ones are planned.
    """
    computed = start + tokens
    chunk = computed < q.tokens + q.placeholders
    plans = every((z3.Not(chunk), q.is_async))
    return {
        "life": z3.IntVal(RUNNING),
        "num_computed": computed,
        "in_flight": q.in_flight + tokens,
        "prefill_chunk": chunk,
        "placeholders": z3.If(plans, q.placeholders + 1 + drafts, q.placeholders),
        "num_drafts": z3.If(plans, q.k, left),
        "published": z3.Int("published_after"),
    } | q.steps.pushed(tokens, drafts, z3.Not(chunk))


def _serve(q: _Request) -> Operation:
    tokens, published = z3.Ints("scheduled published_after")
    guard = [
        q.life == RUNNING,
        z3.Not(q.drafting),
        q.steps.room(),
        q.alone,
        tokens != 0,
        tokens <= q.tokens + q.drafts + q.placeholders - q.computed,
        # Nothing but a negative demand makes the scheduler cut below one token.
        z3.Implies(tokens < 1, tokens == q.tokens + q.drafts + q.placeholders - q.computed),
        _publishes(q, q.published, q.computed + tokens),
    ]
    if q.on(Rule.cap_positions_at_model_length):
        guard.append(tokens <= q.max_model_len - q.computed - 1)
    if q.on(Rule.stop_scheduling_at_max_tokens):
        certain = q.computed + 1
        if q.on(Rule.count_only_certain_tokens):
            certain = certain - (q.placeholders - 1)
        guard.append(z3.Implies(q.placeholders > 0, certain < q.prompt + q.max_tokens))
    carried = tokens + q.computed - q.tokens - q.placeholders
    drafts = z3.If(every((q.drafts > 0, carried > 0)), least(carried, q.drafts), z3.IntVal(0))
    return Operation(
        "serve",
        "The running request is scheduled, its drafts with it as far as they fit.",
        every(guard),
        _dispatch(q, q.computed, tokens, drafts, z3.IntVal(0)),
        (tokens, published),
    )


def _publishes(q: _Request, start: Term, known: Term) -> Term:
    """What allocate_slots publishes: committed tokens only, while the rule is on."""
    if q.on(Rule.publish_committed_tokens_only):
        known = least(known, q.tokens)
    return q.published_within(z3.Int("published_after"), start, known)


def _admit(q: _Request) -> Operation:
    tokens, hit, adopted, published = z3.Ints("scheduled hit adopted published_after")
    padded = z3.Bool("padded")
    fresh = q.computed == 0
    rest = q.tokens - hit
    longest = q.tokens - 1 if q.on(Rule.recompute_last_token) else q.tokens
    return Operation(
        "admit",
        "The waiting request is admitted with its prefix hit, or goes on from its load; a decode "
        "may be padded with drafts that will be rejected.",
        every(
            (
                q.life == WAITING,
                q.may_start,
                q.steps.room(),
                q.alone,
                z3.If(fresh, every((hit >= 0, hit <= longest)), hit == q.computed),
                z3.If(
                    fresh,
                    every((adopted >= q.published, adopted <= most(hit, q.published))),
                    adopted == q.published,
                ),
                z3.If(
                    padded,
                    every(
                        (
                            q.k > 0,
                            rest == 1,
                            tokens == 1 + q.k,
                            hit + tokens + 1 <= q.max_model_len,
                        )
                    ),
                    every((tokens >= 1, tokens <= rest)),
                ),
                _publishes(q, adopted, hit + tokens),
            )
        ),
        _dispatch(q, hit, tokens, z3.If(padded, q.k, z3.IntVal(0)), q.drafts),
        (tokens, hit, adopted, published, padded),
    )


def _loads(q: _Request) -> tuple[Operation, ...]:
    hit, adopted, kept, published = z3.Ints("hit adopted kept published_after")
    back = z3.If(q.computed == q.tokens, q.tokens - 1, q.computed)
    if not q.on(Rule.recompute_last_loaded_token):
        back = q.computed
    waking = q.published_within(published, q.published, q.computed)
    return (
        Operation(
            "load",
            "An asynchronous load begins: its tokens count as computed.",
            every(
                (
                    q.life == WAITING,
                    q.computed == 0,
                    q.may_start,
                    hit > 0,
                    hit <= q.tokens,
                    adopted >= q.published,
                    adopted <= most(hit, q.published),
                )
            ),
            {"life": z3.IntVal(LOADING), "num_computed": hit, "published": adopted},
            (hit, adopted),
        ),
        Operation(
            "load_fails",
            "Blocks of the load are invalid: computed tokens go back to the first of them.",
            every((q.life == LOADING, kept >= 0, kept <= q.computed)),
            {"num_computed": kept},
            (kept,),
        ),
        Operation(
            "wake",
            "The load is taken in; the last token is left to compute.",
            every(
                (
                    q.life == LOADING,
                    some((waking, every((q.computed == 0, published == 0)))),
                )
            ),
            {"life": z3.IntVal(WAITING), "num_computed": back, "published": published},
            (published,),
        ),
    )


def _output(q: _Request) -> Operation:
    """One step's output for one request (update_from_output)."""
    accepted, stop_at, published = z3.Ints("accepted stop_at published_after")
    held = z3.Bool("held")
    step = q.steps.oldest
    is_stale = q.stale > 0
    on_counters = z3.BoolVal(True)
    if q.on(Rule.keep_stale_output_off_counters):
        on_counters = z3.Not(is_stale)
    dropped = every((is_stale, q.drop))
    if not q.on(Rule.drop_stale_output_on_reset):
        dropped = z3.BoolVal(False)
    used = every((q.alive, z3.Not(dropped), step.samples))

    sampled = 1 + accepted
    rejected = z3.If(step.drafts > 0, step.drafts - accepted, z3.IntVal(0))
    computed = q.computed
    if q.on(Rule.roll_back_rejected_drafts):
        computed = z3.If(every((on_counters, computed > 0)), computed - rejected, computed)
    placeholders = q.placeholders
    if q.on(Rule.roll_back_rejected_placeholders):
        placeholders = z3.If(
            every((on_counters, placeholders > 0)), placeholders - rejected, placeholders
        )
    room = q.limit - q.tokens
    stops = every((stop_at > 0, stop_at <= sampled))
    ends = some((stops, sampled >= room))
    delivered = least(sampled, room)
    delivered = z3.If(stops, least(delivered, stop_at), delivered)
    if not q.on(Rule.trim_output_after_stop):
        delivered = sampled
    planned = every((q.is_async, on_counters))
    placeholders = z3.If(planned, placeholders - delivered, placeholders)
    publishes = every((used, q.is_async, q.life == RUNNING))
    in_flight = {
        "in_flight": q.in_flight - step.tokens,
        "stale": z3.If(is_stale, q.stale - step.tokens, q.stale),
    } | q.steps.popped()
    follow = every((z3.Not(q.is_async), q.k > 0, q.life == RUNNING))
    takes = every((follow, step.samples, z3.Not(q.chunk)))
    if not q.on(Rule.ignore_drafts_of_prefill_chunks):
        takes = follow
    not_used = in_flight | {
        "drafting": z3.If(follow, takes, q.drafting),
        "num_drafts": z3.If(every((follow, z3.Not(takes))), z3.IntVal(0), q.drafts),
    }
    settled = {
        "num_tokens": q.tokens + delivered,
        "num_computed": computed,
        "placeholders": placeholders,
        "published": published,
    }
    taken_in = not_used | settled
    finished = in_flight | settled | {"life": z3.IntVal(FINISHED)}
    at_end = q.either(held, finished, q.forgotten())
    effect = q.either(used, q.either(ends, at_end, taken_in), not_used)
    return Operation(
        "output",
        "The output of the oldest step is taken in: tokens are appended up to a stop or a limit, "
        "or it is dropped; what was rejected is taken back.",
        every(
            (
                q.life != ABSENT,
                q.steps.has_oldest(),
                accepted >= 0,
                accepted <= step.drafts,
                stop_at >= 0,
                z3.If(
                    publishes,
                    q.published_within(published, q.published, computed - placeholders),
                    published == q.published,
                ),
            )
        ),
        effect,
        (accepted, stop_at, published, held, *q.steps.inputs),
    )


def _drafts(q: _Request) -> Operation:
    proposed = z3.Int("proposed")
    return Operation(
        "drafts",
        "The drafter's proposals arrive (update_draft_token_ids).",
        every((q.drafting, q.steps.empty(), proposed >= 0, proposed <= q.k)),
        {"num_drafts": proposed, "drafting": z3.BoolVal(False)},
        (proposed,),
    )


def _preempt(q: _Request) -> Operation:
    drops = z3.Bool("drops")
    keeps = every((q.drop, q.stale > 0))
    effect: dict[str, Term] = {
        "life": z3.IntVal(WAITING),
        "drop_stale": some((drops, keeps)),
        "stale": q.in_flight,
        "published": z3.IntVal(0),
    }
    if q.on(Rule.forget_victim_progress):
        effect["num_computed"] = z3.IntVal(0)
    if q.on(Rule.forget_victim_drafts):
        effect["num_drafts"] = z3.IntVal(0)
    if q.on(Rule.forget_victim_placeholders):
        effect["placeholders"] = z3.IntVal(0)
    return Operation(
        "preempt",
        "The running request loses its blocks, by another's need or by a reset; what it has in "
        "flight is stale.",
        every((q.life == RUNNING, q.alone, z3.Not(q.drafting))),
        effect | q.steps.made_stale(),
        (drops,),
    )


def _end(q: _Request) -> tuple[Operation, ...]:
    held = z3.Bool("held")
    return (
        Operation(
            "abort",
            "The request ends from outside, or its load fails for good; a transfer may hold its "
            "blocks.",
            every((q.alive, z3.Not(q.drafting))),
            q.either(held, {"life": z3.IntVal(FINISHED)}, q.forgotten()),
            (held,),
        ),
        Operation(
            "report",
            "The transfer that held a finished request's blocks is done.",
            q.life == FINISHED,
            q.forgotten(),
        ),
    )


def _properties(q: _Request) -> Iterable[Clause]:
    known = q.life != ABSENT
    drafts = z3.If(q.is_async, z3.IntVal(0), q.steps.fresh_drafts)
    yield Clause(
        "in_flight_is_the_sum",
        every(
            (
                z3.Implies(known, q.in_flight == q.steps.tokens),
                z3.Implies(q.alive, q.stale == q.steps.stale_tokens),
            )
        ),
        "In-flight and stale tokens are the sums over the steps in flight.",
        ("CountersConsistent",),
    )
    yield Clause(
        "nothing_negative",
        z3.Implies(known, every((q.computed >= 0, q.placeholders >= 0, q.drafts >= 0))),
        "Computed tokens, placeholders and drafts are never negative.",
        ("CountersConsistent",),
    )
    yield Clause(
        "computed_within_known",
        z3.Implies(q.alive, q.computed <= q.tokens + q.placeholders + q.drafts + drafts),
        "Computed tokens exceed known ones only by placeholders and drafts.",
        ("CountersConsistent",),
        derived=True,
    )
    yield Clause(
        "no_token_past_the_limit",
        z3.Implies(known, q.tokens <= q.limit),
        "No token is delivered past the model length or past max_tokens.",
        ("CountersConsistent", "OutputExact"),
    )
    yield Clause(
        "waiting_without_placeholders",
        z3.Implies(every((q.alive, q.life != RUNNING)), q.placeholders == 0),
        "Only a running request has placeholders.",
        ("CountersConsistent",),
    )
    yield Clause(
        "placeholders_are_planned",
        z3.Implies(every((q.is_async, q.life == RUNNING)), q.placeholders == q.steps.planned),
        "The placeholders of a running request are what its steps in flight may bring.",
        ("NoWastedStep", "PublishedSound", "CountersConsistent"),
    )
    yield Clause(
        "published_is_committed",
        z3.Implies(q.alive, every((q.published >= 0, q.published <= q.tokens))),
        "No published block holds a token that is not committed.",
        ("PublishedSound",),
    )
    yield Clause(
        "demand_is_never_negative",
        z3.Implies(
            every((q.life == RUNNING, q.alone)),
            every(
                (
                    q.computed <= q.tokens + q.drafts + q.placeholders,
                    q.computed <= q.max_model_len - 1,
                )
            ),
        ),
        "A running request that may be scheduled asks for no negative number of tokens, and has no "
        "position at or past the model length: what the proof of the budgets assumes.",
        ("BudgetRespected", "CountersConsistent"),
    )
    yield Clause(
        "a_waiting_request_has_a_token_to_compute",
        z3.Implies(q.life == WAITING, q.computed < q.tokens),
        "A request that may be admitted has a token left to compute, unless a prefix hit takes it.",
        ("NoAssertion",),
    )


def _lemmas(q: _Request) -> Iterable[Clause]:
    yield from q.steps.lemmas
    yield Clause(
        "lives",
        every(
            (
                q.life >= ABSENT,
                q.life <= FINISHED,
                z3.Implies(
                    q.life == ABSENT,
                    every((q.steps.empty(), q.in_flight == 0, *(_is_zero(c) for c in q.counters))),
                ),
            )
        ),
        "What is not there has no counters.",
    )
    yield Clause(
        "alive_below_the_limit",
        z3.Implies(q.alive, every((q.tokens < q.limit, q.tokens >= q.prompt))),
        "A request that is not finished can take one more token.",
    )
    yield Clause(
        "nothing_fresh_in_flight_unless_running",
        z3.Implies(
            every((q.alive, q.life != RUNNING)),
            every(
                (
                    q.steps.tokens == q.steps.stale_tokens,
                    q.drafts == 0,
                    z3.Not(q.drafting),
                    z3.Implies(q.life == LOADING, q.computed <= q.tokens),
                    z3.Implies(q.life == LOADING, q.may_start),
                )
            ),
        ),
        "Whatever a request that does not run has in flight is stale, and it has no drafts.",
    )
    yield Clause(
        "running_output_is_dropped_if_stale",
        z3.Implies(every((q.life == RUNNING, q.stale > 0)), q.drop),
        "A running request has no stale output that would be delivered.",
    )
    yield Clause(
        "async_head",
        z3.Implies(
            every((q.is_async, q.life == RUNNING)),
            every(
                (
                    q.computed <= q.tokens + q.placeholders - 1,
                    z3.Implies(q.placeholders > 0, q.computed == q.tokens + q.placeholders - 1),
                    z3.Implies(q.placeholders == 0, q.steps.sampling == 0),
                    q.drafts <= q.k,
                    z3.Not(q.drafting),
                )
            ),
        ),
        "Under asynchronous scheduling a running request that has placeholders has computed "
        "everything but the last of them; one that has none is in its prefill or waits for "
        "nothing.",
    )
    yield Clause(
        "sync_head",
        z3.Implies(
            every((z3.Not(q.is_async), q.life == RUNNING)),
            every(
                (
                    q.placeholders == 0,
                    z3.If(
                        q.steps.sampling > 0,
                        every(
                            (
                                q.steps.sampling == 1,
                                q.computed == q.tokens + q.steps.fresh_drafts,
                                q.drafts == 0,
                                z3.Not(q.chunk),
                            )
                        ),
                        every((q.steps.fresh_drafts == 0, q.computed <= q.tokens - 1)),
                    ),
                    z3.Implies(z3.Not(q.steps.empty()), every((q.drafts == 0, z3.Not(q.drafting)))),
                    q.drafts <= q.k,
                )
            ),
        ),
        "Under synchronous scheduling one step in flight samples at most, and while it does the "
        "request has computed all that it knows and the drafts in flight.",
    )
    yield Clause(
        "sync_speculation_one_by_one",
        z3.Implies(
            every((q.alive, z3.Not(q.is_async), q.k > 0)),
            every((q.steps.one_at_most(), q.stale == 0)),
        ),
        "Synchronous speculation has one step in flight, and nobody is preempted meanwhile.",
    )
    yield Clause(
        "drafts_need_speculation",
        z3.Implies(q.k == 0, every((q.drafts == 0, q.steps.fresh_drafts == 0))),
        "Without speculation there are no drafts.",
    )


def _is_zero(term: Term) -> Term:
    return z3.Not(term) if z3.is_bool(term) else term == 0


@cache
def counters(off: frozenset[Rule] = frozenset(), depth: int | None = 3) -> Relation:
    """The relation with these rules switched off; no `depth` is any number of steps in flight."""
    steps: Pipeline = Sums() if depth is None else Slots(depth)
    q = _Request(steps, off)
    return Relation(
        name="counters" if depth is not None else "counters-any-depth",
        title="The counters of one request"
        + (
            f", {depth} steps in flight" if depth is not None else ", any number of steps in flight"
        ),
        parameters=q.parameters,
        assumptions=(
            Clause("prompt", q.prompt >= 1, "The prompt has a token at least."),
            Clause("max_tokens", q.max_tokens >= 1, "max_tokens is 1 at least."),
            Clause(
                "model_length",
                q.prompt < q.max_model_len,
                "The model length leaves room for one output behind the prompt.",
            ),
            Clause("drafts", q.k >= 0, "The number of speculative tokens is not negative."),
        ),
        fields=q.fields,
        initial=every(_is_zero(term) for term in q.fields),
        operations=(
            _arrival(q),
            _admit(q),
            *_loads(q),
            _serve(q),
            _output(q),
            _drafts(q),
            _preempt(q),
            *_end(q),
        ),
        properties=tuple(_properties(q)),
        lemmas=tuple(_lemmas(q)),
    )
