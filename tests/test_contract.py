"""The contract of the surroundings: its sources, its page, and that no run breaks it."""

from __future__ import annotations

import ast
from collections import deque
from pathlib import Path
from typing import NamedTuple

import pytest

from kvproof.bridge import environment, observation
from kvproof.evidence.counterexamples import FOLDER as RULES
from kvproof.evidence.finding_pages import FOLDER as FINDINGS
from kvproof.evidence.hang_pages import FOLDER as HANGS
from kvproof.model.compiled import Compiled, compile_scope
from kvproof.model.engine import Kind
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.model.state import Status
from kvproof.native.record import Record
from kvproof.scopes.named import SCOPES
from kvproof.spec.contract import CONTRACT, Promise
from kvproof.trace.actions import Action, Outcome
from kvproof.trace.codes import enabled_codes, name_action
from kvproof.trace.lasso import load_lasso
from kvproof.trace.trace import Trace, TraceError, from_codes, load, passed_over, replay, step
from kvproof.walks.walk import Walker

ROOT = Path(__file__).parent.parent
NAMES = {promise.name for promise in CONTRACT}
each = pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.name)
KEPT = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (RULES, FINDINGS, HANGS)
    for path in (ROOT / folder).glob("*.json")
)

LOADS = Scope(
    name="a load behind a step",
    kv_role="kv_consumer",
    async_scheduling=True,
    may_fail_loads=True,
    may_reset_running=True,
    requests=(RequestSpec(prompt=(1, 1), max_tokens=1, external=External(1)),),
    num_blocks=4,
    max_num_batched_tokens=2,
    max_model_len=3,
)
SENDS = Scope(
    name="a sending behind a step",
    kv_role="kv_both",
    async_scheduling=True,
    requests=(
        RequestSpec(prompt=(1, 1), max_tokens=1, delay_free=True),
        RequestSpec(prompt=(2, 1), max_tokens=2, external=External(1), may_abort=True),
    ),
    num_blocks=5,
    max_num_batched_tokens=4,
    max_model_len=4,
)
TRANSFERS = [
    name
    for name, scope in SCOPES.items()
    if any(r.delay_free or (r.external and r.external.is_async) for r in scope.requests)
]


class Told(NamedTuple):
    """What was told to workers and not reported since, and what each step in flight tells.

    Kept apart from the model: loads and ends are read off what each step sends.
    """

    loading: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    in_flight: tuple[tuple[frozenset[int], frozenset[int]], ...] = ()

    def after(self, compiled: Compiled, before: Record, action: Action, report: Record) -> Told:
        """The same after one more action; AssertionError where it reports what nobody was told."""
        if action.kind == Kind.SCHEDULE:
            loads = frozenset(r for r, new in enumerate(report.new_load.tolist()) if new)
            ends = frozenset(r for r, note in enumerate(before.finished_note.tolist()) if note)
            return self._replace(in_flight=(*self.in_flight, (loads, ends)))
        if action.kind != Kind.OUTPUT:
            return self
        (loads, ends), *later = self.in_flight
        loading, ended = self.loading | loads, self.ended | ends
        _name, _tokens, recved, sent, _invalid = observation.operation(
            compiled, before, action, report
        )
        assert loading.issuperset(recved), f"{action}: the loads of {recved} are reported too early"
        assert ended.issuperset(sent), f"{action}: the sendings of {sent} are reported too early"
        return Told(loading.difference(recved), ended.difference(sent), tuple(later))


def obey(trace: Trace) -> int:
    """Take a run and its reports against what its steps tell; returns the transfers reported."""
    compiled, told, reported = compile_scope(trace.scope), Told(), 0
    for moment in replay(trace):
        before = len(told.loading) + len(told.ended)
        told = told.after(compiled, moment.before, moment.action, moment.report)
        reported += max(0, before - len(told.loading) - len(told.ended))
        if moment.after.assertion:
            break
    return reported


@pytest.mark.parametrize(
    "scope",
    [LOADS, SENDS, SCOPES["failing-loads"], SCOPES["fatal-loads"]],
    ids=lambda scope: scope.name,
)
def test_no_state_of_a_scope_reports_what_its_steps_have_not_told(scope: Scope) -> None:
    compiled = compile_scope(scope)
    first = compiled.initial()
    seen = {(first.row.tobytes(), Told())}
    ahead = deque([(first, Told())])
    reports = 0
    while ahead:
        state, told = ahead.popleft()
        for code in enabled_codes(compiled, state).tolist():
            after, report, _broken = step(compiled, state, code)
            then = told.after(compiled, state, name_action(compiled, state, code), report)
            reports += len(then.loading) < len(told.loading) or len(then.ended) < len(told.ended)
            key = after.row.tobytes(), then
            if key not in seen:
                seen.add(key)
                ahead.append((after, then))
    assert reports > 10


@pytest.mark.parametrize("name", KEPT)
def test_no_run_that_is_kept_breaks_the_contract(name: str) -> None:
    if name.startswith(str(HANGS)):
        obey(load_lasso(ROOT / name).rounds(3))
    else:
        obey(load(ROOT / name))


@pytest.mark.parametrize("name", TRANSFERS)
def test_no_random_run_breaks_the_contract(name: str) -> None:
    reported = 0
    for seed in range(12):
        walked = Walker(compile_scope(SCOPES[name])).walk(60, seed, guided=True)
        reported += obey(from_codes(SCOPES[name], walked.codes))
    assert reported > 0


