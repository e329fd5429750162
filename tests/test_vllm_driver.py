"""The driver of the real vLLM: its operations, its snapshots, its errors, its configuration."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof.bridge import client as client_module
from kvproof.bridge import environment
from kvproof.bridge.client import Client, DriverError
from kvproof.model.scope import STOP_TOKEN, scope_from_dict
from kvproof.vllm import protocol

ROOT = Path(__file__).resolve().parents[1]


def request(prompt: list[int], max_tokens: int = 3, **changes: Any) -> dict[str, Any]:
    spec = {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "priority": 0,
        "arrival": 0,
        "salt": None,
        "external": None,
        "delay_free": False,
    }
    return {**spec, **changes}


def external(tokens: int, **changes: Any) -> dict[str, Any]:
    return {"tokens": tokens, "is_async": True, "once": False, "ask_later": 0, **changes}


def scope(requests: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    values = {
        "block_size": 2,
        "num_blocks": 7,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 8,
        "max_num_scheduled_tokens": None,
        "max_model_len": 10,
        "policy": "fcfs",
        "prefix_caching": True,
        "chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "reserve_full_isl": True,
        "watermark": 0.0,
        "async_scheduling": False,
        "pipeline_parallel_size": 1,
        "v2_model_runner": False,
        "num_speculative_tokens": 0,
        "spec_method": "ngram",
        "kv_role": None,
        "kv_load_failure_policy": "recompute",
        "stop_token": STOP_TOKEN,
        "requests": [{**spec, "arrival": r} for r, spec in enumerate(requests)],
    }
    return {**values, **changes}


PROMPTS = [request([1, 2, 1], 4), request([1, 2, 1, 1, 2], 4), request([2, 1], 3)]
LOADING = [
    request([1, 2, 1, 2, 1], 3, external=external(4)),
    request([1, 2, 1, 2], 3, external=external(4, once=True, ask_later=1), delay_free=True),
    request([1, 2, 2], 3, delay_free=True),
]

SCOPES = {
    "sync": scope(PROMPTS, max_num_batched_tokens=4),
    "async": scope(PROMPTS, async_scheduling=True),
    "async_v2_pp2": scope(
        PROMPTS, async_scheduling=True, v2_model_runner=True, pipeline_parallel_size=2
    ),
    "pp2": scope(PROMPTS, pipeline_parallel_size=2),
    "priority": scope(
        [{**spec, "priority": -r // 2} for r, spec in enumerate(PROMPTS)],
        policy="priority",
        max_num_seqs=3,
    ),
    "no_caching": scope(PROMPTS, prefix_caching=False),
    "sync_ngram": scope(PROMPTS, num_speculative_tokens=2),
    "async_draft_model": scope(
        PROMPTS, async_scheduling=True, num_speculative_tokens=1, spec_method="draft_model"
    ),
    "async_eagle": scope(
        PROMPTS, async_scheduling=True, num_speculative_tokens=2, spec_method="eagle"
    ),
    "consumer": scope(LOADING, kv_role="kv_consumer", async_scheduling=True),
    "both_failing": scope(
        LOADING, kv_role="kv_both", async_scheduling=True, kv_load_failure_policy="fail"
    ),
    "producer": scope(LOADING, kv_role="kv_producer"),
    "sync_loads": scope(
        [
            request([1, 2, 1, 2, 1], 3, external=external(4, is_async=False)),
            request([1, 2, 1], 3, external=external(2, is_async=False, once=True, ask_later=1)),
            request([1, 2, 2], 3, delay_free=True),
        ],
        kv_role="kv_both",
    ),
}


class Walk:
    """A random engine: picks operations that vLLM's engine loop could make."""

    def __init__(self, values: dict[str, Any], seed: int) -> None:
        self.random = random.Random(seed)
        self.values = values
        self.depth = values["pipeline_parallel_size"] + int(values["async_scheduling"])
        if not values["v2_model_runner"] and values["async_scheduling"]:
            self.depth = 2
        self.arrived: set[int] = set()
        self.steps: list[dict[str, Any]] = []
        self.loading: dict[int, list[int]] = {}
        self.told_ended: set[int] = set()
        self.drafts_due = False
        self.observation: dict[str, Any] = {name: [] for name in protocol.OBSERVATION}

    def choose(self) -> list[Any]:
        if self.drafts_due:
            return self._drafts()
        kinds = ["schedule"] * 4 if len(self.steps) < self.depth else []
        kinds += ["output"] * 4 if self.steps else []
        kinds += ["add"] * 2 if len(self.arrived) < len(self.values["requests"]) else []
        kind = self.random.choice(
            ["abort", "reset_prefix_cache", "set_pause_state", "observe", *kinds]
        )
        if kind == "add":
            absent = [r for r in range(len(self.values["requests"])) if r not in self.arrived]
            return ["add", self.random.choice(absent)]
        if kind == "abort":
            known = [q[0] for q in self.observation["requests"]]
            return ["abort", self.random.choice(known)] if known else ["observe"]
        if kind == "reset_prefix_cache":
            return [kind, self.random.random() < 0.3]
        if kind == "set_pause_state":
            states = ["UNPAUSED", "UNPAUSED", "UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"]
            return [kind, self.random.choice(states)]
        return self._output() if kind == "output" else [kind]

    def _output(self) -> list[Any]:
        step = self.steps[0]
        self.loading.update({r: ids for r, _, _, is_async, ids in step["loads"] if is_async})
        self.told_ended.update(step["finished"])
        tokens = {}
        for r, samples in step["samples"].items():
            if samples:
                accepted = self.random.randint(0, len(step["drafts"].get(r, ())))
                tokens[r] = [self.random.choice([1, 2]) for _ in range(accepted + 1)]
                if self.random.random() < 0.1:
                    tokens[r][-1] = STOP_TOKEN
        done = [r for r in self.loading if self.random.random() < 0.5]
        invalid = [self.loading[r][0] for r in done if self.random.random() < 0.3]
        ended = [
            q[0]
            for q in self.observation["requests"]
            if q[0] in self.told_ended and q[0] not in self.loading
        ]
        sent = [r for r in ended if self.random.random() < 0.5]
        return ["output", tokens, done, sent, invalid]

    def _drafts(self) -> list[Any]:
        most = self.values["num_speculative_tokens"]
        return [
            "drafts",
            {r: [1] * self.random.randint(0, most) for r in self.observation["running"]},
        ]

    def take(self, operation: list[Any], answer: Any) -> None:
        result, seen = answer
        self.observation = dict(zip(protocol.OBSERVATION, seen, strict=True))
        self.drafts_due = False
        if operation[0] == "add":
            self.arrived.add(operation[1])
        elif operation[0] == "schedule":
            self.steps.append(result)
        elif operation[0] == "output":
            self.steps.pop(0)
            for r in operation[2]:
                del self.loading[r]
            self.drafts_due = (
                self.values["num_speculative_tokens"] > 0 and not self.values["async_scheduling"]
            )


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    if environment.find() is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    with Client() as driver:
        yield driver


