"""Block accounting, for any number of blocks: the life of one arbitrary block.

Each request has its own copies of the fields with an R (`table0`, `table1`, ...). An operation is
one call of the block pool, the KV cache manager or the connector's part of the scheduler, seen from
the block: which of the blocks in the call it is, if any, is an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

import z3

from kvproof.model.rules import Rule
from kvproof.proof.relation import (
    Clause,
    Operation,
    Relation,
    Term,
    every,
    most,
    name_of,
    number,
    some,
)

NONE, ALIVE, FINISHED = range(3)
NO_LOAD, PENDING, LANDED = range(3)
NOT_SENT, SENDING, SENT = range(3)

PER_REQUEST = (
    ("table", "times that the block stands in the request's table"),
    ("wrote", "last in-flight step of the request that was given the block, 0 none"),
    ("last", "last in-flight step of the request, 0 none (last_sched_seq)"),
    ("live", "0: absent or gone, 1: alive, 2: finished, its blocks held by a transfer"),
    ("load", "0: no load, 1: under way, 2: landed but not reported"),
    ("sending", "0: not sent, 1: being sent, 2: sent but not reported"),
)
FLAGS_PER_REQUEST = (
    ("waits", "the request waits for its load (WAITING_FOR_REMOTE_KVS)"),
    ("done", "its load was reported (finished_recving_kv_req_ids)"),
    ("moving", "its load writes the block"),
    ("sent_from", "its sending reads the block"),
)


@dataclass
class _Block:
    """The fields, and what operations do to them; `on` tells whether a rule is on."""

    requests: int
    off: frozenset[Rule]
    ref: Term = field(default_factory=lambda: z3.Int("ref_cnt"))
    free: Term = field(default_factory=lambda: z3.Int("free"))
    published: Term = field(default_factory=lambda: z3.Bool("published"))
    seq: Term = field(default_factory=lambda: z3.Int("seq_ahead"))
    deferred: Term = field(default_factory=lambda: z3.Int("deferred"))
    fence: Term = field(default_factory=lambda: z3.Int("fence"))
    defer: Term = field(default_factory=lambda: z3.Bool("defer_block_free"))

    def __post_init__(self) -> None:
        numbers = range(self.requests)
        self.table, self.wrote, self.last, self.live, self.load, self.sending = (
            [z3.Int(f"{name}{r}") for r in numbers] for name, _about in PER_REQUEST
        )
        self.waits, self.done, self.moving, self.sent_from = (
            [z3.Bool(f"{name}{r}") for r in numbers] for name, _about in FLAGS_PER_REQUEST
        )

    def on(self, rule: Rule) -> bool:
        return rule not in self.off

    @property
    def holders(self) -> Term:
        return z3.Sum(*self.table) + self.deferred

    def fields(self) -> tuple[Term, ...]:
        shared = (self.ref, self.free, self.published, self.seq, self.deferred, self.fence)
        own = (self.table, self.wrote, self.last, self.live, self.load, self.sending)
        flags = (self.waits, self.done, self.moving, self.sent_from)
        return (*shared, *(term for terms in (*own, *flags) for term in terms))

    def let_go(self, times: Term) -> dict[str, Term]:
        """`times` references are dropped (BlockPool.free_blocks)."""
        left = self.ref - times
        returns = number(every((times > 0, left == 0)))
        if not self.on(Rule.free_at_last_reference):
            returns = times
        return {"ref_cnt": left, "free": self.free + returns}

    def release(self, r: int) -> dict[str, Term]:
        """The request's blocks are freed, behind a fence where needed (free_request_blocks)."""
        times = self.table[r]
        now = self.let_go(times)
        clean = {f"table{r}": z3.IntVal(0)}
        if not self.on(Rule.fence_in_flight_frees):
            return now | clean
        waits = every((self.defer, self.last[r] > 0))
        bound = self.seq if self.on(Rule.fence_at_last_scheduled_step) else self.last[r] - 1
        later = z3.If(self.deferred > 0, most(self.fence, bound), bound)
        return {
            "ref_cnt": z3.If(waits, self.ref, now["ref_cnt"]),
            "free": z3.If(waits, self.free, now["free"]),
            "deferred": z3.If(waits, self.deferred + times, self.deferred),
            "fence": z3.If(every((waits, times > 0)), later, self.fence),
            **clean,
        }

    def forget(self, r: int) -> dict[str, Term]:
        """The request is gone (forget_request)."""
        return {
            f"live{r}": z3.IntVal(NONE),
            f"last{r}": z3.IntVal(0),
            f"waits{r}": z3.BoolVal(False),
            f"done{r}": z3.BoolVal(False),
        }

    def merged(
        self, condition: Term, then: dict[str, Term], other: dict[str, Term]
    ) -> dict[str, Term]:
        """One effect or the other."""
        names = {name_of(term): term for term in self.fields()}
        return {
            name: z3.If(condition, then.get(name, names[name]), other.get(name, names[name]))
            for name in {**then, **other}
        }