def test_a_run_that_reports_too_early_is_told_from_the_others() -> None:
    compiled = compile_scope(LOADS)
    state, told = compiled.initial(), Told()
    for action in (
        Action("add", request=0),
        Action("schedule"),
        Action("schedule"),
        Action("transfer_lands", request=0),
    ):
        code = next(
            code
            for code in enabled_codes(compiled, state).tolist()
            if name_action(compiled, state, code) == action
        )
        before = state
        state, report, _broken = step(compiled, before, code)
        told = told.after(compiled, before, action, report)
    report = compiled.new_report()
    assert told.after(compiled, state, Action("output"), report).loading == frozenset()
    (loads, ends), second = told.in_flight
    late = told._replace(in_flight=((frozenset(), ends), (loads, second[1])))
    with pytest.raises(AssertionError, match="too early"):
        late.after(compiled, state, Action("output"), report)


START = (Action("add", request=0), Action("schedule"))
SENDING = (*START, Action("schedule"), Action("output", outcomes={0: Outcome()}))


@pytest.mark.parametrize(
    ("promise", "scope", "actions"),
    [
        ("ids-arrive-once", LOADS, (START[0], START[0])),
        ("one-output-per-step", LOADS, (Action("output"),)),
        ("queue-filled-before-waiting", LOADS, (*START, Action("output"))),
        ("queue-filled-before-waiting", LOADS, (*START, *START[1:] * 2)),
        (
            "utility-calls-between-steps",
            LOADS,
            (*START, START[1], Action("reset_prefix_cache", running=True)),
        ),
        ("loads-end-once", LOADS, (START[0], Action("transfer_lands", request=0))),
        ("sendings-end-once", SENDS, (START[0], Action("sent", request=0))),
        (
            "sendings-reported-once-the-end-is-told",
            SENDS,
            (
                START[0],
                Action("add", request=1),
                *START[1:] * 2,
                Action("output", outcomes={0: Outcome()}),
                Action("sent", request=0),
            ),
        ),
        (
            "samples-what-is-due",
            SCOPES["drafts"],
            (*START, Action("output", outcomes={0: Outcome(accepted=9)})),
        ),
        (
            "drafts-at-most-k",
            SCOPES["drafts"],
            (*START, Action("output", outcomes={0: Outcome()}), Action("drafts", drafts={0: 9})),
        ),
        (
            "drafts-follow-their-output",
            SCOPES["drafts"],
            (*START, Action("output", outcomes={0: Outcome()}), Action("output")),
        ),
    ],
)
def test_an_action_that_breaks_a_promise_is_refused_by_its_name(
    promise: str, scope: Scope, actions: tuple[Action, ...]
) -> None:
    said = rf"action {len(actions)} .* is not enabled; .*; it breaks the promise {promise}"
    with pytest.raises(TraceError, match=said):
        list(replay(Trace(scope, actions)))
    assert promise in NAMES


def test_a_run_that_needs_an_early_report_is_refused_with_the_promise_that_it_breaks() -> None:
    schedule, lands, output = START[1], Action("transfer_lands", request=0), Action("output")
    reset, given = Action("reset_prefix_cache", running=True), {0: Outcome()}
    actions = (
        *START,
        schedule,
        lands,
        output,
        schedule,
        output,
        reset,
        schedule,
        Action("transfer_lands", request=0, failed_block=0),
        Action("output", outcomes=given),
        schedule,
        output,
    )
    said = "at action 11 the load of R0 is over, .* loads-reported-from-their-step-on"
    with pytest.raises(TraceError, match=said):
        passed_over(Trace(LOADS, actions, ("ReadsCorrect",)))


def test_a_connector_offers_no_more_tokens_than_there_are() -> None:
    request = RequestSpec(prompt=(1, 1), max_tokens=1, external=External(3))
    compiled = compile_scope(Scope(**{**_values(LOADS), "requests": (request,)}))
    state = compiled.initial()
    for kind in (Kind.ADD, Kind.SCHEDULE):
        state, _report, _broken = step(compiled, state, int(kind))
    assert state.load_tokens[0] == 2


def _values(scope: Scope) -> dict[str, object]:
    return {name: getattr(scope, name) for name in scope.__struct_fields__}


def test_an_aborted_request_is_not_kept_for_sending() -> None:
    request = RequestSpec(prompt=(1, 1), max_tokens=2, delay_free=True, may_abort=True)
    compiled = compile_scope(Scope(**{**_values(SENDS), "requests": (request,)}))
    state = compiled.initial()
    for kind in (Kind.ADD, Kind.SCHEDULE, Kind.SCHEDULE, Kind.ABORT):
        state, _report, _broken = step(compiled, state, int(kind))
    assert (state.status[0], state.sending[0]) == (Status.GONE, 0)


@each
def test_a_promise_has_its_source_in_vllm(promise: Promise) -> None:
    python = environment.find()
    if python is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    (packages,) = python.parent.parent.glob("lib/python3*/site-packages")
    assert promise.sources
    for source in promise.sources:
        file, _, name = source.partition(": ")
        assert name in defined(packages / file), source


@each
def test_a_promise_names_tests_that_are_there(promise: Promise) -> None:
    assert promise.tests
    for test in promise.tests:
        file, _, name = test.partition("::")
        assert name in defined(ROOT / file), test


def defined(path: Path) -> set[str]:
    """The functions and methods of a file, as Class.function."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, ast.FunctionDef))
            names |= {f"{node.name}.{inner.name}" for inner in methods}
    return names


def test_what_is_not_defined_is_no_source() -> None:
    names = defined(Path(__file__))
    assert "Told.after" in names
    assert "Told.before" not in names