def run(client: Client, values: dict[str, Any], *operations: list[Any]) -> list[Any]:
    """Results, then the last observation by name."""
    answers = client.run([["new", values], *operations])[1:]
    results = [answer[0] for answer in answers if answer is not None]
    return [*results, dict(zip(protocol.OBSERVATION, answers[-1][1], strict=True))]


def output(tokens: dict[int, list[int]], *, recved=(), sent=(), invalid=()) -> list[Any]:
    return ["output", tokens, list(recved), list(sent), list(invalid)]


def by_request(seen: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {q[0]: dict(zip(protocol.REQUEST, q, strict=True)) for q in seen["requests"]}


def test_an_empty_scheduler_is_observed(client: Client) -> None:
    *_, seen = run(client, scope(PROMPTS), ["observe"])
    assert seen == {
        "requests": [],
        "running": [],
        "waiting": [],
        "kv_holding_waiting": [],
        "free": [1, 2, 3, 4, 5, 6],
        "free_back": [6, 5, 4, 3, 2, 1],
        "num_free": 6,
        "ref_cnt": [0] * 7,
        "cached": [],
        "block_hash": [None] * 7,
        "deferred": [],
        "seq_ahead": 0,
        "recved": [],
        "failed": [],
        "finished": [],
        "reset_preempted": [],
        "inflight_prefills": [],
        "in_flight": [],
        "pause": 0,
        "has_requests": False,
        "connector": [],
        "leaks": [],
    }


def test_an_empty_step_is_planned_and_processed(client: Client) -> None:
    step, outputs, seen = run(client, scope(PROMPTS), ["schedule"], output({}))
    assert step == {
        "disagreements": [],
        "scheduled": [],
        "start": {},
        "tokens": {},
        "drafts": {},
        "num_outputs": {},
        "samples": {},
        "tables": {},
        "sent_new": [],
        "sent_cached": [],
        "resumed": [],
        "preempted": [],
        "finished": [],
        "loads": [],
        "has_sync_loads": False,
        "common": 0,
        "total": 0,
        "num_drafts_next": 0,
    }
    assert outputs == {}
    assert seen["in_flight"] == []


def test_a_step_is_reported_and_observed(client: Client) -> None:
    values = scope([request([1, 2, 1]), request([1, 2], salt="s")], max_num_batched_tokens=4)
    _, _, step, seen = run(client, values, ["add", 0], ["add", 1], ["schedule"])
    assert step == {
        "disagreements": [],
        "scheduled": [[0, 3], [1, 1]],
        "start": {0: 0, 1: 0},
        "tokens": {0: [1, 2, 1], 1: [1]},
        "drafts": {},
        "num_outputs": {0: 0, 1: 0},
        "samples": {0: True, 1: False},
        "tables": {0: [1, 2], 1: [3]},
        "sent_new": [[0, [1, 2, 1], None, [1, 2], 0], [1, [1, 2], None, [3], 0]],
        "sent_cached": [],
        "resumed": [],
        "preempted": [],
        "finished": [],
        "loads": [],
        "has_sync_loads": False,
        "common": 0,
        "total": 4,
        "num_drafts_next": 0,
    }
    assert by_request(seen)[0] == {
        "request": 0,
        "status": "RUNNING",
        "num_computed_tokens": 3,
        "num_tokens": 3,
        "num_output_tokens": 0,
        "num_output_placeholders": 0,
        "num_in_flight_tokens": 3,
        "num_stale_output_tokens": 0,
        "drop_stale_output": False,
        "is_prefill_chunk": False,
        "was_preempted": False,
        "steps_to_fence": 0,
        "steps_to_decode": 0,
        "num_cached_block": 1,
        "block_ids": [1, 2],
        "all_token_ids": [1, 2, 1],
        "outputs_end_them": True,
        "spec_token_ids": [],
    }
    assert by_request(seen)[1]["is_prefill_chunk"]
    assert seen["running"] == [0, 1]
    assert seen["free"] == [4, 5, 6]
    assert seen["ref_cnt"] == [0, 1, 1, 1, 0, 0, 0]
    assert seen["cached"] == [[["", 1, 2], [1]]]
    assert seen["inflight_prefills"] == [1]
    assert seen["in_flight"] == [[[0, 3], [1, 1]]]


def test_outputs_carry_tokens_and_reasons(client: Client) -> None:
    values = scope([request([1], 2), request([2], 9)])
    results = run(
        client,
        values,
        ["add", 0],
        ["add", 1],
        ["schedule"],
        output({0: [1], 1: [2]}),
        ["schedule"],
        output({0: [2], 1: [STOP_TOKEN]}),
        ["schedule"],
    )
    told = [1, 1, 0, 0, 0, 0]
    assert results[3] == {
        0: [[1], None, None, told, None, {}],
        1: [[2], None, None, told, None, {}],
    }
    assert results[5] == {
        0: [[2], "length", None, None, None, {}],
        1: [[STOP_TOKEN], "stop", STOP_TOKEN, None, None, {}],
    }
    assert results[6]["finished"] == [0, 1]
    assert not results[-1]["has_requests"]


def test_published_prefixes_carry_salt_and_keep_lookup_order(client: Client) -> None:
    same = [request([1, 2, 1]), request([1, 2, 1]), request([1, 2, 1], salt="|é")]
    adds = [["add", r] for r in range(3)]
    values = scope(same, max_num_seqs=3, max_num_batched_tokens=9)
    *_, seen = run(client, values, *adds, ["schedule"])
    # The second request hits the first one's block, and the third is kept apart by its salt.
    assert seen["cached"] == [[["", 1, 2], [1]], [["|é", 1, 2], [3 + 1]]]
    assert seen["ref_cnt"][1] == 2
    assert seen["block_hash"][1] == ["", 1, 2]
    # A full hit recomputes its last block into a new one: two blocks with the same prefix.
    whole = scope([request([1, 2]), request([1, 2])])
    *_, seen = run(client, whole, ["add", 1], ["schedule"], ["add", 0], ["schedule"])
    assert seen["cached"] == [[["", 1, 2], [1, 2]]]


def test_priority_ties_follow_the_number_of_the_request(client: Client) -> None:
    values = scope([request([1])] * 12, policy="priority")
    for spec in values["requests"]:
        spec["arrival"] = 0
    values["requests"][11]["priority"] = -1
    *_, seen = run(client, values, *[["add", r] for r in (11, 10, 3, 9, 2)])
    assert seen["waiting"] == [11, 2, 3, 9, 10]


def test_a_preempted_request_is_reported(client: Client) -> None:
    tight = scope(
        [request([1, 2, 1], 6), request([2, 2, 2], 6)], num_blocks=6, reserve_full_isl=False
    )
    results = run(
        client,
        tight,
        ["add", 0],
        ["add", 1],
        ["schedule"],
        output({0: [1], 1: [1]}),
        ["schedule"],
        output({0: [1], 1: [1]}),
        ["schedule"],
    )
    assert results[-2]["preempted"] == [1]
    assert by_request(results[-1])[1]["was_preempted"]
    assert results[-1]["waiting"] == [1]


def test_drafts_are_scheduled_and_accepted(client: Client) -> None:
    *_, before, step, outputs, seen = run(
        client,
        scope([request([1, 2], 6)], num_speculative_tokens=2),
        ["add", 0],
        ["schedule"],
        output({0: [1]}),
        ["drafts", {0: [2, 1]}],
        ["schedule"],
        output({0: [2, 2]}),
    )
    assert before is None
    assert step["drafts"] == {0: [2, 1]}
    assert step["tokens"] == {0: [1]}
    assert step["scheduled"] == [[0, 3]]
    assert outputs == {0: [[2, 2], None, None, None, None, {}]}
    assert by_request(seen)[0]["num_computed_tokens"] == 4


def test_an_asynchronous_load_waits_for_its_completion(client: Client) -> None:
    values = scope(
        [request([1, 2, 1, 2, 1], external=external(4, ask_later=1, once=True))],
        kv_role="kv_consumer",
        async_scheduling=True,
    )
    start = [["add", 0], ["schedule"], output({})]
    *_, asked = run(client, values, *start)
    assert asked["connector"] == [[0, False, 0]]
    *_, step, loading = run(client, values, *start, ["schedule"])
    assert step["loads"] == [[0, 0, 4, True, [1, 2]]]
    assert step["total"] == 0
    assert loading["kv_holding_waiting"] == [0]
    assert by_request(loading)[0]["status"] == "WAITING_FOR_REMOTE_KVS"
    assert loading["connector"] == [[0, True, 0]]
    assert loading["cached"] == []
    *_, received, step, seen = run(
        client, values, *start, ["schedule"], output({}, recved=[0]), ["schedule"]
    )
    assert received == {}
    assert step["scheduled"] == [[0, 1]]
    assert step["start"] == {0: 4}
    assert seen["cached"] == [[["", 1, 2], [1]], [["", 1, 2, 1, 2], [2]]]


def test_a_failed_load_keeps_what_is_valid(client: Client) -> None:
    values = scope([request([1, 2, 1, 2, 1], external=external(4))], kv_role="kv_consumer")
    *_, seen = run(client, values, ["add", 0], ["schedule"], output({}, recved=[0], invalid=[2]))
    assert seen["failed"] == seen["recved"] == [0]
    assert by_request(seen)[0]["num_computed_tokens"] == 2


def test_delayed_blocks_are_held_until_sent(client: Client) -> None:
    values = scope([request([1, 2, 1], 1, delay_free=True)], kv_role="kv_producer")
    until_end = [["add", 0], ["schedule"], output({0: [1]}), ["schedule"]]
    *_, held = run(client, values, *until_end)
    assert by_request(held)[0]["status"] == "FINISHED_LENGTH_CAPPED"
    assert held["has_requests"]
    *_, sent = run(client, values, *until_end, output({}, sent=[0]))
    assert sent["requests"] == []
    assert sorted(sent["free"]) == [1, 2, 3, 4, 5, 6]


def test_frees_wait_behind_the_fence(client: Client) -> None:
    values = scope([request([1, 2, 1])], kv_role="kv_consumer", async_scheduling=True)
    *_, seen = run(client, values, ["add", 0], ["schedule"], ["abort", 0])
    assert seen["deferred"] == [[1, [1, 2]]]
    assert seen["seq_ahead"] == 1
    *_, seen = run(client, values, ["add", 0], ["schedule"], ["abort", 0], output({0: [1]}))
    assert seen["deferred"] == []


def test_pause_and_reset_are_calls_of_the_engine(client: Client) -> None:
    values = scope(PROMPTS)
    _, _, paused, step, seen = run(
        client, values, ["add", 0], ["set_pause_state", "PAUSED_NEW"], ["observe"], ["schedule"]
    )
    assert paused is None
    assert step["total"] == 0
    assert seen["pause"] == 1
    *_, failed, done, seen = run(
        client,
        values,
        ["add", 0],
        ["schedule"],
        ["reset_prefix_cache", False],
        ["reset_prefix_cache", True],
    )
    assert (failed, done) == (False, True)
    assert seen["cached"] == []
    assert seen["reset_preempted"] == [0]
    assert by_request(seen)[0]["drop_stale_output"]


@pytest.mark.parametrize("name", SCOPES)
def test_restoring_a_snapshot_is_exact(client: Client, name: str) -> None:
    """A random walk that goes back and forth answers as a straight run of what it ended with."""
    for seed in range(20):
        walk = Walk(SCOPES[name], seed)
        path: list[tuple[list[Any], Any]] = []
        stack: list[tuple[Walk, list[tuple[list[Any], Any]]]] = []
        client.run([["new", walk.values]])
        for _ in range(80):
            broken = bool(path) and path[-1][1][1] is None
            if broken and not stack:
                break
            move = walk.random.choices(["step", "push", "pop", "peek"], [6, 2, 1, 1])[0]
            if stack and (broken or move in ("pop", "peek")):
                move = "peek" if move == "peek" else "pop"
                chance = walk.random
                saved, saved_path = stack.pop() if move == "pop" else stack[-1]
                walk, path = copy.deepcopy(saved), saved_path.copy()
                walk.random = chance
                _, (_, seen) = client.run([[move], ["observe"]])
                assert not path or seen == path[-1][1][1]
            elif move == "push":
                client.run([["push"]])
                stack.append((copy.deepcopy(walk), path.copy()))
            else:
                operation = walk.choose()
                (answer,) = client.run([operation])
                path.append((operation, answer))
                if answer[1] is not None:
                    walk.take(operation, answer)
        operations = [operation for operation, _ in path]
        assert client.run([["new", walk.values], *operations])[1:] == [a for _, a in path]


def test_walks_reach_what_they_are_meant_to_restore(client: Client) -> None:
    """The random walks would prove little if they never preempted, drafted, loaded or deferred."""
    reached = set()
    for values in SCOPES.values():
        for seed in range(6):
            walk = Walk(values, seed)
            client.run([["new", values]])
            for _ in range(60):
                operation = walk.choose()
                (answer,) = client.run([operation])
                if answer[1] is None:
                    break
                walk.take(operation, answer)
                seen = walk.observation
                reached |= {name for name, value in seen.items() if value}
                reached |= {
                    field for q in by_request(seen).values() for field, value in q.items() if value
                }
                if any(len(blocks) > 1 for _, blocks in seen["cached"]):
                    reached.add("duplicates")
    assert reached >= {*protocol.OBSERVATION, *protocol.REQUEST, "duplicates"} - {"leaks"}


def test_an_error_inside_vllm_is_located_and_skips_the_rest(client: Client) -> None:
    answers = client.run(
        [
            ["new", scope(PROMPTS)],
            ["add", 0],
            ["push"],
            ["add", 0],
            ["schedule"],
            ["push"],
            ["observe"],
            ["pop"],
            ["observe"],
            ["pop"],
            ["schedule"],
        ]
    )
    error = ["error", "AssertionError", "duplicate request id", "scheduler.py:add_request"]
    assert answers[3] == [error, None]
    assert answers[4] == answers[6] == answers[8] == [["skipped"], None]
    assert answers[2] is answers[5] is answers[7] is answers[9] is None
    assert answers[10][0]["scheduled"] == [[0, 3]]


def test_an_output_that_its_step_cannot_have_is_answered_and_ends_the_run(client: Client) -> None:
    *_, unfit, skipped = client.run(
        [["new", scope(PROMPTS)], ["add", 0], ["schedule"], output({1: [1]}), ["observe"]]
    )
    said = "output for [1]: the step samples for [0] only"
    assert unfit == [["error", "Unfit", said, "driver.py:output"], None]
    assert skipped == [["skipped"], None]


def test_a_report_that_no_worker_can_make_is_refused_by_name(client: Client) -> None:
    requests = [request([1, 2, 1], 1, delay_free=True), request([2, 1, 2], external=external(2))]
    values = scope(requests, kv_role="kv_both", async_scheduling=True)
    before = [["new", values], ["add", 0], ["schedule"], ["add", 1], ["schedule"]]
    ended = [*before, output({0: [1]})]
    told = [*ended, ["schedule"], output({}, recved=[1])]
    runs = {
        "loads-reported-from-their-step-on: ": [*before, output({0: [1]}, recved=[1])],
        "failed-blocks-by-the-completion: ": [*before, output({0: [1]}, invalid=[3])],
        "sendings-reported-once-the-end-is-told: ": [*ended, ["schedule"], output({}, sent=[0])],
    }
    for promise, operations in runs.items():
        result, seen = client.run(operations)[-1]
        assert result[:2] == ["error", "Unfit"]
        assert result[2].startswith(promise)
        assert seen is None
    *_, received = run(client, values, *told[1:])
    assert received["recved"] == [1]
    *_, sent = run(client, values, *told[1:], output({}, sent=[0]))
    assert [q[0] for q in sent["requests"]] == [1]


def test_batches_overlap(client: Client) -> None:
    client.submit([["new", scope(PROMPTS)], ["add", 0]])
    client.submit([["schedule"]] + [["observe"]] * 2000)
    with pytest.raises(ValueError, match="2 batches are out"):
        client.run([["observe"]])
    assert len(client.collect()) == 2
    assert client.collect()[0][0]["scheduled"] == [[0, 3]]
    with pytest.raises(ValueError, match="no batch is out"):
        client.collect()


def in_vllm(script: str, values: Any) -> Any:
    """What a script in vLLM's interpreter makes of JSON values."""
    python = environment.find()
    if python is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    result = subprocess.run(
        [str(python), "-c", script],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "CRITICAL"},
    )
    return json.loads(result.stdout)


