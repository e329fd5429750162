from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import networkx as nx
import pytest

from kvproof.checker.check import check
from kvproof.checker.dot import GraphError, dot, state_graph
from kvproof.scopes.named import SCOPES
from kvproof.trace.itf import itf
from kvproof.trace.mermaid import mermaid
from kvproof.trace.trace import Trace, replay

BROKEN = (
    ("shared-prefix", "evict_hash_on_reuse"),
    ("consumer", "publish_loads_when_done"),
    ("producer", "hold_blocks_until_sent"),
    ("async-reset", "drop_stale_output_on_reset"),
    ("drafts", "roll_back_rejected_drafts"),
)


@pytest.fixture(params=BROKEN, ids=lambda pair: pair[1])
def counterexample(request: pytest.FixtureRequest) -> Trace:
    name, rule = request.param
    trace = check(SCOPES[name].with_rules_off(rule)).trace
    assert trace is not None
    return trace


def every_value(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for inner in value.values():
            yield from every_value(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from every_value(inner)


def test_itf_has_a_state_after_each_action_with_every_variable(counterexample: Trace) -> None:
    document = json.loads(itf(counterexample))
    assert document["#meta"]["format"] == "ITF"
    assert [state["action"] for state in document["states"]] == [
        "start",
        *(str(action) for action in counterexample.actions),
    ]
    for index, state in enumerate(document["states"]):
        assert state["#meta"] == {"index": index}
        assert set(state) == {"#meta", *document["vars"]}
    assert document["states"][-1]["broken"] == {"#set": list(counterexample.broken)}


def test_every_integer_of_itf_is_a_bigint(counterexample: Trace) -> None:
    document = json.loads(itf(counterexample))
    bigints = 0
    for state in document["states"]:
        values = {name: value for name, value in state.items() if name != "#meta"}
        for value in every_value(values):
            assert isinstance(value, (dict, list, str, bool))
            if isinstance(value, dict) and "#bigint" in value:
                assert list(value) == ["#bigint"]
                assert str(int(value["#bigint"])) == value["#bigint"]
                bigints += 1
    assert bigints > 0


def test_itf_says_what_the_model_has(counterexample: Trace) -> None:
    states = json.loads(itf(counterexample))["states"]
    for moment, state in zip(replay(counterexample), states[1:], strict=True):
        free = [int(b["#bigint"]) for b in state["free_queue"]]
        assert free == moment.after.free_queue[: moment.after.num_free].tolist()
        for r, (number, values) in enumerate(state["requests"]["#map"]):
            assert number == {"#bigint": str(r)}
            assert values["computed"] == {"#bigint": str(moment.after.num_computed[r])}


def test_a_mermaid_diagram_names_every_action_in_order(counterexample: Trace) -> None:
    lines = mermaid(counterexample).splitlines()
    assert lines[0] == "sequenceDiagram"
    arrow = re.compile(r"\s+\w+->>\w+: (\d+\. .*)")
    numbered = [match[1] for line in lines if (match := arrow.fullmatch(line))]
    assert numbered == [f"{n}. {action}" for n, action in enumerate(counterexample.actions, 1)]
    assert lines[-1].endswith(f"broken: {', '.join(counterexample.broken)}")


def test_a_mermaid_diagram_declares_who_takes_part_and_has_no_stray_marks(
    counterexample: Trace,
) -> None:
    text = mermaid(counterexample)
    declared = set(re.findall(r"participant (\w+)", text))
    assert declared == {name for pair in re.findall(r"(\w+)->>(\w+):", text) for name in pair}
    assert not set(text) & {";", "#"}
    assert ("Connector" in declared) == (counterexample.scope.kv_role is not None)


def test_the_graph_has_all_states_and_transitions_of_a_scope() -> None:
    scope = SCOPES["two-equal"]
    result = check(scope).result
    graph = state_graph(scope)
    assert graph.number_of_nodes() == result.states == 29
    assert graph.number_of_edges() == result.transitions == 36
    assert set(graph.nodes) == set(nx.descendants(graph, 0)) | {0}
    distances = Counter(nx.single_source_shortest_path_length(graph, 0).values())
    assert [distances[d] for d in range(len(distances))] == list(result.levels)


def test_dot_has_a_line_for_each_state_and_each_transition() -> None:
    lines = dot(SCOPES["two-equal"]).splitlines()
    assert sum(bool(re.match(r"  \d+ \[label=", line)) for line in lines) == 29
    assert sum(bool(re.match(r"  \d+ -> \d+ \[label=", line)) for line in lines) == 36
    assert '  0 -> 1 [label="add R0"];' in lines


def test_the_graph_of_a_broken_scope_marks_the_state_where_its_trace_ends() -> None:
    scope = SCOPES["two-equal"].with_rules_off("free_tail_first")
    trace = check(scope).trace
    assert trace is not None
    graph = state_graph(scope)
    (end,) = (number for number, values in graph.nodes(data=True) if "broken" in values)
    assert graph.nodes[end]["broken"] == trace.broken
    assert nx.shortest_path_length(graph, 0, end) == len(trace.actions)
    assert "color=red" in dot(scope)


def test_a_graph_too_large_to_draw_is_refused() -> None:
    with pytest.raises(GraphError, match="two-equal has more than 28 states"):
        state_graph(SCOPES["two-equal"], max_states=28)
    with pytest.raises(GraphError, match="more than 1,000 states"):
        dot(SCOPES["crowd"])
