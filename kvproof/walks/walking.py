"""Kernels of random runs: draw an answer, walk on, measure, and see where a rule first matters."""

from __future__ import annotations

from kvproof.model import engine
from kvproof.model.state import Branch, Load
from kvproof.native.jit import kernel
from kvproof.native.record import at
from kvproof.spec import masks

BRANCHES = len(Branch)


_PLAIN_STOPS = 8


_RARE = 4


PRIME = 2_147_483_647


CURRENT, NEXT, TRIED, ROWS = range(4)


@kernel
def _draw(rng, n):
    """A number below n (n < 2**31), of a multiplicative generator with a prime modulus."""
    rng[0] = rng[0] * 48_271 % PRIME
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
        ways = c.num_speculative_tokens + 1
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
    for b in range(BRANCHES):
        if e.branches[b] > 0:
            code = (code * 61 + b + 1) % PRIME
    loading = 0
    stale = 0
    for r in range(c.num_requests):
        if s.load[r] != Load.NONE or s.sending[r]:
            loading = min(loading + 1, 2)
        if s.stale[r] > 0:
            stale = 1
    code = (code * 61 + s.num_steps) % PRIME
    code = (code * 61 + min(s.num_deferred, 2)) % PRIME
    code = (code * 61 + loading + 3 * stale) % PRIME
    code = (code * 61 + min(s.num_running, 3)) % PRIME
    return (code * 61 + min(s.num_free, 2)) % PRIME % size


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
    for b in range(BRANCHES):
        branches[b] += e.branches[b]
        e.branches[b] = 0


@kernel
def _rarest(rows, like, c, e, calls, n, seen, rng, scratch):
    """One of the enabled actions, each kind tried, with a weight that falls with what was seen."""
    before = at(like, rows, CURRENT)
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
        _copy(rows, CURRENT, TRIED)
        tried = at(like, rows, TRIED)
        engine.apply(tried, c, e, action)
        weight = _eagerness(kind) / (1.0 + seen[_feature(tried, c, e, action, len(seen))])
        _settle(e, scratch)
        total += weight
        if _draw(rng, PRIME) * total < weight * PRIME:
            chosen = action
    return chosen


@kernel
def walk(rows, like, c, e, w, calls, codes, seen, rng, guided, branches, scratch, kinds, peaks):
    """Walk from the state in row 0, which is moved along; returns the steps and what broke."""
    for k in range(len(codes)):
        before = at(like, rows, CURRENT)
        n = engine.enabled_calls(before, c, calls)
        if n == 0:
            return k, 0
        if guided:
            action = _rarest(rows, like, c, e, calls, n, seen, rng, scratch)
        else:
            action = _with_answers(before, c, calls[_draw(rng, n)], rng, False)
        codes[k] = action
        kinds[engine.kind_of(action)] += 1
        _copy(rows, CURRENT, NEXT)
        after = at(like, rows, NEXT)
        engine.apply(after, c, e, action)
        seen[_feature(after, c, e, action, len(seen))] += 1
        _settle(e, branches)
        broken = masks.check_step(before, after, c, e, w, action)
        broken |= masks.check_state(after, c, w)
        _copy(rows, NEXT, CURRENT)
        measure(at(like, rows, CURRENT), c, peaks)
        if broken:
            return k + 1, broken
    return len(codes), 0


@kernel
def measure(s, c, peaks):
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


ON, OFF, BEFORE = range(3)


@kernel
def first_difference(rows, like, c, off, e, codes):
    """Place (from 1) of the first action that does something else under `off`, 0 for none."""
    for k in range(len(codes)):
        for i in range(rows.shape[1]):
            rows[ON, i] = rows[BEFORE, i]
            rows[OFF, i] = rows[BEFORE, i]
        engine.apply(at(like, rows, OFF), off, e, codes[k])
        engine.apply(at(like, rows, ON), c, e, codes[k])
        for i in range(rows.shape[1]):
            if rows[ON, i] != rows[OFF, i]:
                return k + 1
            rows[BEFORE, i] = rows[ON, i]
    return 0