NONSENSE = """
import json, sys
from kvproof.vllm.driver import Driver
raised = []
for batch in json.load(sys.stdin):
    driver = Driver()
    try:
        raised.append(repr([driver.answer(operation) for operation in batch]))
    except Exception as error:
        raised.append(str(error))
json.dump(raised, sys.stdout)
"""


def test_operations_that_make_no_sense_are_raised_not_answered() -> None:
    start = ["new", scope(PROMPTS)]
    unknown, refused = in_vllm(
        NONSENSE,
        [
            [start, ["sleep"]],
            [["new", scope(PROMPTS, max_num_batched_tokens=1)]],
        ],
    )
    assert unknown.startswith("operation 'sleep': allowed are add, abort, ")
    assert "max_num_batched_tokens (1) must be" in refused


CONFIGURATION = """
import json, sys
from kvproof.vllm.driver import Engine
derived = []
for scope in json.load(sys.stdin):
    s = Engine(scope).scheduler
    config, spec = s.vllm_config, s.vllm_config.speculative_config
    derived.append({
        "depth": config.max_concurrent_batches,
        "token_budget": s.max_num_scheduled_tokens,
        "num_lookahead_tokens": s.num_lookahead_tokens,
        "draft_slots": spec.max_num_new_slots_for_drafting if spec else 0,
        "defer_block_free": s.defer_block_free,
        "v2_model_runner": s.use_v2_model_runner,
        "num_speculative_tokens": s.num_spec_tokens,
        "reserve_full_isl": s.scheduler_reserve_full_isl,
        "watermark_blocks": s.kv_cache_manager.watermark_blocks,
        "requires_kv_delivery": s.requires_kv_delivery,
        "recompute": s.recompute_kv_load_failures,
        "scheduler": type(s).__name__,
    })
json.dump(derived, sys.stdout)
"""