def _allocation(block: _Block, r: int, hit: Term, taken: Term) -> tuple[Term, dict[str, Term]]:
    """Hits are pinned (touch), new blocks are taken (get_new_block): the guard and the effect."""
    guard = [
        z3.Implies(hit, every((block.published, block.table[r] == 0))),
        z3.Implies(taken, block.free > 0),
    ]
    if block.on(Rule.pin_hits_before_allocating):
        guard.append(z3.Not(every((hit, taken))))
    in_queue = every((hit, z3.Not(taken), block.ref == 0))
    if not block.on(Rule.take_hit_from_free_queue):
        in_queue = z3.BoolVal(False)
    published = block.published
    if block.on(Rule.evict_hash_on_reuse):
        published = every((published, z3.Not(taken)))
    gained = number(hit) + number(taken)
    return every(guard), {
        "free": block.free - number(some((in_queue, taken))),
        "ref_cnt": block.ref + gained,
        f"table{r}": block.table[r] + gained,
        "published": published,
    }


def _allocate(block: _Block, r: int) -> Operation:
    hit, taken, publishes = z3.Bools("hit taken publishes")
    guard, effect = _allocation(block, r, hit, taken)
    effect["published"] = some((effect["published"], publishes))
    return Operation(
        f"allocate R{r}",
        f"R{r} gets slots: hits, new blocks, and publication of what is full (allocate_slots).",
        every(
            (
                block.live[r] == ALIVE,
                z3.Not(block.waits[r]),
                guard,
                z3.Implies(publishes, effect[f"table{r}"] > 0),
            )
        ),
        effect,
        (hit, taken, publishes),
    )


def _load(block: _Block, r: int) -> Operation:
    hit, taken, publishes = z3.Bools("hit taken publishes")
    guard, effect = _allocation(block, r, hit, taken)
    too_early = z3.BoolVal(False)
    if not block.on(Rule.publish_loads_when_done):
        too_early = every((publishes, effect[f"table{r}"] > 0))
    return Operation(
        f"load R{r}",
        f"R{r} gets blocks and its asynchronous load begins to write the new ones.",
        every(
            (
                block.live[r] == ALIVE,
                z3.Not(block.waits[r]),
                block.load[r] == NO_LOAD,
                block.table[r] == 0,
                guard,
            )
        ),
        effect
        | {
            "published": some((effect["published"], too_early)),
            f"load{r}": z3.IntVal(PENDING),
            f"moving{r}": taken,
            f"waits{r}": z3.BoolVal(True),
        },
        (hit, taken, publishes),
    )


def _wake(block: _Block, r: int) -> Operation:
    """No step has been given to the request since its load began: no fence is needed."""
    frees, publishes = z3.Bools("frees publishes")
    reported = block.done[r] if block.on(Rule.wait_for_remote_load) else z3.BoolVal(True)
    given_back = block.let_go(block.table[r]) | {f"table{r}": z3.IntVal(0)}
    kept = {"published": some((block.published, publishes))}
    return Operation(
        f"wake R{r}",
        f"R{r}'s load is taken in: what it brought is published, or freed where it failed "
        "(update_waiting_for_remote_kv).",
        every(
            (
                block.waits[r],
                reported,
                z3.Implies(publishes, every((block.table[r] > 0, z3.Not(frees)))),
            )
        ),
        block.merged(frees, given_back, kept)
        | {f"waits{r}": z3.BoolVal(False), f"done{r}": z3.BoolVal(False)},
        (frees, publishes),
    )


def _publish(block: _Block, r: int) -> Operation:
    publishes = z3.Bool("publishes")
    return Operation(
        f"publish R{r}",
        f"R{r}'s full blocks are published after an output (cache_blocks).",
        every(
            (
                block.live[r] == ALIVE,
                z3.Not(block.waits[r]),
                z3.Implies(publishes, block.table[r] > 0),
            )
        ),
        {"published": some((block.published, publishes))},
        (publishes,),
    )


