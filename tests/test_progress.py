"""Progress checks agree with networkx and plain definitions, and say when they claim nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import networkx as nx
import numpy as np
import pytest

from kvproof.checker.check import Limits
from kvproof.checker.check_progress import check_progress
from kvproof.checker.recorder import Recorder
from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.model import engine
from kvproof.model.compiled import Compiled
from kvproof.model.engine import Kind
from kvproof.model.scope import MAX_REQUESTS, Scope
from kvproof.model.state import Status
from kvproof.native.record import Record
from kvproof.scopes.named import SCOPES
from kvproof.search.explore import Chunk, explore
from kvproof.spec.findings import FINDINGS
from kvproof.spec.hangs import GUARDS, HANGS
from kvproof.spec.masks import Id
from kvproof.spec.progress import STATEMENTS, Property, broken_by
from kvproof.trace.codes import enabled_codes
from kvproof.trace.lasso import Lasso, check_returns, load_lasso, render_lasso, save_lasso
from kvproof.trace.trace import TraceError

GUARD = {guard.rule.name: guard for guard in GUARDS}
OFF = {name: guard.scope.with_rules_off(name) for name, guard in GUARD.items()}
SMALL = {
    "two-loads": SCOPES["two-loads"],
    "failing-loads": SCOPES["failing-loads"],
    "fatal-loads": SCOPES["fatal-loads"],
    "drafts": SCOPES["drafts"],
    **{hang.id: hang.scope for hang in HANGS},
    **{
        name: OFF[name]
        for name in (
            "drain_block_holders_first",
            "stay_awake_for_delayed_frees",
            "victim_must_be_freeable",
            "reserve_full_sequence",
            "release_hold_if_load_already_done",
            "roll_back_rejected_placeholders",
        )
    },
}
each_small = pytest.mark.parametrize("name", SMALL)


def graph_of(scope: Scope) -> tuple[Compiled, dict[int, Record], nx.MultiDiGraph]:
    """Every state and every transition of a scope, past whatever invariant falls."""
    system = SchedulerSystem(scope, ignore=frozenset(Id))
    states: dict[int, Record] = {}
    graph = nx.MultiDiGraph()

    def keep(chunk: Chunk) -> None:
        for i, row in enumerate(chunk.rows):
            states[chunk.first + i] = system.compiled.read(row.copy())
        for source, target, code in zip(chunk.parent, chunk.target, chunk.action, strict=True):
            graph.add_edge(chunk.first + int(source), int(target), code=int(code))

    assert explore(system, observe=keep).outcome == "holds"
    graph.add_nodes_from(states)
    return system.compiled, states, graph


def is_engines_own(compiled: Compiled, state: Record, code: int) -> bool:
    """Whether nobody but the engine and its devices does it, and nothing fails."""
    kind, argument = Kind(code % engine.KINDS), code // engine.KINDS
    if kind == Kind.OUTPUT:
        report = compiled.new_report()
        engine.decode_output(state, compiled.c, report, argument)
        return not report.load_fails.any()
    if kind == Kind.TRANSFER_LANDS:
        return argument < len(compiled.scope.requests)
    return kind in (Kind.SCHEDULE, Kind.DRAFTS, Kind.SENT)


def is_owed(state: Record) -> bool:
    """Whether anyone is unfinished, or finished and still there; for scopes without a pause."""
    statuses = state.status.tolist()
    ended = state.assertion or state.wrong_output
    return not ended and any(s not in (Status.ABSENT, Status.GONE) for s in statuses)


def ends_of_transfers(compiled: Compiled, state: Record) -> set[tuple[Kind, int]]:
    """The enabled ends of transfers, by kind and request."""
    requests = len(compiled.scope.requests)
    codes = enabled_codes(compiled, state).tolist()
    return {
        (Kind(code % engine.KINDS), code // engine.KINDS % requests)
        for code in codes
        if code % engine.KINDS in (Kind.TRANSFER_LANDS, Kind.SENT)
    }


class Plain:
    """The definitions, in plain Python on networkx: bad states by property."""

    def __init__(self, scope: Scope) -> None:
        self.compiled, self.states, self.graph = graph_of(scope)
        own = nx.MultiDiGraph()
        own.add_nodes_from(self.states)
        for source, target, code in self.graph.edges(data="code"):
            if is_engines_own(self.compiled, self.states[source], code):
                own.add_edge(source, target, code=code)
        self.own = own
        owed = {n for n, state in self.states.items() if is_owed(state)}
        self.dead = {n for n in owed if own.out_degree(n) == 0}
        idle = own.edge_subgraph(
            (u, v, k)
            for u, v, k, code in own.edges(keys=True, data="code")
            if self.is_idle(u, code)
        )
        self.parts = self.cycles(own)
        self.fair = [part for part in self.parts if self.is_fair(own, part)]
        self.starving = {n for part in self.fair if part <= owed for n in part}
        self.stuck = {
            n
            for part in self.cycles(idle)
            if part <= owed and self.is_fair(idle, part)
            for n in part
        }
        self.thrashing = {
            n
            for part in self.parts
            if any(self.preempts(u, v) for u, v in own.subgraph(part).edges())
            for n in part
        }

    def cycles(self, graph: nx.MultiDiGraph) -> list[set[int]]:
        parts = nx.strongly_connected_components(graph)
        return [p for p in parts if len(p) > 1 or graph.has_edge(*(2 * tuple(p)))]

    def is_idle(self, source: int, code: int) -> bool:
        """An empty step: scheduled or taken in, and no load is started."""
        before, after = self.states[source], self.states[source].copy()
        report = self.compiled.new_report()
        engine.apply(after, self.compiled.c, report, code)
        kind = code % engine.KINDS
        if kind == Kind.SCHEDULE:
            return report.num_scheduled == 0 and not report.new_load.any()
        return kind == Kind.OUTPUT and before.step_len[0] == 0

    def preempts(self, source: int, target: int) -> bool:
        before, after = self.states[source].status, self.states[target].status
        return bool(((before == Status.RUNNING) & (after == Status.PREEMPTED)).any())

    def is_fair(self, graph: nx.MultiDiGraph, part: set[int]) -> bool:
        """Strong fairness for each transfer: an end that is enabled somewhere is taken."""
        enabled = set.union(*(ends_of_transfers(self.compiled, self.states[n]) for n in part))
        requests = len(self.compiled.scope.requests)
        taken = {
            (Kind(code % engine.KINDS), code // engine.KINDS % requests)
            for _u, _v, code in graph.subgraph(part).edges(data="code")
        }
        return enabled <= taken


@each_small
def test_a_check_finds_what_the_plain_definitions_find_with_the_shortest_stem(name: str) -> None:
    plain = Plain(SMALL[name])
    done = check_progress(SMALL[name])
    assert done.cycles == len(plain.parts)
    assert done.cycle_states == sum(map(len, plain.parts))
    assert done.fair_cycles == len(plain.fair)
    assert done.due_states == sum(map(is_owed, plain.states.values()))
    depth = nx.single_source_shortest_path_length(plain.graph, 0)
    for broken, bad in (
        (Property.NoDeadEnd, plain.dead),
        (Property.NothingStuck, plain.stuck),
        (Property.NoPreemptionCycle, plain.thrashing),
        (Property.EveryRequestFinishes, plain.starving | plain.dead),
    ):
        stems = [len(one.stem) for one in done.lassos if broken.name in one.broken]
        shortest = min((depth[n] for n in bad), default=None)
        assert min(stems, default=None) == shortest, broken.name


@each_small
def test_renaming_blocks_changes_no_verdict(name: str) -> None:
    with_renaming = check_progress(SMALL[name])
    without = check_progress(SMALL[name], rename=False)
    assert with_renaming.outcome == without.outcome
    assert [one.broken for one in with_renaming.lassos] == [one.broken for one in without.lassos]
    assert [len(one.stem) for one in with_renaming.lassos] == [
        len(one.stem) for one in without.lassos
    ]
    assert with_renaming.result.states <= without.result.states


@each_small
def test_a_loop_returns_to_its_very_state(name: str) -> None:
    for one in check_progress(SMALL[name]).lassos:
        check_returns(one)
        assert one.loop or set(one.broken) & {"NoDeadEnd", "BoundedOvertaking"}


def test_a_loop_under_renaming_is_taken_until_the_block_numbers_return() -> None:
    (one,) = check_progress(OFF["reserve_full_sequence"]).lassos
    once, again = one.loop[: len(one.loop) // 2], one.loop[len(one.loop) // 2 :]
    assert once == again
    with pytest.raises(TraceError, match="does not return"):
        check_returns(msgspec.structs.replace(one, loop=once))


def test_a_cycle_that_puts_off_a_transfer_for_ever_is_not_fair() -> None:
    done = check_progress(SCOPES["two-loads"])
    assert done.outcome == "holds"
    assert done.cycles > 0
    assert done.fair_cycles == 0


def test_a_loop_takes_no_action_of_a_client_and_nothing_that_fails() -> None:
    for scope in SMALL.values():
        for one in check_progress(scope).lassos:
            assert {action.do for action in one.loop} <= {
                "schedule",
                "output",
                "drafts",
                "transfer_lands",
                "sent",
            }
            assert all(action.failed_block is None for action in one.loop)
            assert not any(o.load_fails for a in one.loop for o in a.outcomes.values())


def test_a_search_that_ends_early_claims_no_progress_but_reports_what_it_found() -> None:
    assert check_progress(SCOPES["two-loads"], Limits(states=200)).outcome == "bounded"
    hang = next(hang for hang in HANGS if hang.id == "failed-load-stands-in-its-own-way")
    whole = check_progress(hang.scope)
    part = check_progress(hang.scope, Limits(states=whole.result.states - 1))
    assert part.outcome in ("bounded", "violated")
    assert part.short_because or part.lassos


def test_a_scope_whose_runs_end_in_an_assertion_claims_no_progress() -> None:
    finding = next(one for one in FINDINGS if one.id == "padding-over-threshold")
    done = check_progress(finding.scope)
    assert done.result.outcome == "holds"
    assert done.cut_states > 0
    assert done.outcome == "bounded"
    assert "assertion" in done.short_because


def test_more_cycles_can_be_asked_for() -> None:
    one = check_progress(OFF["drain_block_holders_first"])
    many = check_progress(OFF["drain_block_holders_first"], most=50)
    assert len(one.lassos) == 1
    assert len(many.lassos) == many.fair_cycles > 1
    assert many.lassos[0] == one.lassos[0]


def test_nothing_is_owed_to_who_waits_while_paused() -> None:
    done = check_progress(SCOPES["pause"])
    assert done.outcome == "holds"
    assert 0 < done.due_states < done.result.states


def test_every_property_is_stated_once() -> None:
    assert [one.property for one in STATEMENTS] == list(Property)


def test_every_rule_named_with_a_property_is_a_guard_that_shows_it() -> None:
    for one in STATEMENTS:
        for rule in broken_by(one.property):
            lassos = check_progress(OFF[rule.name]).lassos
            assert any(one.property.name in found.broken for found in lassos), rule.name


@pytest.fixture
def lasso() -> Lasso:
    return check_progress(OFF["drain_block_holders_first"]).lassos[0]


def test_a_lasso_survives_its_file(lasso: Lasso, tmp_path: Path) -> None:
    save_lasso(lasso, tmp_path / "lasso.json")
    assert load_lasso(tmp_path / "lasso.json") == lasso
    assert "for ever:" in render_lasso(lasso)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"broken": ("Nonsense",)}, "no progress property is named"),
        ({"format": "kvproof trace"}, "a lasso has"),
        ({"version": 99}, "a newer kvproof wrote it"),
        ({"loop": []}, "loop is empty"),
        ({"stem": [{"do": "add", "request": 9}]}, "request 9"),
    ],
)
def test_a_file_that_is_no_sound_lasso_is_refused(
    lasso: Lasso, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "lasso.json"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(lasso), **change}))
    with pytest.raises(TraceError, match=words):
        load_lasso(path)


def test_a_loop_that_does_not_go_round_is_refused(lasso: Lasso, tmp_path: Path) -> None:
    save_lasso(msgspec.structs.replace(lasso, loop=lasso.loop[:1]), tmp_path / "lasso.json")
    with pytest.raises(TraceError, match="does not return"):
        load_lasso(tmp_path / "lasso.json")


def test_masks_hold_every_request_that_a_scope_may_have() -> None:
    recorder = Recorder(SchedulerSystem(SCOPES["two-equal"]))
    for column in (recorder.due, recorder.transfers, recorder.waiting, recorder.passed):
        assert np.iinfo(column.values.dtype).bits >= MAX_REQUESTS
