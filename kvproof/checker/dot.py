"""State graphs of small scopes, for networkx and for Graphviz."""

from __future__ import annotations

import networkx as nx
import numpy as np

from kvproof.checker.scheduler_system import SchedulerSystem
from kvproof.errors import KvproofError
from kvproof.model.scope import Scope
from kvproof.model.state import Status
from kvproof.native.record import Record
from kvproof.search.explore import Chunk, explore
from kvproof.search.system import Words
from kvproof.trace.codes import name_action

MAX_STATES = 1000
"""More states than this make a picture that nobody can read."""


class GraphError(KvproofError, ValueError):
    """A state graph that is too large to be drawn."""


def state_graph(scope: Scope, max_states: int = MAX_STATES) -> nx.MultiDiGraph:
    """The states that the search of a scope visits, and every transition between them.

    Nodes are numbered in the order of the search, 0 is the fresh engine. A node has a `label`, an
    edge an `action`; of a broken scope the graph goes as far as the search did, and the state where
    its trace ends has the names of what is `broken`. Raises GraphError above `max_states` states.
    """
    system = SchedulerSystem(scope)
    rows: dict[int, Words] = {0: system.initial()[0]}
    edges: list[tuple[int, int, int]] = []

    def observe(chunk: Chunk) -> None:
        sources = (chunk.first + chunk.parent).tolist()
        edges.extend(zip(sources, chunk.target.tolist(), chunk.action.tolist(), strict=True))
        for k in chunk.new.tolist():
            rows[int(chunk.target[k])] = np.array(chunk.successors[k])

    result = explore(system, max_states=max_states + 1, observe=observe).finished()
    if result.reason is not None or result.states > max_states:
        raise GraphError(
            f"{scope.name} has more than {max_states:,} states; draw a smaller scope, "
            f"for instance a minimised one"
        )
    graph = nx.MultiDiGraph(name=scope.name)
    states = {number: system.compiled.read(row) for number, row in rows.items()}
    for number, state in sorted(states.items()):
        graph.add_node(number, label=_label(state))
    for source, target, code in edges:
        action = str(name_action(system.compiled, states[source], code))
        graph.add_edge(source, target, action=action)
    if result.violation is not None:
        reached = {(source, code): target for source, target, code in edges}
        end = 0
        for code in result.violation.actions:
            end = reached[end, code]
        graph.nodes[end]["broken"] = result.violation.invariants
    return graph


def dot(scope: Scope, max_states: int = MAX_STATES) -> str:
    """The state graph in Graphviz's language: a box a state, an arrow a transition."""
    graph = state_graph(scope, max_states)
    lines = [f"digraph {_quoted(scope.name)} {{", "  node [shape=box, fontname=monospace];"]
    for number, values in graph.nodes(data=True):
        broken = values.get("broken", ())
        label = "\n".join((f"{number}", values["label"], *(f"broken: {name}" for name in broken)))
        lines.append(f"  {number} [label={_quoted(label)}{', color=red' if broken else ''}];")
    for source, target, values in graph.edges(data=True):
        lines.append(f"  {source} -> {target} [label={_quoted(values['action'])}];")
    return "\n".join((*lines, "}", ""))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _label(state: Record) -> str:
    """Each request with its status, tokens and blocks, the steps in flight, the free blocks."""
    lines = []
    for r, status in enumerate(state.status):
        name = Status(int(status)).name.lower()
        blocks = state.block_table[r, : state.num_blocks[r]].tolist()
        tokens = f" {state.num_computed[r]}/{state.num_tokens[r]}" if state.num_tokens[r] else ""
        lines.append(f"R{r} {name}{tokens}{f' {blocks}' if blocks else ''}")
    lines.append(f"in flight {state.num_steps}, free {state.num_free}")
    return "\n".join(lines)