def _preempt(block: _Block, r: int) -> Operation:
    return Operation(
        f"preempt R{r}",
        f"R{r} is preempted, by another request's need or a reset (preempt_request).",
        every((block.live[r] == ALIVE, z3.Not(block.waits[r]))),
        block.release(r),
    )


def _abort(block: _Block, r: int) -> Operation:
    """A finished request is left alone while the rule is on."""
    holds: Term = z3.BoolVal(False)
    if block.on(Rule.hold_blocks_until_load_done):
        holds = block.waits[r]
        if block.on(Rule.release_hold_if_load_already_done):
            holds = every((holds, z3.Not(block.done[r])))
    held = {
        f"live{r}": z3.IntVal(FINISHED),
        f"waits{r}": z3.BoolVal(False),
        f"done{r}": z3.BoolVal(False),
    }
    gone = block.release(r) | block.forget(r)
    effect = block.merged(holds, held, gone)
    if block.on(Rule.finish_once):
        effect = block.merged(block.live[r] == FINISHED, {}, effect)
    return Operation(
        f"abort R{r}",
        f"R{r} is aborted: its blocks are freed, or held while a load writes them "
        "(finish_requests).",
        block.live[r] != NONE,
        effect,
    )


def _finish(block: _Block, r: int) -> Operation:
    sends, publishes = z3.Bools("sends publishes")
    sending = {
        f"sending{r}": z3.If(sends, z3.IntVal(SENDING), block.sending[r]),
        f"sent_from{r}": z3.If(sends, block.table[r] > 0, block.sent_from[r]),
    }
    gone = block.release(r) | block.forget(r)
    effect = gone
    if block.on(Rule.hold_blocks_until_sent):
        effect = block.merged(sends, {f"live{r}": z3.IntVal(FINISHED)}, gone)
    return Operation(
        f"finish R{r}",
        f"R{r} finishes with an output: its blocks are freed, or held while they are sent "
        "(free_request).",
        every(
            (
                block.live[r] == ALIVE,
                z3.Not(block.waits[r]),
                z3.Implies(publishes, block.table[r] > 0),
            )
        ),
        effect | sending | {"published": some((block.published, publishes))},
        (sends, publishes),
    )


def _report(block: _Block, r: int) -> Operation:
    """A transfer that ended is reported; the hold of a finished request ends with it."""
    gone = block.merged(block.live[r] == FINISHED, block.release(r) | block.forget(r), {})
    reported = block.merged(block.waits[r], {f"done{r}": z3.BoolVal(True)}, gone)
    return Operation(
        f"report R{r}",
        f"The worker reports that R{r}'s transfer is done (update_from_kv_xfer_finished).",
        some((block.load[r] == LANDED, block.sending[r] == SENT)),
        reported
        | {
            f"load{r}": z3.IntVal(NO_LOAD),
            f"moving{r}": z3.BoolVal(False),
            f"sending{r}": z3.IntVal(NOT_SENT),
            f"sent_from{r}": z3.BoolVal(False),
        },
    )


def _own_operations(block: _Block, r: int) -> tuple[Operation, ...]:
    """The operations of one request."""
    return (
        Operation(
            f"add R{r}",
            f"R{r} arrives.",
            every((block.live[r] == NONE, block.load[r] == NO_LOAD, block.sending[r] == NOT_SENT)),
            {f"live{r}": z3.IntVal(ALIVE)},
        ),
        _allocate(block, r),
        _load(block, r),
        _wake(block, r),
        _publish(block, r),
        _preempt(block, r),
        _abort(block, r),
        _finish(block, r),
        Operation(
            f"land R{r}",
            f"R{r}'s load has written its blocks.",
            block.load[r] == PENDING,
            {f"load{r}": z3.IntVal(LANDED)},
        ),
        Operation(
            f"sent R{r}",
            f"R{r}'s blocks have been sent.",
            block.sending[r] == SENDING,
            {f"sending{r}": z3.IntVal(SENT)},
        ),
        _report(block, r),
    )


