"""The fence of deferred frees, for any number of steps, frees and deferred entries.

One arbitrary request's blocks are followed from the request's table to the pool. Steps are
counted, as in the model, from the last processed one, so that no counter needs a bound. Of the
other deferred entries only those ahead in the queue matter: how many, and their largest fence.
"""

from __future__ import annotations

from functools import cache

import z3

from kvproof.model.rules import Rule
from kvproof.proof.relation import Clause, Operation, Relation, every, most

NOTHING, HELD, DEFERRED, RETURNED = range(4)


@cache
def fence(off: frozenset[Rule] = frozenset()) -> Relation:
    """The relation with these rules switched off (vllm/v1/core/sched/scheduler.py)."""
    seq, last, writer, place, bound, due, ahead, ahead_fence = fields = tuple(
        z3.Ints("seq_ahead last_seq writer place fence due ahead ahead_fence")
    )
    mine = z3.Bool("mine")
    other_fence, other_last, left, left_fence, given = z3.Ints(
        "other_fence other_last left left_fence given"
    )
    defers = last > 0 if Rule.fence_in_flight_frees not in off else z3.BoolVal(False)
    at_last = Rule.fence_at_last_scheduled_step not in off

    queued = place <= HELD
    now_fence = bound - 1
    passed_ahead = z3.Or(ahead == 0, ahead_fence - 1 <= 0)
    waits = place == DEFERRED
    back = every((waits, passed_ahead, now_fence <= 0))
    stays_behind = every((ahead > 0, ahead_fence - 1 > 0))
    operations = (
        Operation(
            "schedule",
            "A step with tokens is dispatched; the request is in it or not.",
            z3.Implies(mine, queued),
            {
                "seq_ahead": seq + 1,
                "last_seq": z3.If(mine, seq + 1, last),
                "writer": z3.If(every((mine, place == HELD)), seq + 1, writer),
            },
            (mine,),
        ),
        Operation(
            "take",
            "The request gets its first blocks; what is in flight may have been given the same.",
            every((place == NOTHING, given >= 0, given <= last)),
            {"place": z3.IntVal(HELD), "writer": given},
            (given,),
        ),
        Operation(
            "give_back",
            "Blocks that no step was given go straight back: their load has failed.",
            every((place == HELD, writer == 0)),
            {"place": z3.IntVal(RETURNED)},
        ),
        Operation(
            "free",
            "The request's blocks are freed: at once, or behind a fence (_free_request_blocks).",
            place == HELD,
            {
                "place": z3.If(defers, z3.IntVal(DEFERRED), z3.IntVal(RETURNED)),
                "fence": z3.If(defers, seq if at_last else last - 1, z3.IntVal(0)),
                "due": seq,
            },
        ),
        Operation(
            "free_other",
            "Another request's blocks go behind a fence, ahead of this one's.",
            every(
                (
                    queued,
                    other_last > 0,
                    other_last <= seq,
                    other_fence == (seq if at_last else other_last - 1),
                )
            ),
            {
                "ahead": ahead + 1,
                "ahead_fence": z3.If(ahead > 0, most(ahead_fence, other_fence), other_fence),
            },
            (other_last, other_fence),
        ),
        Operation(
            "process",
            "The output of the oldest step with tokens is taken in, and entries whose fence has "
            "passed return from the head of the queue (_drain_deferred_frees).",
            every(
                (
                    seq > 0,
                    z3.If(
                        stays_behind,
                        every(
                            (
                                left >= 1,
                                left <= ahead,
                                left_fence > 0,
                                left_fence <= ahead_fence - 1,
                                z3.Implies(left == ahead, left_fence == ahead_fence - 1),
                            )
                        ),
                        every((left == 0, left_fence == 0)),
                    ),
                )
            ),
            {
                "seq_ahead": seq - 1,
                "last_seq": most(last - 1, z3.IntVal(0)),
                "writer": most(writer - 1, z3.IntVal(0)),
                "place": z3.If(back, z3.IntVal(RETURNED), place),
                "fence": z3.If(back, z3.IntVal(0), z3.If(waits, now_fence, bound)),
                "due": z3.If(queued, due, due - 1),
                "ahead": left,
                "ahead_fence": left_fence,
            },
            (left, left_fence),
        ),
    )
    properties = (
        Clause(
            "not_before_the_writer",
            z3.Implies(place == RETURNED, writer == 0),
            "Blocks are in the pool only when every step that may write them was processed.",
            ("NoReuseInFlight",),
        ),
        Clause(
            "waits_for_the_writer",
            z3.Implies(place == DEFERRED, writer <= bound),
            "The fence of a deferred free is not before the last step that may write its blocks.",
            ("NoReuseInFlight",),
        ),
        Clause(
            "comes_back",
            z3.Implies(place == DEFERRED, every((due > 0, due <= seq))),
            "Deferred blocks wait for a step that is still in flight, at most the last one that "
            "was scheduled when they were freed: when that one has been processed they are back.",
            ("FreedExactlyOnce",),
        ),
    )
    lemmas = (
        Clause(
            "counted_from_processed",
            every((seq >= 0, last >= 0, last <= seq, ahead >= 0)),
            "No step is processed before it is scheduled, and the request's last one is one of "
            "the scheduled ones.",
        ),
        Clause(
            "writer_is_a_step_of_the_request",
            every((writer >= 0, z3.Implies(place == HELD, writer <= last))),
            "Only a step of the request may write its blocks.",
        ),
        Clause(
            "fence_is_the_last_step",
            z3.Implies(place == DEFERRED, bound == due),
            "The fence is the last step scheduled at the time of the free.",
        ),
        Clause(
            "fences_in_order",
            z3.Implies(
                ahead > 0,
                every(
                    (
                        ahead_fence > 0,
                        ahead_fence <= seq,
                        z3.Implies(place == DEFERRED, ahead_fence <= bound),
                    )
                ),
            ),
            "No entry ahead in the queue has a later fence, so none keeps this one back.",
        ),
        Clause(
            "nobody_ahead_has_no_fence",
            z3.Implies(ahead == 0, ahead_fence == 0),
            "Without an entry ahead in the queue there is no fence ahead.",
        ),
        Clause(
            "place_is_known",
            every((place >= NOTHING, place <= RETURNED)),
            "The blocks are not taken yet, held, deferred or returned.",
        ),
    )
    return Relation(
        name="fence",
        title="The fence of deferred frees",
        parameters=(),
        assumptions=(),
        fields=fields,
        initial=every(field == 0 for field in fields),
        operations=operations,
        properties=properties,
        lemmas=lemmas,
        history=frozenset({"due"}),
    )
