"""The page of what is reached is true of the real classes, and explains what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

import pytest

from benchmarks import reach
from kvproof.bridge import environment
from kvproof.bridge.client import Client
from kvproof.scopes.named import SCOPES

FOUND: reach.Record = json.loads(reach.RECORD.read_text(encoding="utf-8"))
REASONS: dict[str, list[str]] = json.loads(reach.REASONS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    if environment.find() is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    with Client(module="kvproof.vllm.mutants") as driver:
        yield driver


def test_the_page_is_made_of_the_record() -> None:
    assert reach.PAGE.read_text(encoding="utf-8") == reach.page(FOUND, REASONS)


def test_every_function_that_is_never_reached_has_a_reason() -> None:
    unreached = reach.never_reached(FOUND)
    assert [name for name in unreached if reach.group_of(name, REASONS) is None] == []


def test_every_reason_is_of_a_function_that_is_never_reached() -> None:
    unreached = reach.never_reached(FOUND)
    for beginning in chain.from_iterable(REASONS.values()):
        assert any(name.startswith(beginning) for name in unreached), beginning


def test_no_function_can_be_reached_in_more_statements_than_it_has() -> None:
    for functions in FOUND.values():
        for statements, *parts, together in functions.values():
            assert max(parts) <= together <= min(statements, sum(parts))


def test_the_record_has_every_function_of_the_release_with_its_statements(client: Client) -> None:
    here: dict[str, dict[str, int]] = {}
    for name, file, spans in client.run([["statements"]])[0]:
        here.setdefault(file, {})[name.rpartition(":")[2]] = len(spans)
    recorded = {
        file: {name: numbers[0] for name, numbers in functions.items()}
        for file, functions in FOUND.items()
    }
    assert here == recorded


def test_some_runs_reach_nothing_that_is_said_to_be_out_of_reach(client: Client) -> None:
    ways = chain(reach.random_ways(range(10)), islice(reach.scope_ways(SCOPES["priorities"]), 4))
    lines = reach.lines_of(ways, client)
    unreached = set(reach.never_reached(FOUND))
    for name, file, spans in client.run([["statements"]])[0]:
        module, _, function = name.partition(":")
        if f"{module.rpartition('.')[2]}:{function}" in unreached:
            assert not any(reach.is_reached(file, span, lines) for span in spans), name
    assert len(lines) > 1000