def _shared_operations(block: _Block) -> tuple[Operation, ...]:
    """The operations that concern all requests."""
    numbers = range(block.requests)
    chosen = [z3.Bool(f"in_step{r}") for r in numbers]
    has_tokens, withdraws, done = z3.Bools("has_tokens withdraws done")
    drained = z3.Int("drained")
    seq = z3.If(has_tokens, block.seq + 1, block.seq)
    dispatched = {"seq_ahead": seq}
    for r in numbers:
        dispatched[f"last{r}"] = z3.If(chosen[r], seq, block.last[r])
        given = every((chosen[r], block.table[r] > 0))
        dispatched[f"wrote{r}"] = z3.If(given, seq, block.wrote[r])
    emptied = block.deferred - drained
    processed = block.let_go(drained) | {
        "seq_ahead": block.seq - 1,
        "deferred": emptied,
        "fence": z3.If(emptied > 0, block.fence - 1, z3.IntVal(0)),
    }
    for r in numbers:
        for name, term in (("last", block.last[r]), ("wrote", block.wrote[r])):
            processed[f"{name}{r}"] = most(term - 1, z3.IntVal(0))
    unused = block.free > 0 if block.on(Rule.reset_only_unused_pool) else z3.BoolVal(True)
    return (
        Operation(
            "dispatch",
            "A step goes in flight with the requests in it and their block tables.",
            every(
                (
                    z3.Implies(has_tokens, block.defer),
                    *(
                        z3.Implies(
                            chosen[r],
                            every((has_tokens, block.live[r] == ALIVE, z3.Not(block.waits[r]))),
                        )
                        for r in numbers
                    ),
                )
            ),
            dispatched,
            (has_tokens, *chosen),
        ),
        Operation(
            "process",
            "The oldest step with tokens was processed; deferred frees whose fence has passed are "
            "drained (step_processed).",
            every(
                (
                    block.seq > 0,
                    drained >= 0,
                    z3.If(block.fence <= 1, drained == block.deferred, drained < block.deferred),
                )
            ),
            processed,
            (drained,),
        ),
        Operation(
            "withdraw",
            "Hashes of blocks whose load failed are withdrawn (handle_invalid_blocks).",
            z3.BoolVal(True),
            {"published": every((block.published, z3.Not(withdraws)))},
            (withdraws,),
        ),
        Operation(
            "reset",
            "The prefix cache is reset: done, or refused while a block is in use.",
            z3.Implies(done, unused),
            {"published": every((block.published, z3.Not(done)))},
            (done,),
        ),
    )


def _properties(block: _Block) -> Iterable[Clause]:
    def for_each(statement: Callable[[int], Term]) -> Term:
        return every(statement(r) for r in range(block.requests))

    unfenced = every(z3.Implies(block.defer, wrote == 0) for wrote in block.wrote)
    yield Clause(
        "conservation",
        every((block.ref == block.holders, block.free == number(block.ref == 0))),
        "The reference count is the number of holds, in tables and deferred frees; a block without "
        "holds stands in the free queue exactly once, and no other does.",
        ("BlockConservation",),
    )
    yield Clause(
        "no_free_block_owned",
        z3.Implies(block.free > 0, every((*(t == 0 for t in block.table), block.deferred == 0))),
        "A block in the free queue is in nobody's table and in no deferred free.",
        ("BlockConservation",),
        derived=True,
    )
    yield Clause(
        "once_in_a_table",
        for_each(lambda r: block.table[r] <= 1),
        "No request has the same block at two places of its table.",
        ("PublishedSound", "BlockConservation"),
    )
    yield Clause(
        "none_handed_out_while_held",
        z3.Implies(
            block.free > 0,
            for_each(
                lambda r: z3.Not(
                    some(
                        (
                            every((block.load[r] == PENDING, block.moving[r])),
                            every((block.sending[r] == SENDING, block.sent_from[r])),
                        )
                    )
                )
            ),
        ),
        "A block that may be handed out is neither written by a load nor read by a sending.",
        ("NoReuseInFlight",),
        derived=True,
    )
    yield Clause(
        "none_handed_out_while_fenced",
        z3.Implies(block.free > 0, unfenced),
        "Where frees are deferred, a block that may be handed out is in no table that a step in "
        "flight was given.",
        ("NoReuseInFlight",),
        derived=True,
    )
    yield Clause(
        "load_has_its_block_alone",
        for_each(
            lambda r: z3.Implies(
                every((block.load[r] != NO_LOAD, block.moving[r])),
                every((block.table[r] == 1, block.ref == 1, z3.Not(block.published), unfenced)),
            )
        ),
        "A block that a load writes belongs to its request alone, unpublished, and where frees are "
        "deferred no step in flight was given it.",
        ("NoReuseInFlight",),
    )
    yield Clause(
        "sending_keeps_its_block",
        for_each(
            lambda r: z3.Implies(
                every((block.sending[r] != NOT_SENT, block.sent_from[r])), block.table[r] == 1
            )
        ),
        "A block that is being sent stays in the table of its request.",
        ("NoReuseInFlight",),
    )
    yield Clause(
        "freed_exactly_once",
        every(
            (
                for_each(lambda r: z3.Implies(block.live[r] == NONE, block.table[r] == 0)),
                for_each(
                    lambda r: z3.Implies(
                        block.live[r] == FINISHED,
                        some((block.load[r] != NO_LOAD, block.sending[r] != NOT_SENT)),
                    )
                ),
                z3.Implies(block.deferred > 0, every((block.fence > 0, block.fence <= block.seq))),
            )
        ),
        "A request that is gone has no hold; one that is finished has some only while a transfer "
        "that will be reported goes on; a deferred free waits for a step in flight.",
        ("FreedExactlyOnce",),
    )


