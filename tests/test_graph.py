"""The graph's components, cycles, walks and counts agree with networkx and with plain Python."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.search.graph import Column, Cycles, Graph, components, most_counted

KEPT, OTHER, SPECIAL = 1, 2, 4
Edges = list[list[tuple[int, int]]]
"""For each state its transitions: target and label."""


def graphs(max_states: int = 12) -> st.SearchStrategy[Edges]:
    def of_size(states: int) -> st.SearchStrategy[Edges]:
        label = st.sampled_from((0, OTHER, KEPT, KEPT | OTHER, KEPT | SPECIAL))
        # One target more than states: a state that was found but not expanded.
        edge = st.tuples(st.integers(0, states), label)
        return st.lists(st.lists(edge, max_size=3), min_size=states, max_size=states)

    return st.integers(1, max_states).flatmap(of_size)


def build(edges: Edges, chunk: int = 5) -> Graph:
    """The graph, taken in by chunks of states as a search does it."""
    graph = Graph()
    for first in range(0, len(edges), chunk):
        part = edges[first : first + chunk]
        graph.extend(
            len(part),
            np.array([i for i, out in enumerate(part) for _ in out], np.int32),
            np.array([target for out in part for target, _label in out], np.uint32),
            np.array([label for out in part for _target, label in out], np.uint8),
        )
    return graph


def kept(edges: Edges) -> nx.MultiDiGraph:
    """The transitions with the kept label between expanded states, as networkx has them."""
    found = nx.MultiDiGraph()
    found.add_nodes_from(range(len(edges)))
    for source, out in enumerate(edges):
        for target, label in out:
            if label & KEPT and target < len(edges):
                found.add_edge(source, target)
    return found


@settings(deadline=None)
@given(graphs())
def test_components_are_those_of_networkx_and_numbered_against_the_transitions(
    edges: Edges,
) -> None:
    number = components(build(edges), KEPT, KEPT)
    ours = {frozenset(np.flatnonzero(number == n).tolist()) for n in np.unique(number)}
    assert ours == set(map(frozenset, nx.strongly_connected_components(kept(edges))))
    for source, target in kept(edges).edges():
        assert number[source] >= number[target]


@settings(deadline=None)
@given(graphs())
def test_cycles_are_the_components_that_can_be_gone_round(edges: Edges) -> None:
    graph = kept(edges)
    expected = {
        frozenset(part)
        for part in nx.strongly_connected_components(graph)
        if len(part) > 1 or graph.has_edge(*(2 * tuple(part)))
    }
    found = Cycles(build(edges), KEPT, KEPT).found
    assert {frozenset(cycle.states.tolist()) for cycle in found} == expected
    for cycle in found:
        assert cycle.states.tolist() == sorted(cycle.states.tolist())
        inside = set(cycle.states.tolist())
        labels = [
            label
            for source in inside
            for target, label in edges[source]
            if label & KEPT and target in inside
        ]
        assert cycle.labels == np.bitwise_or.reduce(labels)


@settings(deadline=None)
@given(graphs())
def test_a_walk_is_closed_stays_within_its_cycle_and_meets_its_goals(edges: Edges) -> None:
    graph = build(edges)
    cycles = Cycles(graph, KEPT, KEPT)
    for cycle in cycles.found:
        last = int(cycle.states[-1])
        goals = 1 | (2 if cycle.labels & SPECIAL else 0)

        def met(transition: int, state: int, last: int = last) -> int:
            return (state == last) + 2 * bool(graph.labels[transition] & SPECIAL)

        walk = cycles.walk(cycle, goals, met)
        state = start = int(cycle.states[0])
        seen = 0
        for transition in walk:
            assert graph.source(transition) == state
            assert graph.labels[transition] & KEPT
            assert graph.place(transition) == transition - graph.ends[state]
            state = int(graph.targets[transition])
            assert state in cycle.states
            seen |= met(transition, state)
        assert walk
        assert state == start
        assert goals & ~seen == 0


def test_a_goal_outside_the_cycle_is_refused() -> None:
    cycles = Cycles(build([[(1, KEPT)], [(1, KEPT)]]), KEPT, KEPT)
    (cycle,) = cycles.found
    with pytest.raises(ValueError, match="no walk from state 1"):
        cycles.walk(cycle, 1, lambda _transition, state: int(state == 0))


def plain_count(edges: Edges, within: list[bool], limit: int) -> int:
    """The most SPECIAL transitions on a run within, by a search of states with counts."""
    seen = {(state, 0) for state in range(len(edges))}
    queue = deque(seen)
    most = 0
    while queue:
        state, count = queue.popleft()
        for target, label in edges[state]:
            special = bool(label & SPECIAL)
            if target >= len(edges) or not within[target] or (count == 0 and not special):
                continue
            following = (target, min(count + special, limit))
            most = max(most, following[1])
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return most


@settings(deadline=None)
@given(graphs(), st.data(), st.integers(1, 4))
def test_counted_transitions_are_those_of_a_plain_search(
    edges: Edges, data: st.DataObject, limit: int
) -> None:
    graph = build(edges)
    size = len(edges)
    within = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    counted = graph.labels & SPECIAL != 0
    most, run = most_counted(graph, counted, np.array(within), limit)
    assert most == plain_count(edges, within, limit)
    assert sum(counted[list(run)]) == most
    for before, after in pairwise(run):
        assert graph.targets[before] == graph.source(after)
    assert all(within[graph.targets[transition]] for transition in run)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 255), max_size=2000), max_size=6))
def test_a_column_holds_what_was_appended(parts: list[list[int]]) -> None:
    column = Column(np.uint8)
    for part in parts:
        column.extend(np.array(part, np.uint8))
    assert column.values.tolist() == [value for part in parts for value in part]
    assert len(column) <= column.nbytes <= max(1024, 2 * len(column) + 2000)


def test_a_transition_costs_five_bytes_and_a_state_four() -> None:
    graph = build([[(0, KEPT)] * 3] * 100_000, chunk=1000)
    assert graph.nbytes <= 1.5 * (5 * 300_000 + 4 * 100_001)
