"""The search visits what plain Python visits, and reports a shortest violation or its limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.search import explore as explore_module
from kvproof.search import store
from kvproof.search.explore import Chunk, Result, SoFar, explore
from kvproof.search.system import StepTooLarge, Successors, Words
from tests import two_phase_commit as tpc
from tests.two_phase_commit import TwoPhaseCommit

ROOT = Path(__file__).resolve().parent.parent
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
compiled_only = pytest.mark.skipif(INTERPRETED, reason="too many states for the interpreter")


class Graph:
    """A system in plain Python: numbered nodes; an action is the position of an edge.

    `bad_nodes` and `bad_edges` hold masks of the invariants that a node or an edge breaks.
    """

    name = "graph"
    words = 1
    invariants: Sequence[str] = ("first", "second", "third")

    def __init__(
        self,
        edges: Mapping[int, Sequence[int]],
        *,
        starts: Sequence[int] = (0,),
        bad_nodes: Mapping[int, int] | None = None,
        bad_edges: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        self.edges = edges
        self.starts = starts
        self.bad_nodes = bad_nodes or {}
        self.bad_edges = bad_edges or {}
        self.max_successors = max([1, *map(len, edges.values())])

    def initial(self) -> Words:
        return np.array(self.starts, np.uint64).reshape(-1, 1)

    def expand(self, rows: Words, out: Successors) -> int:
        count = 0
        for i, node in enumerate(rows[:, 0].tolist()):
            for action, target in enumerate(self.edges.get(node, ())):
                out.rows[count] = target
                out.parent[count] = i
                out.action[count] = action
                out.broken[count] = self.bad_edges.get((node, action), 0)
                count += 1
        return count

    def check(self, rows: Words, broken: Words) -> None:
        broken[:] = [self.bad_nodes.get(node, 0) for node in rows[:, 0].tolist()]

    def describe(self, action: int) -> str:
        return f"edge {action}"


@dataclass(frozen=True)
class Expected:
    """What a search of a graph should find; `violation` is (mask, actions, start)."""

    levels: tuple[int, ...]
    transitions: int
    dead_ends: int
    violation: tuple[int, tuple[int, ...], int] | None


def search_graph(graph: Graph) -> Expected:
    """One node and one edge after the other; counts are meaningless after a violation."""
    paths: dict[int, tuple[tuple[int, ...], int]] = {}
    for start, node in enumerate(graph.starts):
        paths.setdefault(node, ((), start))
    for node, (_, start) in paths.items():
        if mask := graph.bad_nodes.get(node, 0):
            return Expected((), 0, 0, (mask, (), start))
    frontier = list(paths)
    levels = []
    transitions = dead_ends = 0
    while frontier:
        levels.append(len(frontier))
        following = []
        for node in frontier:
            dead_ends += not graph.edges.get(node)
            for action, target in enumerate(graph.edges.get(node, ())):
                transitions += 1
                mask = graph.bad_edges.get((node, action), 0)
                actions, start = paths[node]
                if target not in paths:
                    paths[target] = ((*actions, action), start)
                    following.append(target)
                    mask |= graph.bad_nodes.get(target, 0)
                if mask:
                    return Expected((), 0, 0, (mask, (*actions, action), start))
        frontier = following
    return Expected(tuple(levels), transitions, dead_ends, None)


def chain(length: int) -> Graph:
    return Graph({node: [node + 1] for node in range(length)})


def same_findings(one: Result, other: Result) -> bool:
    """Whether the results differ in time and memory only."""
    return replace(one, seconds=0, store_bytes=0, peak_frontier_bytes=0) == replace(
        other, seconds=0, store_bytes=0, peak_frontier_bytes=0
    )


@pytest.mark.parametrize(
    ("managers", "states", "generated"),
    [
        (3, 288, 1_146),
        pytest.param(7, 296_448, 2_744_706, marks=compiled_only),
        pytest.param(8, 1_745_408, 18_507_778, marks=compiled_only),
    ],
)
def test_two_phase_commit_has_the_published_counts(
    managers: int, states: int, generated: int
) -> None:
    result = explore(TwoPhaseCommit(managers))
    assert result.outcome == "holds"
    assert result.reason is None
    assert result.violation is None
    assert (result.states, result.generated) == (states, generated)
    assert result.transitions == generated - 1
    assert result.depth == result.covered_depth == 3 * managers + 1
    assert sum(result.levels) == result.states
    assert result.collision_probability < 1e-6
    if managers == 8:
        assert result.bytes_per_state < 40


@pytest.mark.parametrize("managers", [1, 2, 3, pytest.param(5, marks=compiled_only)])
def test_states_and_transitions_are_those_of_plain_python_in_the_same_order(managers: int) -> None:
    plain = tpc.plain_search(managers)
    numbers = {state: number for number, state in enumerate(plain.found)}
    plain_edges = [
        (number, action, numbers[target])
        for state, number in numbers.items()
        for action, target in tpc.successors(state)
    ]
    rows: list[int] = []
    edges: list[tuple[int, int, int]] = []

    def observe(chunk: Chunk) -> None:
        assert len(rows) == chunk.first
        rows.extend(chunk.rows[:, 0].tolist())
        sources = (chunk.first + chunk.parent).tolist()
        edges.extend(zip(sources, chunk.action.tolist(), chunk.target.tolist(), strict=True))
        for k in chunk.new:
            assert chunk.successors[k, 0] == tpc.pack(list(plain.found)[chunk.target[k]])

    result = explore(TwoPhaseCommit(managers), observe=observe)
    assert rows == [tpc.pack(state) for state in plain.found]
    assert edges == plain_edges
    assert result.levels == plain.levels
    assert result.transitions == plain.transitions


def test_paths_replay_to_their_states() -> None:
    result = explore(TwoPhaseCommit(3))
    for number, expected in enumerate(tpc.plain_search(3).found):
        state = tpc.initial_state(3)
        initial, actions = result.store.path_to(number)
        for action in actions:
            state = dict(tpc.successors(state))[action]
        assert (initial, state) == (0, expected)


def test_a_commit_out_of_turn_is_found_with_a_shortest_trace_that_replays() -> None:
    result = explore(TwoPhaseCommit(4, commits_unasked=True))
    assert result.outcome == "violated"
    assert result.violation is not None
    assert result.violation.invariants == ("Consistent",)
    state = tpc.initial_state(4)
    for action in result.violation.actions:
        assert tpc.consistent(state)
        state = dict(tpc.successors(state, commits_unasked=True))[action]
    assert not tpc.consistent(state)
    # One manager prepares and commits, another aborts: nothing shorter has both.
    assert len(result.violation.actions) == 3
    assert result.covered_depth == 2
    names = [TwoPhaseCommit(4).describe(action) for action in result.violation.actions]
    assert names == ["RMPrepare(0)", "RMCommitUnasked(0)", "RMChooseToAbort(1)"]


masks = st.integers(1, 7)
nodes = st.integers(0, 11)


@given(
    edges=st.dictionaries(nodes, st.lists(nodes, max_size=4)),
    starts=st.lists(nodes, min_size=1, max_size=3),
    bad_nodes=st.dictionaries(nodes, masks, max_size=2),
    bad_edges=st.dictionaries(st.tuples(nodes, st.integers(0, 3)), masks, max_size=2),
)
def test_any_graph_gives_what_one_step_after_another_gives(
    edges: dict[int, list[int]],
    starts: list[int],
    bad_nodes: dict[int, int],
    bad_edges: dict[tuple[int, int], int],
) -> None:
    graph = Graph(edges, starts=starts, bad_nodes=bad_nodes, bad_edges=bad_edges)
    expected = search_graph(graph)
    result = explore(graph)
    if expected.violation is None:
        assert result.outcome == "holds"
        assert result.levels == expected.levels
        assert result.transitions == expected.transitions
        assert result.dead_ends == expected.dead_ends
        assert result.initial_states == len(starts)
    else:
        mask, actions, start = expected.violation
        names = tuple(name for bit, name in enumerate(graph.invariants) if mask >> bit & 1)
        assert result.violation is not None
        assert result.violation.invariants == names
        assert (result.violation.actions, result.violation.initial) == (actions, start)


@pytest.mark.parametrize("commits_unasked", [False, True])
def test_the_size_of_chunks_does_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, commits_unasked: bool
) -> None:
    system = TwoPhaseCommit(4, commits_unasked=commits_unasked)
    large = explore(system)
    for size in (1, 2000, 5000):
        monkeypatch.setattr(explore_module, "_CHUNK_BYTES", size)
        small = explore(system)
        if commits_unasked:
            assert small.violation == large.violation
        else:
            assert same_findings(small, large)


def test_states_of_many_words_are_told_apart() -> None:
    class Counters(Graph):
        """Five counters to 3, each in a word of its own; an action steps one of them."""

        words = 5

        def __init__(self) -> None:
            super().__init__({0: range(5)})

        def initial(self) -> Words:
            return np.zeros((1, 5), np.uint64)

        def expand(self, rows: Words, out: Successors) -> int:
            for k in range(5 * len(rows)):
                i, counter = divmod(k, 5)
                out.rows[k] = rows[i]
                out.rows[k, counter] = (rows[i, counter] + 1) % 4
                out.parent[k] = i
                out.action[k] = counter
            return 5 * len(rows)

    result = explore(Counters())
    assert (result.outcome, result.states, result.transitions) == ("holds", 4**5, 5 * 4**5)
    assert result.depth == 5 * 3


def test_a_violating_transition_into_a_known_state_is_reported() -> None:
    result = explore(Graph({0: [1], 1: [2], 2: [0]}, bad_edges={(2, 0): 4}))
    assert result.outcome == "violated"
    assert result.violation is not None
    assert result.violation.invariants == ("third",)
    assert result.violation.actions == (0, 0, 0)
    assert result.states == 3


def test_what_a_transition_and_its_new_state_break_is_reported_together() -> None:
    result = explore(Graph({0: [1]}, bad_nodes={1: 1}, bad_edges={(0, 0): 2}))
    assert result.violation is not None
    assert result.violation.invariants == ("first", "second")


def test_an_initial_state_that_breaks_an_invariant_is_reported_by_its_row() -> None:
    result = explore(Graph({}, starts=(5, 6, 7), bad_nodes={7: 1, 6: 2}))
    assert result.violation is not None
    assert result.violation.invariants == ("second",)
    assert (result.violation.actions, result.violation.initial) == ((), 1)


def test_states_without_successors_are_counted() -> None:
    result = explore(Graph({0: [1, 2, 3], 1: [1], 2: []}))
    assert (result.outcome, result.dead_ends, result.states) == ("holds", 2, 4)


def test_a_limit_of_states_bounds_the_search() -> None:
    full = explore(TwoPhaseCommit(4))
    result = explore(TwoPhaseCommit(4), max_states=500)
    assert (result.outcome, result.reason) == ("bounded", "states")
    assert 500 <= result.states < full.states
    assert sum(result.levels) == result.states
    complete = result.covered_depth + 1
    assert 0 < complete <= len(result.levels)
    assert result.levels[:complete] == full.levels[:complete]


def test_a_limit_that_is_not_reached_leaves_the_search_exhaustive() -> None:
    limits = {"max_states": 289, "max_memory": 10**9, "max_seconds": 60.0}
    for name, value in limits.items():
        assert explore(TwoPhaseCommit(3), **{name: value}).outcome == "holds"  # type: ignore[arg-type]


def test_a_limit_of_time_bounds_the_search() -> None:
    result = explore(TwoPhaseCommit(3), max_seconds=1e-9)
    assert (result.outcome, result.reason, result.levels) == ("bounded", "seconds", (1,))


def test_a_limit_of_memory_is_kept_and_bounds_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore_module, "_CHUNK_BYTES", 5000)
    monkeypatch.setattr(explore_module, "_WATCH_SECONDS", 0)
    limit = 50_000
    seen: list[int] = []
    result = explore(
        TwoPhaseCommit(4),
        max_memory=limit,
        watch=lambda so_far: seen.append(so_far.memory),
    )
    assert (result.outcome, result.reason) == ("bounded", "memory")
    assert limit / 2 < max(seen) <= limit
    assert result.states > 500


@pytest.mark.parametrize("successors", [10**13, 10**20])
def test_a_step_that_memory_has_no_room_for_is_refused_with_its_need(successors: int) -> None:
    system = TwoPhaseCommit(3)
    system.max_successors = successors
    with pytest.raises(StepTooLarge, match=rf"{successors:,} successors, which take .* GB"):
        explore(system)


def test_the_size_of_a_process_is_what_it_takes_or_has_taken() -> None:
    # In a process of its own: this one may have room left over from what it has freed.
    script = """
