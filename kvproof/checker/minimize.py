"""Minimising: the smallest scope in which the same invariant falls, and a shortest run there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from kvproof.checker.check import Limits, check
from kvproof.checker.collect import collect
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model.bounds import max_actions
from kvproof.model.compiled import compile_scope
from kvproof.model.scope import Scope
from kvproof.scopes.cuts import Cut, cuts, weight
from kvproof.spec.masks import Id
from kvproof.trace.actions import Action
from kvproof.trace.codes import code_of, name_action
from kvproof.trace.identify import identity_of
from kvproof.trace.trace import (
    Trace,
    TraceError,
    from_codes,
    names_of,
    replay,
    step,
)

_FIRST_STATES = 5_000_000
_STATES = 20_000
_LAST_STATES = 1_000_000
_MOST_ACTIONS = 10_000
_PROGRESS_SECONDS = 0.1
_SUFFIX = "-minimal"

_T = TypeVar("_T")

Stage = Literal["shrinking", "minimal", "short", "interrupted"]


@dataclass(frozen=True)
class SoFar:
    """Where a minimisation stands: the smallest scope so far and the actions of its trace.

    The last report says how it ended: "minimal" (no cut or pair of cuts is accepted and no run of
    the scope is shorter), "short" (the scope is too large to be searched to the violation: actions
    were dropped one by one) or "interrupted" (the best so far).
    """

    stage: Stage
    candidates: int
    scope: Scope
    actions: int
    seconds: float


def whole_only(so_far: SoFar) -> None:
    """A `watch` for those who have no use for the best so far of an interrupted minimisation."""
    if so_far.stage == "interrupted":
        raise KeyboardInterrupt


@dataclass(frozen=True)
class _Witness:
    """A scope with a run that breaks a wanted invariant; `states` were searched to find it."""

    scope: Scope
    actions: tuple[Action, ...]
    broken: tuple[str, ...]
    states: int | None

    @property
    def trace(self) -> Trace:
        return Trace(_named_minimal(self.scope), self.actions, self.broken)


def minimize(
    source: Trace | Scope,
    invariants: Iterable[str] = (),
    *,
    past: frozenset[Id] = frozenset(),
    watch: Callable[[SoFar], None] | None = None,
) -> Trace:
    """A shortest run, in the smallest scope found, that breaks one of the named invariants.

    A scope is smaller if it has fewer requests, steps in flight or drafts, or else if it is cut
    anywhere and its run is not longer. Where rules are off, the same actions, as far as they are
    enabled, break nothing with the rules on: what the run shows is what the rules prevent. Where
    none is off, the run falls in the same way: at the same kind of action, by the same assertion,
    and if it stalls, by the same way out of the scan of the waiting.

    `source` is a scope that a search finds broken, or a trace whose actions replay to a broken
    invariant, however long; no names stand for those that the source breaks. The rules that are
    off stay off. Candidates come in a fixed order, so that equal sources give equal traces.
    Invariants in `past` are not looked at: what falls after them is minimised. Ctrl-C ends it with
    the best so far; the last call of `watch` says so. Raises TraceError where the source breaks
    none of the invariants.
    """
    wanted = frozenset(invariants)
    for name in wanted:
        if name not in Id.__members__:
            raise TraceError(f"invariants = {name!r}: no invariant has this name")
    first = _first_witness(source, wanted, past)
    if not prevented(first.trace, past):
        raise TraceError(
            f"{first.scope.name}: an invariant is broken with {', '.join(first.scope.rules_off)} "
            f"on too; leave rules_off empty"
        )
    return _Shrinking(first, wanted, past, watch).run()


def _named_minimal(scope: Scope) -> Scope:
    name = scope.name if scope.name.endswith(_SUFFIX) else scope.name + _SUFFIX
    return msgspec.structs.replace(scope, name=name, about="")


def _first_witness(source: Trace | Scope, wanted: frozenset[str], past: frozenset[Id]) -> _Witness:
    if isinstance(source, Scope):
        found = _search(source, wanted, past, _FIRST_STATES)
        if not isinstance(found, _Witness):
            raise TraceError(
                f"{source.name}: {found}; a scope to minimise first breaks "
                f"{' or '.join(sorted(wanted)) or 'an invariant'}"
            )
        return found
    moments = []
    for moment in replay(source):
        moments.append(moment)
        if _looked_at(moment.broken, past):
            break
    broken = _looked_at(moments[-1].broken, past) if moments else ()
    if not broken or (wanted and wanted.isdisjoint(broken)):
        raise TraceError(
            f"the trace first breaks {', '.join(broken) or 'nothing'}; a trace to minimise first "
            f"breaks {' or '.join(sorted(wanted)) or 'an invariant'}"
        )
    return _Witness(source.scope, tuple(moment.action for moment in moments), broken, None)


def _looked_at(broken: tuple[str, ...], past: frozenset[Id]) -> tuple[str, ...]:
    return tuple(name for name in broken if Id[name] not in past)


def _search(
    scope: Scope, wanted: frozenset[str], past: frozenset[Id], states: int
) -> _Witness | str:
    """A shortest violation, if it breaks a wanted invariant, or in a word what else was found."""
    if max_actions(scope) > _MOST_ACTIONS:
        return "bounded"
    result = check(scope, Limits(states=states), ignore=past).result.finished()
    violation = result.violation
    if violation is None:
        return result.outcome
    if wanted and wanted.isdisjoint(violation.invariants):
        return f"breaks {', '.join(violation.invariants)}"
    actions = from_codes(scope, violation.actions).actions
    return _Witness(scope, actions, violation.invariants, result.states)


class _Shrinking:
    """One minimisation; `best` is the smallest witness so far."""

    def __init__(
        self,
        first: _Witness,
        wanted: frozenset[str],
        past: frozenset[Id],
        watch: Callable[[SoFar], None] | None,
    ) -> None:
        self.past = past
        self.best = first
        self.wanted = wanted or frozenset(first.broken)
        self.way = None if first.scope.rules_off else identity_of(first.trace).way
        self.watch = watch
        self.candidates = 0
        self.refused: set[Scope] = set()
        self.started = time.perf_counter()
        self.next_report = 0.0

    def run(self) -> Trace:
        """Cut until nothing can be cut, then search the smallest scope."""
        stage: Stage = "interrupted"
        try:
            self._search_best(_STATES)
            while self._cut_once() or self._cut_twice():
                pass
            self._search_best(_LAST_STATES)
            stage = "minimal"
            if self.best.states is None:
                self._drop_actions()
                stage = "short"
        except KeyboardInterrupt:
            pass
        self._report(stage)
        return self.best.trace

    def _search_best(self, states: int) -> None:
        """Find a shortest run of the scope at hand, if it takes no more states."""
        if self.best.states is None:
            found = self._find(self.best.scope, states)
            if isinstance(found, _Witness):
                self.best = found

    def _find(self, scope: Scope, states: int) -> _Witness | str:
        """A shortest run of a scope that falls as the source does, or in a word what else is."""
        found = _search(scope, self.wanted, self.past, states)
        if self.way is None or found in ("holds", "bounded"):
            return found
        if isinstance(found, _Witness) and self._falls_alike(found):
            return found
        result, traces = collect(SchedulerSystem(scope, ignore=self.past), max_states=states)
        result.finished()
        for trace in traces:
            witness = _Witness(scope, trace.actions, trace.broken, result.states)
            if not self.wanted.isdisjoint(trace.broken) and self._falls_alike(witness):
                return witness
        return result.outcome

    def _falls_alike(self, witness: _Witness) -> bool:
        return self.way is None or identity_of(witness.trace).way == self.way

    def _cut_once(self) -> bool:
        return any(self._accepts(cut) for cut in cuts(self.best.scope))

    def _cut_twice(self) -> bool:
        """Two cuts at once: a pool that must shrink with the requests that fill it."""
        for first, kept in cuts(self.best.scope):
            for second, kept_again in cuts(first):
                if self._accepts((second, tuple(kept[r] for r in kept_again))):
                    return True
        return False

    def _accepts(self, cut: Cut) -> bool:
        """Whether a smaller scope has the violation too; it then is the best."""
        scope, kept = cut
        if scope in self.refused:
            return False
        self._report("shrinking")
        self.candidates += 1
        limit = _STATES if self.best.states is None else max(_STATES, 2 * self.best.states)
        found = self._find(scope, limit)
        witness = found if isinstance(found, _Witness) else None
        if found == "bounded" and self.best.states is None:
            witness = self._follow(scope, _kept_actions(self.best.actions, kept))
        if witness is None or not self._is_better(witness):
            self.refused.add(scope)
            return False
        self.best = witness
        return True

    def _is_better(self, witness: _Witness) -> bool:
        lighter = weight(witness.scope) < weight(self.best.scope)
        if not lighter and len(witness.actions) > len(self.best.actions):
            return False
        return prevented(witness.trace, self.past)

    def _follow(self, scope: Scope, actions: Iterable[Action]) -> _Witness | None:
        taken, broken = follow(scope, actions, self.past)
        witness = _Witness(scope, taken, broken, None)
        if self.wanted.isdisjoint(broken) or not self._falls_alike(witness):
            return None
        return witness

    def _drop_actions(self) -> None:
        """Leave out runs of actions, long ones first, while the violation stays."""
        size = len(self.best.actions) // 2
        while size > 0:
            start = 0
            while start < len(self.best.actions):
                self._report("shrinking")
                actions = self.best.actions
                shorter = self._follow(self.best.scope, actions[:start] + actions[start + size :])
                if shorter is not None and len(shorter.actions) < len(actions):
                    self.best = shorter
                else:
                    start += size
            size //= 2

    def _report(self, stage: Stage) -> None:
        seconds = time.perf_counter() - self.started
        if self.watch is None or (stage == "shrinking" and seconds < self.next_report):
            return
        self.next_report = seconds + _PROGRESS_SECONDS
        best = self.best
        self.watch(SoFar(stage, self.candidates, best.scope, len(best.actions), seconds))


def follow(
    scope: Scope, actions: Iterable[Action], past: frozenset[Id] = frozenset()
) -> tuple[tuple[Action, ...], tuple[str, ...]]:
    """Take the actions as far as they are enabled, up to the first broken invariant.

    Where the device is to answer otherwise than it can, the nearest answer is taken. Invariants in
    `past` are not looked at. Returns the actions taken and the names of what they broke.
    """
    compiled = compile_scope(scope)
    state = compiled.initial()
    taken = []
    for action in actions:
        code = code_of(compiled, state, action, nearest=True)
        if code is None:
            continue
        taken.append(name_action(compiled, state, code))
        state, _report, mask = step(compiled, state, code)
        broken = _looked_at(names_of(mask), past)
        if broken:
            return tuple(taken), broken
    return tuple(taken), ()


def with_rules_on(trace: Trace, past: frozenset[Id] = frozenset()) -> Trace:
    """The same actions, as far as they are enabled, on vLLM as it is, and what they break."""
    return follow_in(msgspec.structs.replace(trace.scope, rules_off=()), trace, past)


def follow_in(scope: Scope, trace: Trace, past: frozenset[Id] = frozenset()) -> Trace:
    """The same actions, as far as they are enabled, in another scope, and what they break there."""
    return Trace(scope, *follow(scope, trace.actions, past))


def prevented(trace: Trace, past: frozenset[Id] = frozenset()) -> bool:
    """Whether the rules that are off make the difference.

    With them on the same actions, as far as they are enabled, break nothing.
    """
    return not trace.scope.rules_off or not with_rules_on(trace, past).broken


def _kept_actions(actions: Iterable[Action], kept: tuple[int, ...]) -> Iterator[Action]:
    """The actions that concern the kept requests, with their new numbers."""
    number = {old: new for new, old in enumerate(kept)}
    for action in actions:
        if action.request is None or action.request in number:
            yield msgspec.structs.replace(
                action,
                request=None if action.request is None else number[action.request],
                outcomes=_renumbered(action.outcomes, number),
                drafts=_renumbered(action.drafts, number),
            )


def _renumbered(values: Mapping[int, _T], number: Mapping[int, int]) -> dict[int, _T]:
    return {number[r]: value for r, value in values.items() if r in number}
