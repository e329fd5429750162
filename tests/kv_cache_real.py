"""Makes calls of vLLM's real KV cache manager, in vLLM's interpreter.

Standard input has a list of [scope, tokens of each request, walks], a walk a list of [name,
request, arguments]; prints for each call [granted, hits, free queue, reference counts, published
blocks by prefix, tables, numbers of published blocks].
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from vllm.v1.request import RequestStatus

from kvproof.vllm import protocol
from kvproof.vllm.driver import Engine


class Real:
    """The manager of a scope's scheduler and its requests."""

    def __init__(self, scope: dict[str, Any], lines: list[list[int]]) -> None:
        self.engine = Engine(scope)
        self.manager = self.engine.scheduler.kv_cache_manager
        self.lines = lines
        self.requests = [self.engine.request(r) for r in range(len(lines))]

    def call(self, name: str, r: int, arguments: dict[str, Any]) -> tuple[bool, list[int]]:
        request = self.requests[r]
        if name == "free":
            self.manager.free(request)
            request.num_computed_tokens = 0
            return True, []
        if name == "publish":
            self.manager.coordinator.cache_blocks(request, arguments["tokens"])
            return True, []
        options: dict[str, Any] = {
            "num_lookahead_tokens": arguments["lookahead"],
            "has_scheduled_reqs": arguments["others"],
        }
        new = arguments["new"]
        if name == "go_on":
            request.status = RequestStatus.RUNNING
            if arguments["grows"]:
                request.append_output_token_ids(self.lines[r][request.num_tokens])
            granted = self.manager.allocate_slots(request, new, **options) is not None
            if granted:
                computed = request.num_computed_tokens + new
                request.num_computed_tokens = min(computed, request.num_tokens)
            return granted, []
        request.status = RequestStatus[arguments["status"]]
        blocks, found, _ = self.manager.get_computed_blocks(request)
        granted = self.manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=found,
            new_computed_blocks=blocks,
            num_external_computed_tokens=arguments["external"],
            delay_cache_blocks=arguments["delay"],
            full_sequence_must_fit=arguments["whole"],
            reserved_blocks=arguments["reserved"],
            **options,
        )
        if granted is not None:
            request.num_computed_tokens = found + arguments["external"] + new
        return granted is not None, [block.block_id for block in blocks.blocks[0]]

    def state(self) -> list[Any]:
        seen = dict(zip(protocol.OBSERVATION, self.engine.observation(), strict=True))
        (manager,) = self.manager.coordinator.single_type_managers
        names = [request.request_id for request in self.requests]
        tables = [
            [block.block_id for block in manager.req_to_blocks.get(name, ())] for name in names
        ]
        published = [manager.num_cached_block.get(name, 0) for name in names]
        return [seen["free"], seen["ref_cnt"], seen["cached"], tables, published]


def answers(scope: dict[str, Any], lines: list[list[int]], walk: list[Any]) -> list[Any]:
    """After each call of a walk what the manager has answered and holds, or what it raised."""
    real, found = Real(scope, lines), []
    for call in walk:
        try:
            found.append([*real.call(*call), *real.state()])
        except Exception as error:
            return [*found, repr(error)]
    return found


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(
        json.dumps(
            [
                [answers(scope, lines, walk) for walk in walks]
                for scope, lines, walks in json.load(sys.stdin)
            ]
        )
    )
