"""Every field that leaves the scheduler, and every attribute of its objects, has its line."""

from __future__ import annotations

from typing import Any

import pytest

from tests.test_vllm_driver import SCOPES, Walk, client, in_vllm  # noqa: F401 (a fixture)

INSPECTION = """
import dataclasses, json, sys
import msgspec
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched import output
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import PrefillStats
from kvproof.vllm.driver import OPERATIONS, Engine
from kvproof.vllm.inventory import ALWAYS_DEFAULT, INVENTORY

def attributes(one):
    slots = getattr(type(one), "__slots__", ())
    return vars(one) if hasattr(one, "__dict__") else {name: getattr(one, name) for name in slots}

def plain(value):
    # Containers as they are, other objects by themselves: a constant keeps its object.
    kinds = (bool, int, float, str, bytes, type(None), list, dict, set, tuple)
    return repr(value) if isinstance(value, kinds) else id(value)

def constants(one):
    lines = INVENTORY[type(one).__name__]
    values = attributes(one).items()
    return {name: plain(value) for name, value in values if lines[name].how == "constant"}

seen = {}
changed = set()
for scope, operations in json.load(sys.stdin):
    engine = Engine(scope)
    s = engine.scheduler
    manager = s.kv_cache_manager
    pool = manager.block_pool
    objects = [
        s, manager, manager.coordinator, manager.coordinator.single_type_managers[0], pool,
        pool.free_block_queue, pool.cached_block_hash_to_block, pool.blocks[1], s.waiting,
    ]
    fresh = [engine.request(r) for r in range(len(scope["requests"]))]
    for one in (*objects, *fresh):
        names = {} if isinstance(one, FCFSRequestQueue) else attributes(one)
        seen.setdefault(type(one).__name__, set()).update(names)
    if not all(set(attributes(one)) <= INVENTORY[type(one).__name__].keys() for one in objects
               if not isinstance(one, FCFSRequestQueue)):
        continue
    built = [constants(one) for one in objects]
    fresh = {request.request_id: constants(request) for request in fresh}
    for name, *arguments in operations:
        if name in ("output", "drafts"):
            arguments[0] = {int(r): tokens for r, tokens in arguments[0].items()}
        OPERATIONS[name](engine, *arguments)
        for one, before in zip(objects, built):
            now = constants(one)
            changed |= {f"{type(one).__name__}.{n}" for n in now if now[n] != before[n]}
        for request in s.requests.values():
            now, before = constants(request), fresh[request.request_id]
            changed |= {f"Request.{n}" for n in now if now[n] != before[n] and n != "_block_hasher"}
for of in (output.SchedulerOutput, output.NewRequestData, output.CachedRequestData, PrefillStats):
    seen[of.__name__] = {field.name for field in dataclasses.fields(of)}
for of in (EngineCoreOutput, EngineCoreOutputs):
    seen[of.__name__] = {field.name for field in msgspec.structs.fields(of)}
lines = {of: list(names) for of, names in INVENTORY.items()}
json.dump([{of: sorted(names) for of, names in seen.items()}, lines, sorted(changed)], sys.stdout)
"""


def walked(driver: Any, name: str, seed: int) -> list[list[Any]]:
    walk = Walk(SCOPES[name], seed)
    driver.run([["new", walk.values]])
    taken = []
    for _ in range(40):
        operation = walk.choose()
        (answer,) = driver.run([operation])
        if answer[1] is None:
            break
        taken.append(operation)
        walk.take(operation, answer)
    return taken


@pytest.fixture(scope="module")
def inspected(client: Any) -> tuple[dict[str, list[str]], dict[str, list[str]], list[str]]:  # noqa: F811
    runs = [[SCOPES[name], walked(client, name, seed)] for name in SCOPES for seed in range(3)]
    seen, lines, changed = in_vllm(INSPECTION, runs)
    return seen, lines, changed


def test_every_field_has_a_line_and_every_line_a_field(inspected: Any) -> None:
    seen, lines, _changed = inspected
    assert lines.keys() == seen.keys()
    for of, names in seen.items():
        assert sorted(names) == sorted(lines[of]), of


def test_what_is_called_constant_is_changed_by_no_run(inspected: Any) -> None:
    _seen, _lines, changed = inspected
    assert changed == []
