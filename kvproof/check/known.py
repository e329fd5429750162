"""What is known already: the open finding that a violation is."""

from __future__ import annotations

from typing import Any

from kvproof.model.state import Assertion, Branch, Load
from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.masks import Id
from kvproof.trace.trace import Trace, branches_taken, replay


def place_of(trace: Trace) -> str:
    """What tells violations apart: what falls, at which action, by which assertion, after what.

    What a failed synchronous load, a victim taken out of its step, or a reset that raised leaves
    behind falls in many ways, so it is named; so is a load of one token, which comes round.
    """
    moments = list(replay(trace))
    last = moments[-1]
    words = ["+".join(trace.broken), "at", last.action.do]
    if last.after.assertion:
        words[0] = Id.NoAssertion.name
        words.append(Assertion(last.after.assertion).name.lower())
    if Id.NoStall.name in trace.broken:
        # Why nothing was scheduled: the way out of the scan that was taken.
        words += branches_taken([last], "waiting_")
    outcomes = (o for action in trace.actions for o in action.outcomes.values())
    if any(outcome.load_fails for outcome in outcomes):
        words.append("after a failed synchronous load")
    if any(moment.report.branches[Branch.preempted_scheduled] for moment in moments):
        words.append("after a scheduled victim")
    if any(moment.report.reset_ok < 0 for moment in moments[:-1]):
        words.append("after a reset that raised")
    if Id.NoReuseInFlight.name in trace.broken and _loads_one_token(last.after):
        words.append("with a load of one token")
    return " ".join(words)


def _loads_one_token(state: Any) -> bool:
    pairs = zip(state.load, state.load_tokens, strict=True)
    return any(load == Load.PENDING and tokens == 1 for load, tokens in pairs)


def explanation(place: str) -> Finding | None:
    """The open finding that a violation at this place is."""
    return next((finding for finding in FINDINGS if finding.explains(place)), None)
