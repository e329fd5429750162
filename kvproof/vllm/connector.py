"""A KV connector that follows a script: what it has of each request's prefix, and how it loads it.

Scheduler side only: the worker's part, when a load or a send is over, is told to the driver with a
step's output. Loaded by vLLM through `KVTransferConfig.kv_connector_module_path`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.v1.request import Request, RequestStatus

_KEEPS_BLOCKS = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class External(NamedTuple):
    """A request's prefix outside: its tokens, how it loads, and how often to answer 'later'."""

    tokens: int
    is_async: bool
    once: bool
    ask_later: int


class Load(NamedTuple):
    """A load to start with this step: `tokens` tokens from position `start` into `block_ids`."""

    request_id: str
    start: int
    tokens: int
    is_async: bool
    block_ids: list[int]


class Loads(KVConnectorMetadata):  # type: ignore[misc]
    """What a step carries to the workers."""

    def __init__(self, loads: list[Load]) -> None:
        self.loads = loads


class ScriptedConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Answers from the script; `externals` and `delay_free` are the driver's to fill in."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.externals: dict[str, External] = {}
        self.delay_free: frozenset[str] = frozenset()
        self.used: set[str] = set()
        self.asks_left: dict[str, int] = {}
        self._loads: list[Load] = []
        # Of the request asked about last: no other one is asked about before its blocks are told.
        self._start = 0

    def save(self) -> tuple[set[str], dict[str, int], list[Load]]:
        """A copy of what changes."""
        return self.used.copy(), self.asks_left.copy(), self._loads.copy()

    def restore(self, saved: tuple[set[str], dict[str, int], list[Load]]) -> None:
        """Go back to a copy, which stays valid."""
        used, asks_left, loads = saved
        self.used, self.asks_left, self._loads = used.copy(), asks_left.copy(), loads.copy()

    def on_new_request(self, request: Request) -> None:
        """Start the request's script."""
        external = self.externals.get(request.request_id)
        if external is not None:
            self.used.discard(request.request_id)
            self.asks_left[request.request_id] = external.ask_later

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens it has beyond the local ones and whether they load asynchronously."""
        request_id = request.request_id
        external = self.externals.get(request_id)
        if external is None or request_id in self.used:
            return 0, False
        if self.asks_left[request_id] > 0:
            self.asks_left[request_id] -= 1
            return None, False
        self._start = num_computed_tokens
        tokens = min(external.tokens, request.num_tokens) - num_computed_tokens
        return (tokens, external.is_async) if tokens > 0 else (0, False)

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        """Note the load, if there is one, and that the one transfer of a `once` prefix is used."""
        request_id = request.request_id
        external = self.externals.get(request_id)
        if external is None:
            return
        if external.once:
            self.used.add(request_id)
        if num_external_tokens > 0:
            (block_ids,) = blocks.get_block_ids()
            self._loads.append(
                Load(request_id, self._start, num_external_tokens, external.is_async, block_ids)
            )

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        """Hand the noted loads to the step."""
        loads, self._loads = self._loads, []
        return Loads(loads)

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Keep the blocks of a request that ended by itself, if the script says so, until sent."""
        self.used.discard(request.request_id)
        self.asks_left.pop(request.request_id, None)
        keeps = request.request_id in self.delay_free and request.status in _KEEPS_BLOCKS
        return keeps and bool(block_ids), None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Worker side: not driven."""
        raise NotImplementedError

    def wait_for_save(self) -> None:
        """Worker side: not driven."""
        raise NotImplementedError
