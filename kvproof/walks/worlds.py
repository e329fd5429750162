"""What a random run moves: the model of a scope, behind the interface that the real classes share.

A run ends at the first invariant that falls. Where that is an open finding the run is over and the
finding is counted; anything else is raised, with the trace that shows it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvproof.checker.known import known_finding
from kvproof.checker.minimize import minimize, prevented, whole_only
from kvproof.model import engine
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.model.scope import Scope
from kvproof.model.state import Branch
from kvproof.native.record import Record
from kvproof.scopes.draw import Chooser
from kvproof.shown import Shown
from kvproof.trace.codes import enabled_calls, kind_of
from kvproof.trace.identify import identity_of
from kvproof.trace.trace import Trace, from_codes
from kvproof.walks.walk import PEAKS, Walker

NOT_PREVENTED = "the rules that are off make no difference"


class Violation(AssertionError):
    """A random run that breaks an invariant which no open finding explains."""

    def __init__(self, trace: Trace, what: str) -> None:
        super().__init__(what)
        self.trace = trace


@dataclass
class Tally(Shown):
    """What random runs did: runs, actions by kind, branches taken, open findings met, peaks.

    `interrupted`: a Ctrl-C came before their end.
    """

    runs: int = 0
    kinds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Kind), np.int64))
    branches: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Branch), np.int64))
    findings: Counter[str] = field(default_factory=Counter)
    peaks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(PEAKS), np.int64))
    interrupted: bool = False

    @property
    def actions(self) -> int:
        """Actions of all kinds."""
        return int(self.kinds.sum())

    def targets(self) -> dict[str, int]:
        """What a search may try to raise."""
        branches = self.branches
        preempted = Branch.preempted_self, Branch.preempted_other, Branch.reset_preempted
        return {
            "preemptions": int(sum(branches[branch] for branch in preempted)),
            "evictions": int(branches[Branch.evicted_published]),
            **{name: int(peak) for name, peak in zip(PEAKS, self.peaks, strict=True)},
        }

    def __str__(self) -> str:
        most = ", ".join(f"{name} {value:,}" for name, value in self.targets().items())
        found = ", ".join(f"{name} {times:,}" for name, times in self.findings.most_common())
        return (
            f"{self.runs:,} runs, {self.actions:,} actions; {most}; "
            f"open findings met: {found or 'none'}"
        )

    def add(self, other: Tally) -> None:
        """Take in what another tally counted."""
        self.runs += other.runs
        self.kinds += other.kinds
        self.branches += other.branches
        self.findings += other.findings
        np.maximum(self.peaks, other.peaks, out=self.peaks)


class World(Protocol):
    """One run at a time of one scope; `over` where nothing follows."""

    compiled: Compiled
    over: bool

    @property
    def state(self) -> Record:
        """Where the run stands; for reading."""
        ...

    def take(self, code: int) -> None:
        """Take one enabled action."""
        ...

    def burst(self, steps: int, seed: int, *, guided: bool) -> None:
        """Take at most so many actions, drawn by a generator of its own."""
        ...


def draw_code(compiled: Compiled, state: Record, choose: Chooser) -> int | None:
    """An enabled action, with answers of the device request by request; None where none is."""
    calls = enabled_calls(compiled, state)
    if not calls:
        return None
    call = choose.pick(calls)
    kind, choice, weight = call % engine.KINDS, call // engine.KINDS, 1
    device = kind_of(call).answers
    for answers in () if device is None else device(compiled, state).values():
        choice += weight * choose.integer(0, len(answers) - 1)
        weight *= len(answers)
    return kind + engine.KINDS * choice


def judge(trace: Trace) -> str | None:
    """Why a broken invariant is no news: the open finding that it is, or that the rules which are
    off make no difference; None where it is news.

    What its identity does not explain may do so at its minimum, where nothing else has happened.
    """
    mends = trace.scope.mends
    finding = known_finding(identity_of(trace), mends)
    if finding is not None:
        return finding.id
    if not prevented(trace):
        return NOT_PREVENTED
    if trace.scope.rules_off:
        return None
    smallest = minimize(trace, trace.broken, watch=whole_only)
    finding = known_finding(identity_of(smallest), mends)
    return None if finding is None else finding.id


class ModelWorld:
    """Runs of the model alone, with every invariant after every action."""

    def __init__(self, scope: Scope, tally: Tally) -> None:
        self.compiled = compile_scope(scope)
        self.tally = tally
        self._walker = Walker(self.compiled)
        self._codes: list[int] = []
        self.over = False
        tally.runs += 1

    @property
    def state(self) -> Record:
        """Where the run stands."""
        return self._walker.state

    def take(self, code: int) -> None:
        """Take one enabled action."""
        self._went((code,), self._walker.take(code))

    def burst(self, steps: int, seed: int, *, guided: bool) -> None:
        """Walk on."""
        walked = self._walker.walk(steps, seed, guided=guided)
        self.over = len(walked.codes) < steps
        self._went(walked.codes, walked.broken)

    def _went(self, codes: tuple[int, ...], broken: tuple[str, ...]) -> None:
        self._codes += codes
        self._walker.report_to(self.tally.kinds, self.tally.branches, self.tally.peaks)
        self.compare(codes)
        if broken:
            self.over = True
            settle(from_codes(self.compiled.scope, tuple(self._codes), broken), self.tally)

    def compare(self, codes: tuple[int, ...]) -> None:
        """Nothing to compare with: the model is alone."""


def settle(trace: Trace, tally: Tally) -> None:
    """Count a violation that is no news; raise it where it is."""
    known = judge(trace)
    if known is None:
        raise Violation(trace, f"{' and '.join(trace.broken)} broken")
    tally.findings[known] += 1
