"""What random runs reach: actions, branches of the scheduler, rules, and states of small scopes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvproof.model import engine
from kvproof.model.compiled import OF_WHAT_IS_SENT, Compiled, compile_scope
from kvproof.model.rules import Rule
from kvproof.model.scope import Scope
from kvproof.native.record import Record
from kvproof.scopes.draw import RandomChooser
from kvproof.search.system import Words
from kvproof.walks.runs import draw_run
from kvproof.walks.walk import Walker
from kvproof.walks.walking import BEFORE, ROWS, first_difference
from kvproof.walks.worlds import Tally

_IN_HASHES = (Rule.hash_whole_prefix, Rule.hash_includes_salt)
"""Rules that are not asked for at run time: they are in the tables of a compiled scope."""


def rules_reached(scope: Scope, codes: tuple[int, ...]) -> set[Rule]:
    """The rules that make a difference to a run: without one, some action leads elsewhere."""
    compiled = compile_scope(scope)
    actions: NDArray[np.int64] = np.array(codes, np.int64)
    reached = set()
    for rule in Rule:
        if rule in OF_WHAT_IS_SENT:
            # The states of both sides have the workers' tables.
            base = compile_scope(scope.with_rules_off(rule.name))
            on, off = base.c.copy(), base.c
            on.rules[rule] = 1
        else:
            base, on = compiled, compiled.c
            off = _without(compiled, rule)
        rows: Words = np.zeros((ROWS, base.state.words), np.uint64)
        rows[BEFORE] = base.initial().row
        like, report = base.state.new(), base.new_report()
        if first_difference(rows, like, on, off, report, actions):
            reached.add(rule)
    return reached


def _without(compiled: Compiled, rule: Rule) -> Record:
    if rule in _IN_HASHES:
        return compile_scope(compiled.scope.with_rules_off(rule.name)).c
    off = compiled.c.copy()
    off.rules[rule] = 0
    return off


@dataclass
class Coverage:
    """What a number of runs reached: `rules` counts the runs in which a rule made a difference."""

    tally: Tally = field(default_factory=Tally)
    rules: Counter[str] = field(default_factory=Counter)


def cover(runs: int, *, steps: int, seed: int, guided: bool) -> Coverage:
    """Walk drawn scopes and count what is reached; invariants that fall end their run only."""
    done = Coverage()
    for i in range(runs):
        choose = RandomChooser(f"{seed}-{i}")
        scope = draw_run(choose, None, f"random-{seed}-{i}")
        walker = Walker(compile_scope(scope))
        walked = walker.walk(steps, choose.integer(0, (1 << 30) - 1), guided=guided)
        done.tally.runs += 1
        walker.report_to(done.tally.kinds, done.tally.branches, done.tally.peaks)
        done.rules.update(rule.name for rule in rules_reached(scope, walked.codes))
    return done


def states_reached(scope: Scope, runs: int, *, steps: int, seed: int, guided: bool) -> int:
    """Distinct states that walks of one scope meet, the initial one included."""
    compiled = compile_scope(scope)
    seen = {compiled.initial().row.tobytes()}
    report = compiled.new_report()
    for i in range(runs):
        walked = Walker(compiled).walk(steps, seed * runs + i, guided=guided)
        state = compiled.initial()
        for code in walked.codes:
            engine.apply(state, compiled.c, report, code)
            seen.add(state.row.tobytes())
    return len(seen)
