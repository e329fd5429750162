"""Random runs of the model in compiled code, plain or drawn towards rare transitions.

A plain walk takes any enabled call, all equally likely, and any answer of the device. A guided one
tries a call of each kind, looks at what it does (the branches of the scheduler that it takes and
where the pipeline and the pool stand then), and prefers what was seen least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.answers import max_calls
from kvproof.system import Words
from kvproof.trace import names_of, step
from model import engine
from model.compiled import Compiled
from model.jit import kernel
from model.record import Record, at
from model.state import Branch, Load
from spec import invariants

_BRANCHES = len(Branch)
_FEATURES = 1 << 12
_PLAIN_STOPS = 8
_RARE = 4
_PRIME = 2_147_483_647
_CURRENT, _NEXT, _TRIED, _ROWS = range(4)

PEAKS = ("shared blocks", "steps in flight", "stale tokens")
"""What is measured in every state; a walk keeps the most of each."""


@kernel
def _draw(rng, n):
    """A number below n (n < 2**31), of a multiplicative generator with a prime modulus."""
    rng[0] = rng[0] * 48_271 % _PRIME
    return rng[0] % n


@kernel
def _copy(rows, i, j):
    for k in range(rows.shape[1]):
        rows[j, k] = rows[i, k]


@kernel
def _draw_answer(s, c, r, rng, guided):
    """What the device answers for one request; a guided walk stops and fails more rarely."""
    ways = engine.num_load_choices(s, c, r)
    load = _draw(rng, ways)
    if guided and _draw(rng, _RARE) > 0:
        load = 0
    samples = engine.num_sample_choices(s, c, r)
    place = _draw(rng, samples)
    if guided and samples > 1 and _draw(rng, _PLAIN_STOPS) > 0:
        place = 0
        for accepted in range(_draw(rng, s.step_acceptable[0, r] + 1)):
            place += engine.num_stop_choices(s, c, r, accepted)
    return load + ways * place, ways * samples


@kernel
def _with_answers(s, c, call, rng, guided):
    """The action that a call becomes with random answers of the device."""
    kind = engine.kind_of(call)
    choice = 0
    weight = 1
    if kind == engine.Kind.OUTPUT:
        for k in range(s.step_len[0]):
            answer, ways = _draw_answer(s, c, s.step_order[0, k] - 1, rng, guided)
            choice += weight * answer
            weight *= ways
        return engine.encode(kind, choice)
    if kind == engine.Kind.DRAFTS:
        ways = c.num_spec_tokens + 1
        for r in range(c.num_requests):
            if s.drafting[r]:
                choice += weight * _draw(rng, ways)
                weight *= ways
        return engine.encode(kind, choice)
    return call


@kernel
def _feature(s, c, e, action, size):
    """A place in the table of what was seen: the kind, the branches taken, and what is going on."""
    code = engine.kind_of(action) + 1
    for b in range(_BRANCHES):
        if e.branches[b] > 0:
            code = (code * 61 + b + 1) % _PRIME
    loading = 0
    stale = 0
    for r in range(c.num_requests):
        if s.load[r] != Load.NONE or s.sending[r]:
            loading = min(loading + 1, 2)
        if s.stale[r] > 0:
            stale = 1
    code = (code * 61 + s.num_steps) % _PRIME
    code = (code * 61 + min(s.num_deferred, 2)) % _PRIME
    code = (code * 61 + loading + 3 * stale) % _PRIME
    code = (code * 61 + min(s.num_running, 3)) % _PRIME
    return (code * 61 + min(s.num_free, 2)) % _PRIME % size


@kernel
def _eagerness(kind):
    """Arrivals crowd the pool, which is where things happen; aborts, resets and pauses empty it."""
    if kind == engine.Kind.ADD:
        return 2.0
    if kind == engine.Kind.ABORT:
        return 0.4
    if kind in (engine.Kind.RESET_PREFIX_CACHE, engine.Kind.SET_PAUSE_STATE):
        return 0.05
    return 1.0


@kernel
def _settle(e, branches):
    """Move the counts of the branches out of the report."""
    for b in range(_BRANCHES):
        branches[b] += e.branches[b]
        e.branches[b] = 0


@kernel
def _rarest(rows, like, c, e, calls, n, seen, rng, scratch):
    """One of the enabled actions, each kind tried, with a weight that falls with what was seen."""
    before = at(like, rows, _CURRENT)
    total = 0.0
    chosen = calls[0] * 1
    k = 0
    while k < n:
        kind = engine.kind_of(calls[k])
        end = k
        while end < n and engine.kind_of(calls[end]) == kind:
            end += 1
        call = calls[k + _draw(rng, end - k)]
        k = end
        action = _with_answers(before, c, call, rng, True)
        _copy(rows, _CURRENT, _TRIED)
        tried = at(like, rows, _TRIED)
        engine.apply(tried, c, e, action)
        weight = _eagerness(kind) / (1.0 + seen[_feature(tried, c, e, action, len(seen))])
        _settle(e, scratch)
        total += weight
        if _draw(rng, _PRIME) * total < weight * _PRIME:
            chosen = action
    return chosen


@kernel
def _walk(rows, like, c, e, calls, codes, seen, rng, guided, branches, scratch, kinds, peaks):
    """Walk from the state in row 0, which is moved along; returns the steps and what broke."""
    for k in range(len(codes)):
        before = at(like, rows, _CURRENT)
        n = engine.enabled_calls(before, c, calls)
        if n == 0:
            return k, 0
        if guided:
            action = _rarest(rows, like, c, e, calls, n, seen, rng, scratch)
        else:
            action = _with_answers(before, c, calls[_draw(rng, n)], rng, False)
        codes[k] = action
        kinds[engine.kind_of(action)] += 1
        _copy(rows, _CURRENT, _NEXT)
        after = at(like, rows, _NEXT)
        engine.apply(after, c, e, action)
        seen[_feature(after, c, e, action, len(seen))] += 1
        _settle(e, branches)
        broken = invariants.check_step(before, after, c, e, action)
        broken |= invariants.check_state(after, c, e)
        _copy(rows, _NEXT, _CURRENT)
        _measure(at(like, rows, _CURRENT), c, peaks)
        if broken:
            return k + 1, broken
    return len(codes), 0


@kernel
def _measure(s, c, peaks):
    """The most of each of PEAKS so far."""
    shared = 0
    stale = 0
    for b in range(1, c.num_blocks):
        if s.ref_cnt[b] > 1:
            shared += 1
    for r in range(c.num_requests):
        stale += s.stale[r]
    peaks[0] = max(peaks[0], shared)
    peaks[1] = max(peaks[1], s.num_steps)
    peaks[2] = max(peaks[2], stale)


@dataclass(frozen=True)
class Walked:
    """A walk: the codes of its actions and the names of the invariants that fall at the last."""

    codes: tuple[int, ...]
    broken: tuple[str, ...]


class Walker:
    """One run of a scope, walked in pieces; its state moves along.

    What was seen counts from the start of the run, so that a run is a function of its scope and
    its seeds; `actions` and `branches` count what occurred, `peaks` has the most of each of PEAKS.
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self._seen: NDArray[np.int64] = np.zeros(_FEATURES, np.int64)
        self.actions: NDArray[np.int64] = np.zeros(len(engine.Kind), np.int64)
        self.branches: NDArray[np.int64] = np.zeros(_BRANCHES, np.int64)
        self.peaks: NDArray[np.int64] = np.zeros(len(PEAKS), np.int64)
        self._like = compiled.state.new()
        self._report = compiled.new_report()
        self._rows: Words = np.zeros((_ROWS, compiled.state.words), np.uint64)
        self._rows[_CURRENT] = compiled.initial().row
        self._calls: NDArray[np.int32] = np.zeros(max_calls(compiled.scope), np.int32)
        self._scratch: NDArray[np.int64] = np.zeros(_BRANCHES, np.int64)

    @property
    def state(self) -> Record:
        """The state now; reading it only."""
        return at(self._like, self._rows, _CURRENT)

    def take(self, code: int) -> tuple[str, ...]:
        """Take one enabled action; returns the names of the invariants that it breaks."""
        after, report, broken = step(self.compiled, self.state, code)
        self._rows[_CURRENT] = after.row
        self.actions[code % engine.KINDS] += 1
        self.branches += report.branches
        _measure(after, self.compiled.c, self.peaks)
        return names_of(broken)

    def walk(self, steps: int, seed: int, *, guided: bool) -> Walked:
        """Go on by at most `steps` actions, to the first broken invariant or where none follows."""
        codes: NDArray[np.int64] = np.zeros(steps, np.int64)
        rng = np.array([1 + seed % (_PRIME - 1)], np.int64)
        taken, broken = _walk(
            self._rows,
            self._like,
            self.compiled.c,
            self._report,
            self._calls,
            codes,
            self._seen,
            rng,
            guided,
            self.branches,
            self._scratch,
            self.actions,
            self.peaks,
        )
        return Walked(tuple(codes[:taken].tolist()), names_of(int(broken)))

    def report_to(
        self, kinds: NDArray[np.int64], branches: NDArray[np.int64], peaks: NDArray[np.int64]
    ) -> None:
        """Move the counts on to others, and take over the peaks."""
        kinds += self.actions
        branches += self.branches
        np.maximum(peaks, self.peaks, out=peaks)
        self.actions[:] = 0
        self.branches[:] = 0