import builtins
import numpy as np
from kvproof.search.explore import process_size
before = process_size()
taken = np.ones(40_000_000, np.uint8)
grown = process_size() - before
def closed(*_):
    raise FileNotFoundError
builtins.open = closed
print(taken.nbytes, grown, before, process_size())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    nbytes, grown, before, most = map(int, done.stdout.split())
    assert 0.9 * nbytes < grown < 2 * nbytes
    assert most >= before + 0.9 * nbytes


def test_a_part_is_of_no_use_where_the_whole_is_asked_for() -> None:
    def interrupt(_so_far: SoFar) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore(TwoPhaseCommit(3), watch=interrupt).finished()
    bounded = explore(TwoPhaseCommit(3), max_states=1)
    assert bounded.finished() is bounded


def test_an_interrupt_from_the_progress_callback_bounds_the_search() -> None:
    def interrupt(_so_far: SoFar) -> None:
        raise KeyboardInterrupt

    result = explore(TwoPhaseCommit(3), watch=interrupt)
    assert (result.outcome, result.reason, result.states) == ("bounded", "interrupted", 1)


@pytest.fixture
def python_interrupts() -> Iterator[None]:
    """Ctrl-C as Python has it by default: a process in the background may have it ignored."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("python_interrupts")
def test_ctrl_c_ends_the_search_after_the_chunk_at_hand() -> None:
    class Interrupted(Graph):
        def expand(self, rows: Words, out: Successors) -> int:
            if 5 in rows[:, 0]:
                signal.raise_signal(signal.SIGINT)
            return super().expand(rows, out)

    before = signal.getsignal(signal.SIGINT)
    result = explore(Interrupted(chain(100).edges))
    assert (result.outcome, result.reason) == ("bounded", "interrupted")
    assert (result.states, result.transitions, result.levels) == (7, 6, (1,) * 7)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("python_interrupts")
def test_a_second_ctrl_c_ends_the_search_at_once() -> None:
    class Stuck(Graph):
        def expand(self, rows: Words, out: Successors) -> int:
            if 5 in rows[:, 0]:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().expand(rows, out)

    before = signal.getsignal(signal.SIGINT)
    result = explore(Stuck(chain(100).edges))
    assert (result.outcome, result.reason, result.states) == ("bounded", "interrupted", 6)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_search_runs_outside_the_main_thread() -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(explore(TwoPhaseCommit(2))))
    thread.start()
    thread.join()
    assert results[0].outcome == "holds"


def test_progress_tells_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore_module, "_WATCH_SECONDS", 0)
    monkeypatch.setattr(explore_module, "_CHUNK_BYTES", 2000)
    seen: list[SoFar] = []
    result = explore(TwoPhaseCommit(3), watch=seen.append)
    assert seen[0].states == 1
    assert [p.states for p in seen] == sorted(p.states for p in seen)
    assert {p.depth for p in seen} == set(range(result.depth + 1))
    for p in seen:
        expanded = sum(result.levels[: p.depth]) + p.level_done * result.levels[p.depth]
        assert p.frontier == p.states - round(expanded)
        assert 0 <= p.level_done < 1
        assert p.transitions <= result.transitions
        assert p.memory > 0


def test_progress_is_reported_at_most_ten_times_a_second() -> None:
    seen: list[SoFar] = []
    result = explore(TwoPhaseCommit(3 if INTERPRETED else 6), watch=seen.append)
    assert 1 <= len(seen) <= 1 + 10 * result.seconds


class NoStart(Graph):
    def initial(self) -> Words:
        return np.zeros((0, 1), np.uint64)


class WrongRows(Graph):
    def initial(self) -> Words:
        return np.zeros((1, 2), np.uint64)


class TooManySuccessors(Graph):
    def expand(self, rows: Words, out: Successors) -> int:
        return len(rows) * self.max_successors + 1


class TooManyInvariants(Graph):
    invariants = tuple(f"i{number}" for number in range(64))


class NoWords(Graph):
    words = 0


@pytest.mark.parametrize(
    ("system", "complaint"),
    [
        (NoStart({}), "is empty"),
        (WrongRows({}), r"shape \(1, 2\); it must be uint64 and \(n, 1\)"),
        (TooManySuccessors({0: [1]}), "max_successors = 1 allows 0 to"),
        (TooManyInvariants({}), "64 invariants; a search checks at most 63"),
        (NoWords({}), "words = 0"),
        (Graph({0: [1]}, bad_nodes={1: 8}), "bit 3 .* names 3"),
    ],
)
def test_a_system_that_breaks_the_contract_is_refused(system: Graph, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        explore(system)


@pytest.mark.parametrize("limit", ["max_states", "max_memory", "max_seconds"])
def test_a_limit_that_is_not_positive_is_refused(limit: str) -> None:
    with pytest.raises(ValueError, match=f"{limit} is 0; it must be positive"):
        explore(chain(1), **{limit: 0})  # type: ignore[arg-type]


def test_more_states_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_STATES", 100)
    with pytest.raises(OverflowError, match="more than 100 states"):
        explore(TwoPhaseCommit(3))


@compiled_only
def test_the_same_source_runs_without_the_compiler() -> None:
    script = (
        "from kvproof.search.explore import explore\n"
        "from tests.two_phase_commit import TwoPhaseCommit\n"
        "result = explore(TwoPhaseCommit(3))\n"
        "print(result.levels, result.transitions, result.store.actions.tolist())\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_DISABLE_JIT": "1"}
    interpreted = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    result = explore(TwoPhaseCommit(3))
    assert interpreted == (
        f"{result.levels} {result.transitions} {result.store.actions.tolist()}\n"
    )