def test_a_scope_means_to_vllm_what_it_means_to_the_model() -> None:
    """vLLM's own properties, over the driver's configuration, give the scope's derived values."""
    pipelines = [
        {"async_scheduling": False, "pipeline_parallel_size": 1},
        {"async_scheduling": False, "pipeline_parallel_size": 2},
        {"async_scheduling": True, "pipeline_parallel_size": 1},
        {"async_scheduling": True, "pipeline_parallel_size": 1, "v2_model_runner": True},
        {"async_scheduling": True, "pipeline_parallel_size": 2, "v2_model_runner": True},
    ]
    roles = [{"kv_role": role} for role in (None, "kv_consumer", "kv_producer", "kv_both")]
    drafting = [
        {"num_speculative_tokens": 2, "spec_method": method, "async_scheduling": method != "ngram"}
        for method in ("ngram", "eagle", "draft_model")
    ]
    limits = [
        {"max_num_scheduled_tokens": 5, "watermark": 0.3, "reserve_full_isl": False},
        {"kv_role": "kv_consumer", "kv_load_failure_policy": "fail"},
    ]
    plain = [request([1, 2, 1])]
    changes = [{**p, **r} for p in pipelines for r in roles] + drafting + limits
    scopes = [scope(plain, **change) for change in changes]
    for values, real in zip(scopes, in_vllm(CONFIGURATION, scopes), strict=True):
        del values["stop_token"]
        ours = scope_from_dict({"name": "configuration", **values})
        assert real == {
            "depth": ours.depth,
            "token_budget": ours.token_budget,
            "num_lookahead_tokens": ours.num_lookahead_tokens,
            "draft_slots": ours.draft_slots,
            "defer_block_free": ours.defer_block_free,
            "v2_model_runner": ours.v2_model_runner,
            "num_speculative_tokens": ours.num_speculative_tokens,
            "reserve_full_isl": ours.reserve_full_isl,
            "watermark_blocks": int(ours.watermark * ours.num_blocks),
            "requires_kv_delivery": ours.kv_role in ("kv_producer", "kv_both"),
            "recompute": ours.kv_load_failure_policy == "recompute",
            "scheduler": "AsyncScheduler" if ours.async_scheduling else "Scheduler",
        }


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a script in the place of vLLM's interpreter; it is run with the driver's arguments."""

    def place(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
        path.chmod(0o755)
        monkeypatch.setenv(environment.PYTHON_VARIABLE, str(path))

    return place


ECHO = """
import sys
import time
from kvproof.vllm import protocol
with open(int(sys.argv[-1]), "wb") as answers:
    protocol.write_frame(answers, ["0.31.0+cpu", ["a_rule"], ["a_field"]])
    print("noise on standard output", flush=True)
    while (body := protocol.read_body(sys.stdin.buffer)) is not None:
        protocol.write_frame(answers, protocol.decode(body))