def _lemmas(block: _Block) -> Iterable[Clause]:
    def for_each(statement: Callable[[int], Term]) -> Term:
        return every(statement(r) for r in range(block.requests))

    def behind_fence(r: int) -> Term:
        return every((block.deferred > 0, block.wrote[r] <= block.fence))

    yield Clause(
        "counts_are_counts",
        every(
            (
                block.deferred >= 0,
                block.seq >= 0,
                z3.Implies(z3.Not(block.defer), every((block.seq == 0, block.deferred == 0))),
                for_each(lambda r: block.table[r] >= 0),
                for_each(lambda r: every((block.last[r] >= 0, block.last[r] <= block.seq))),
                for_each(lambda r: every((block.wrote[r] >= 0, block.wrote[r] <= block.seq))),
            )
        ),
        "Nothing is negative, steps are numbered up to the last scheduled one, and without "
        "deferred frees none are numbered.",
    )
    yield Clause(
        "writer_is_covered",
        for_each(
            lambda r: z3.Implies(
                block.wrote[r] > 0,
                some(
                    (every((block.table[r] > 0, block.wrote[r] <= block.last[r])), behind_fence(r))
                ),
            )
        ),
        "While a step in flight was given the block for a request, the request still has it and "
        "remembers the step, or a deferred free that waits for the step has it.",
    )
    yield Clause(
        "loading_writes_nothing",
        for_each(
            lambda r: z3.Implies(every((block.waits[r], block.wrote[r] > 0)), behind_fence(r))
        ),
        "What a request was given before its load began lies behind a fence: the load began with "
        "an empty table.",
    )
    yield Clause(
        "states_of_a_load",
        for_each(
            lambda r: every(
                (
                    block.live[r] >= NONE,
                    block.live[r] <= FINISHED,
                    block.load[r] >= NO_LOAD,
                    block.load[r] <= LANDED,
                    block.sending[r] >= NOT_SENT,
                    block.sending[r] <= SENT,
                    z3.Implies(
                        block.waits[r],
                        every(
                            (
                                block.live[r] == ALIVE,
                                some((block.load[r] != NO_LOAD, block.done[r])),
                            )
                        ),
                    ),
                    z3.Implies(block.done[r], every((block.waits[r], block.load[r] == NO_LOAD))),
                    z3.Implies(
                        block.load[r] != NO_LOAD,
                        some(
                            (
                                every((block.waits[r], z3.Not(block.done[r]))),
                                block.live[r] == FINISHED,
                            )
                        ),
                    ),
                    z3.Implies(block.moving[r], block.load[r] != NO_LOAD),
                    z3.Implies(block.sent_from[r], block.sending[r] != NOT_SENT),
                    z3.Implies(
                        block.sending[r] != NOT_SENT,
                        every((block.live[r] == FINISHED, block.load[r] == NO_LOAD)),
                    ),
                )
            )
        ),
        "A load goes on only for a request that waits for it or is held for it, and is over when "
        "it was reported; blocks are sent only of a request that is finished.",
    )


@cache
def blocks(off: frozenset[Rule] = frozenset(), requests: int = 4) -> Relation:
    """The relation of one block and `requests` requests, with these rules switched off."""
    block = _Block(requests, off)
    fields = block.fields()
    at_rest = [z3.Not(f) if z3.is_bool(f) else f == 0 for f in fields if not f.eq(block.free)]
    return Relation(
        name="blocks",
        title="Block accounting",
        parameters=(block.defer,),
        assumptions=(),
        fields=fields,
        initial=every((*at_rest, block.free == 1)),
        operations=(
            *(operation for r in range(requests) for operation in _own_operations(block, r)),
            *_shared_operations(block),
        ),
        properties=tuple(_properties(block)),
        lemmas=tuple(_lemmas(block)),
    )
