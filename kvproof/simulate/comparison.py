"""Request by request: serQ's run of the workload against the real classes' on the same requests."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvproof.simulate.serq import Observed, SerqRun, Variant
from kvproof.workload.clock import Record


class Cause(StrEnum):
    """Why two sides differ on a request."""

    FRACTIONS = "fractions of tokens"
    LOOKUP = "cache looked up on arrival, not at the next step"
    CAPACITY = "admitted by its first chunk, not by its whole prompt"
    LEFT = "found another cache, left by one of the above"
    FOLLOWS = "shared the engine with one of the above"
    UNKNOWN = "unexplained"


EXPLAINED = {
    Cause.FRACTIONS: "serQ's program draws real numbers of tokens and serves them; a scheduler "
    "gets them rounded up. Nearly every request then differs a little, and no other cause can be "
    "told apart. With whole tokens in the program it is gone.",
    Cause.LOOKUP: "In the program a request that arrives during a step looks its prefix up and "
    "takes its blocks at once. vLLM does so at the next step, after the running requests have got "
    "their new blocks, which may be the very blocks that it would have hit. Admitting where the "
    "step is planned (`admit via engine`), it is gone.",
    Cause.CAPACITY: "The program admits a request when its first chunk fits, vLLM when its whole "
    "prompt does (`scheduler_reserve_full_isl`). Only a tight pool shows it.",
    Cause.LEFT: "Something earlier evicted other blocks on one side, or the same ones later.",
    Cause.FOLLOWS: "The hits are the same; but a step with other tokens took another time, and "
    "that lasts until the engine is idle.",
    Cause.UNKNOWN: "None of the above.",
}


@dataclass(frozen=True)
class Difference:
    """A request on which the sides differ."""

    session: int
    turn: int
    real: Record
    serq: Observed
    cause: Cause


@dataclass(frozen=True)
class Comparison:
    """How many requests were compared, how many are equal in what, and all differences."""

    variant: Variant
    requests: int
    equal_hit: int
    equal_ttft: int
    equal_response: int
    equal: int
    differences: tuple[Difference, ...]
    largest: float
    """The largest difference of a response, in seconds."""

    @property
    def causes(self) -> Counter[Cause]:
        """Differences by cause."""
        return Counter(difference.cause for difference in self.differences)


def compare_runs(serq: SerqRun, records: Sequence[Record], variant: Variant) -> Comparison:
    """Compare the requests that both sides have finished before the horizon.

    Times are equal when they are the same floating-point numbers. Only the program as written,
    which has fractions of tokens, differs a little everywhere.
    """
    pairs = []
    for record in records:
        observed = serq.observed.get((record.session, record.turn))
        if observed is not None and observed.response is not None and record.finished is not None:
            pairs.append((record, observed))
    periods = _busy_periods(pairs)
    marked = _marked(pairs, periods)
    differences: list[Difference] = []
    for real, observed in sorted(pairs, key=lambda pair: pair[1].sent):
        if not _equal(real, observed):
            cause = _cause(real, observed, variant, bool(differences))
            same_hit = real.hit == observed.hit
            if cause == Cause.UNKNOWN and same_hit and periods.index(real.sent) in marked:
                cause = Cause.FOLLOWS
            differences.append(Difference(real.session, real.turn, real, observed, cause))
    return Comparison(
        variant=variant,
        requests=len(pairs),
        equal_hit=sum(real.hit == observed.hit for real, observed in pairs),
        equal_ttft=sum(real.ttft == observed.ttft for real, observed in pairs),
        equal_response=sum(real.response == observed.response for real, observed in pairs),
        equal=len(pairs) - len(differences),
        differences=tuple(differences),
        largest=max(
            (abs((real.response or 0.0) - (seen.response or 0.0)) for real, seen in pairs),
            default=0.0,
        ),
    )


_Pairs = Sequence[tuple[Record, Observed]]


class _Periods:
    """Stretches of time in which one side or the other had a request."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        end = -1.0
        for start, stop in sorted(spans):
            if start > end:
                self._starts.append(start)
            end = max(end, stop)

    def index(self, time: float) -> int:
        """The stretch that a moment lies in."""
        return bisect.bisect_right(self._starts, time) - 1


def _busy_periods(pairs: _Pairs) -> _Periods:
    spans = []
    for real, observed in pairs:
        assert real.finished is not None and observed.response is not None
        spans.append((real.sent, real.finished))
        spans.append((observed.sent, observed.sent + observed.response))
    return _Periods(spans)


def _marked(pairs: _Pairs, periods: _Periods) -> set[int]:
    """The stretches in which a request was given something else, not only at another time."""
    return {
        periods.index(real.sent)
        for real, observed in pairs
        if real.hit != observed.hit or real.preemptions or observed.preempted
    }


def _equal(real: Record, observed: Observed) -> bool:
    return (
        real.hit == observed.hit
        and real.ttft == observed.ttft
        and real.response == observed.response
    )


def _cause(real: Record, observed: Observed, variant: Variant, later: bool) -> Cause:
    """The cause that a request shows by itself; `later` than another difference."""
    if variant == Variant.WRITTEN:
        return Cause.FRACTIONS
    waited = real.admissions[0][0] - real.sent
    if real.hit == observed.hit:
        earlier = observed.waited is not None and observed.waited < waited
        return Cause.CAPACITY if variant == Variant.SCHEDULED and earlier else Cause.UNKNOWN
    if variant == Variant.WHOLE and waited > 0:
        return Cause.LOOKUP
    return Cause.LEFT if later else Cause.UNKNOWN