"""


def test_frames_survive_noise_and_full_pipes(impostor: Any) -> None:
    impostor(ECHO)
    large = [["observe", "x" * 1000]] * 1000
    with Client("0.31.0") as driver:
        for _ in range(3):
            driver.submit(large)
        assert [driver.collect() for _ in range(3)] == [large] * 3
        assert driver.guards == {"a_rule"}
        assert driver.unseen == ("a_field",)


def test_another_release_than_wanted_is_refused(impostor: Any) -> None:
    impostor(ECHO)
    with (
        Client("0.30.0") as driver,
        pytest.raises(DriverError, match=r"wanted vLLM 0\.30\.0.*has 0"),
    ):
        driver.run([["observe"]])


@pytest.mark.parametrize("wanted", ["0.31.1.dev45+gabcdef", "0.31.1.dev45"])
def test_a_build_of_the_wanted_version_is_taken_whatever_its_local_part(
    impostor: Any, wanted: str
) -> None:
    impostor(ECHO.replace("0.31.0+cpu", "0.31.1.dev45+gabcdef"))
    with Client(wanted) as driver:
        assert driver.run([["observe"]]) == [["observe"]]


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(1.0)
"""


def test_a_silence_is_said_and_waited_out(
    impostor: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvproof.bridge.client._SILENCE", 0.3)
    impostor(SLOW + ECHO)
    with Client("0.31.0") as driver:
        assert driver.run([["observe"]]) == [["observe"]]
    assert "vLLM's driver has been silent for" in capsys.readouterr().err


def test_a_driver_that_takes_nothing_is_silent_too(
    impostor: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kvproof.bridge.client._SILENCE", 0.3)
    impostor(SLOW + ECHO)
    large = [["observe", "x" * 1000]] * 1000
    with Client("0.31.0") as driver:
        driver.submit(large)
        assert "vLLM's driver has been silent for" in capsys.readouterr().err
        assert driver.collect() == large


def test_an_interrupt_does_not_wait_for_a_driver_that_takes_nothing(
    impostor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_words: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvproof.bridge.client._SILENCE", 0.3)
    monkeypatch.setattr("builtins.print", interrupt)
    impostor(SLOW.replace("1.0", "60"))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Client() as driver:
        driver.submit([["observe", "x" * 1000]] * 1000)
    assert time.monotonic() - started < 5


def test_an_interrupt_does_not_wait_for_the_driver(impostor: Any) -> None:
    impostor(SLOW.replace("1.0", "60"))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Client():
        raise KeyboardInterrupt
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("sent", [0, 1])
def test_nobody_waits_for_a_driver_whose_answers_are_not_wanted_any_more(
    impostor: Any, sent: int
) -> None:
    impostor(SLOW.replace("1.0", "60"))
    started = time.monotonic()
    with Client() as driver:
        for _ in range(sent):
            driver.submit([["observe"]])
    assert time.monotonic() - started < 5


def test_after_an_interrupt_the_answers_that_are_out_are_taken(impostor: Any) -> None:
    impostor(ECHO)
    with Client() as driver:
        driver.submit([["observe"]])
        driver.settle(10.0)
        assert driver.run([["again"]]) == [["again"]]


def test_an_interrupt_does_not_wait_long_for_answers_that_are_out(impostor: Any) -> None:
    impostor(ECHO.replace("while", "time.sleep(60)\n    while", 1))
    started = time.monotonic()
    with Client() as driver:
        driver.submit([["observe"]])
        with pytest.raises(KeyboardInterrupt):
            driver.settle(0.2)
    assert time.monotonic() - started < 5


def test_an_interrupt_does_not_wait_long_for_a_driver_that_has_not_started(impostor: Any) -> None:
    impostor(SLOW.replace("1.0", "60"))
    started = time.monotonic()
    with Client() as driver:
        driver.submit([["observe"]])
        with pytest.raises(KeyboardInterrupt):
            driver.settle(0.2)
    assert time.monotonic() - started < 5


def test_after_an_interrupt_a_dead_driver_is_reported(impostor: Any) -> None:
    impostor("import sys; sys.stdin.buffer.read(1); sys.exit('out of luck')")
    with Client() as driver:
        driver.submit([["observe"]])
        with pytest.raises(DriverError, match="out of luck"):
            driver.settle(10.0)


def test_the_driver_does_not_hear_the_terminals_interrupt(impostor: Any) -> None:
    impostor(ECHO)
    with Client() as driver:
        driver.run([["observe"]])
        assert os.getsid(driver._process.pid) == driver._process.pid


def test_only_our_package_is_made_importable_and_the_users_path_is_kept(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(
        "import sys, kvproof.vllm.protocol\nprint(kvproof.__file__, sys.argv[1:], *sys.path)\n",
        encoding="utf-8",
    )
    package = tmp_path / "site-packages" / "kvproof"
    package.parent.mkdir()
    package.symlink_to(ROOT / "kvproof")
    done = subprocess.run(
        [sys.executable, "-c", client_module._START, str(package), "probe", "7"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, arguments, *path = done.stdout.split()
    assert (file, arguments) == (f"{package}/__init__.py", "['7']")
    assert str(tmp_path) in path
    assert str(package.parent) not in path


def test_an_environment_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment.root() == ROOT


def test_a_dead_driver_is_reported_with_its_last_words(impostor: Any) -> None:
    impostor("import sys; print('out of luck', file=sys.stderr); sys.exit(7)")
    with Client() as driver:
        with pytest.raises(DriverError, match=r"(?s)ended with 7.*out of luck"):
            driver.run([["observe"]])
        with pytest.raises(DriverError, match=r"(?s)ended with 7.*out of luck"):
            driver.run([["observe"]])


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(environment.PYTHON_VARIABLE, raising=False)
    monkeypatch.delenv(environment.TORCH_INDEX_VARIABLE, raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "kvproof").mkdir()
    (tmp_path / "below").mkdir()
    monkeypatch.setattr("kvproof.__file__", str(tmp_path / "site-packages/kvproof/__init__.py"))
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def test_a_missing_environment_says_how_to_get_it(repository: Path) -> None:
    with pytest.raises(environment.MissingEnvironment, match="`make vllm` in a checkout builds it"):
        Client()
    with pytest.raises(environment.MissingEnvironment) as other:
        Client("0.30.0")
    said = str(other.value)
    assert said.index("made for 0.31.0 and may not run on it") < said.index("`make vllm VERSION=")


def test_a_driver_that_does_not_start_on_another_release_says_for_which_it_is_made(
    impostor: Any,
) -> None:
    impostor("raise ImportError('AuxOutputConfig')")
    said = r"(?s)made for 0\.31\.0, .*on 0\.30\.0.*AuxOutputConfig"
    with Client("0.30.0") as driver, pytest.raises(DriverError, match=said):
        driver.run([["observe"]])


def test_an_interpreter_that_is_none_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.PYTHON_VARIABLE, str(repository / "none"))
    with pytest.raises(environment.MissingEnvironment, match="not an interpreter"):
        environment.find()


def test_an_environment_is_built_once_and_rebuilt_when_half_built(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = repository / ".vllm" / "0.31.0"
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(environment.venv, "create", lambda home, with_pip: home.mkdir(parents=True))
    monkeypatch.setattr(environment, "_run", lambda python, *rest: ran.append(rest))
    monkeypatch.setenv(environment.TORCH_INDEX_VARIABLE, "an-index")

    home.mkdir(parents=True)
    (home / "left over").touch()
    assert environment.find("0.31.0") is None
    python = environment.build("0.31.0")
    assert not (home / "left over").exists()
    assert python == environment.find("0.31.0") == home / "bin" / "python"
    torch = next(arguments for arguments in ran if "--extra-index-url" in arguments)
    assert torch[-3:] == ("torch==2.13.0", "--extra-index-url", "an-index")

    ran.clear()
    environment.build("0.31.0")
    assert ran == []
    assert "stands ready" in capsys.readouterr().out

    monkeypatch.setattr(environment, "_TESTING", ("pytest", "another"))
    assert environment.find("0.31.0") is None
    environment.build("0.31.0")
    assert any("another" in arguments for arguments in ran)


def test_a_failed_build_leaves_no_marker(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment.venv, "create", lambda home, with_pip: (home / "bin").mkdir(parents=True)
    )
    python = repository / ".vllm" / "0.31.0" / "bin" / "python"
    python.parent.mkdir(parents=True)

    def refuse(command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(environment.subprocess, "run", refuse)
    with pytest.raises(environment.MissingEnvironment, match=r"pip install.* ended with 3"):
        environment.build("0.31.0")
    assert environment.find("0.31.0") is None
