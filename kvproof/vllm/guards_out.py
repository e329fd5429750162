"""Guards of vLLM taken out of the real classes, and mends made to them, while a run is on them.

A guard that is a function of its own is replaced here; one that stands inside a function is edited
out (kvproof/vllm/guard_edits.py). Every mend is an edit (kvproof/vllm/mend_edits.py). Runs in
vLLM's interpreter: with its rule off in the model and its guard out here, or a mend on both sides,
a trace must do the same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus

from kvproof.vllm import mend_edits
from kvproof.vllm.edits import Edit, edited
from kvproof.vllm.guard_edits import EDITS

Guard = tuple[Any, str, Any]


def _without(owner: Any, name: str, **fixed: Any) -> Guard:
    """The same method, with these arguments whatever the caller says."""
    method = getattr(owner, name)
    return owner, name, lambda self, *args, **kwargs: method(self, *args, **{**kwargs, **fixed})


def _keeping(attribute: str) -> Guard:
    """A preemption that does not forget one attribute of its victim."""
    preempt = Scheduler._preempt_request

    def keeping(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        kept = getattr(request, attribute)
        preempt(self, request, *args, **kwargs)
        setattr(request, attribute, kept)

    return Scheduler, "_preempt_request", keeping


def _touch(self: Any, blocks: Any) -> None:
    for block in blocks:
        block.ref_cnt += 1


def _free_now(self: Any, request: Any) -> None:
    self.kv_cache_manager.free(request)


def _fence_one_earlier(self: Any, request: Any) -> None:
    blocks = self.kv_cache_manager.pop_blocks_for_free(request)
    self.deferred_frees.append((request.last_sched_seq - 1, blocks))


def _finish_after_forgetting_loads(self: Any, *args: Any, **kwargs: Any) -> Any:
    self.finished_recving_kv_req_ids.clear()
    return _finish_requests(self, *args, **kwargs)


def _is_loaded(self: Any, request: Any) -> bool:
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        self.finished_recving_kv_req_ids.add(request.request_id)
    return bool(_handle_blocked(self, request))


def _reset_anyway(self: Any) -> bool:
    with patch.object(BlockPool, "get_num_free_blocks", lambda pool: pool.num_gpu_blocks - 1):
        return bool(_reset_prefix_cache(self))


def _take_all_tokens(
    self: Any, request: Any, new_token_ids: list[int], is_stale: bool = False
) -> tuple[list[int], bool]:
    every = list(new_token_ids)
    _kept, stopped = _update_with_output(self, request, new_token_ids, is_stale)
    return every, stopped


def _blind_to(method: Callable[..., Any], flag: str) -> Callable[..., Any]:
    """The method, for which this flag is False on every request while it runs."""

    def blind(self: Any, *args: Any, **kwargs: Any) -> Any:
        marked = [request for request in self.requests.values() if getattr(request, flag)]
        for request in marked:
            setattr(request, flag, False)
        result = method(self, *args, **kwargs)
        for request in marked:
            setattr(request, flag, True)
        return result

    return blind


def _hit(**changes: Callable[[Any], Any]) -> Guard:
    """A lookup with these of its arguments changed."""
    find = FullAttentionManager.find_longest_cache_hit

    def changed(cls: Any, /, **kwargs: Any) -> Any:
        return find(**{**kwargs, **{name: to(kwargs[name]) for name, to in changes.items()}})

    return FullAttentionManager, "find_longest_cache_hit", classmethod(changed)


def _hash_of_tokens_alone(function: Any, parent: Any, tokens: Any, extra_keys: Any = None) -> Any:
    return _hash_block_tokens(function, bytes(len(parent or b"\0")), tokens, extra_keys)


_finish_requests = Scheduler.finish_requests
_handle_blocked = Scheduler._handle_blocked_waiting_request
_reset_prefix_cache = BlockPool.reset_prefix_cache
_free_blocks = BlockPool.free_blocks
_update_with_output = Scheduler._update_request_with_output
_hash_block_tokens = kv_cache_utils.hash_block_tokens

REPLACED: dict[str, Guard] = {
    "evict_hash_on_reuse": (BlockPool, "_maybe_evict_cached_block", lambda self, block: False),
    "take_hit_from_free_queue": (BlockPool, "touch", _touch),
    "free_tail_first": (
        BlockPool,
        "free_blocks",
        lambda self, blocks: _free_blocks(self, list(blocks)[::-1]),
    ),
    "keep_published_longest": (
        FreeKVCacheBlockQueue,
        "append_n",
        FreeKVCacheBlockQueue.prepend_n,
    ),
    "reuse_unpublished_first": (
        FreeKVCacheBlockQueue,
        "prepend_n",
        FreeKVCacheBlockQueue.append_n,
    ),
    "count_evictable_hits": (
        FullAttentionManager,
        "_get_num_evictable_blocks",
        lambda self, blocks: 0,
    ),
    "recompute_last_token": _hit(max_length=lambda length: length + 1),
    "drop_hit_before_drafting_head": _hit(drop_eagle_block=lambda drop: False),
    "hash_whole_prefix": (kv_cache_utils, "hash_block_tokens", _hash_of_tokens_alone),
    "hash_includes_salt": (
        kv_cache_utils,
        "generate_block_hash_extra_keys",
        lambda *args, **kwargs: (None, 0),
    ),
    "reserve_full_sequence": _without(
        KVCacheManager, "allocate_slots", full_sequence_must_fit=False
    ),
    "reserve_lookahead": _without(KVCacheManager, "allocate_slots", num_lookahead_tokens=0),
    "publish_loads_when_done": _without(KVCacheManager, "allocate_slots", delay_cache_blocks=False),
    "requeue_victim_first": (FCFSRequestQueue, "prepend_request", FCFSRequestQueue.add_request),
    "forget_victim_progress": _keeping("num_computed_tokens"),
    "forget_victim_placeholders": _keeping("num_output_placeholders"),
    "forget_victim_drafts": _keeping("spec_token_ids"),
    "reset_only_unused_pool": (BlockPool, "reset_prefix_cache", _reset_anyway),
    "clear_hashes_on_reset": (BlockPool, "reset_prefix_cache", lambda self: True),
    "drop_stale_output_on_reset": (
        Scheduler,
        "update_from_output",
        _blind_to(Scheduler.update_from_output, "drop_stale_output"),
    ),
    "drop_stale_output_of_producers": _without(
        Scheduler, "_preempt_request", drop_stale_output=False
    ),
    "ignore_drafts_of_prefill_chunks": (
        Scheduler,
        "update_draft_token_ids",
        _blind_to(Scheduler.update_draft_token_ids, "is_prefill_chunk"),
    ),
    "remove_aborted_from_queues": (
        FCFSRequestQueue,
        "remove_requests",
        lambda self, requests: None,
    ),
    "trim_output_after_stop": (Scheduler, "_update_request_with_output", _take_all_tokens),
    "fence_in_flight_frees": (Scheduler, "_free_request_blocks", _free_now),
    "fence_at_last_scheduled_step": (Scheduler, "_free_request_blocks", _fence_one_earlier),
    "hold_blocks_until_load_done": _without(Scheduler, "_free_request", delay_free_blocks=False),
    "release_hold_if_load_already_done": (
        Scheduler,
        "finish_requests",
        _finish_after_forgetting_loads,
    ),
    "hold_blocks_until_sent": (
        Scheduler,
        "_connector_finished",
        lambda self, request: (False, None),
    ),
    "wait_for_remote_load": (Scheduler, "_handle_blocked_waiting_request", _is_loaded),
    "reserve_for_inflight_prefills": (
        Scheduler,
        "_inflight_prefill_reserved_blocks",
        lambda self: 0,
    ),
    "reserve_spec_step_for_loads": (Scheduler, "_spec_decode_step_blocks", lambda self: 0),
    "stay_awake_for_delayed_frees": (
        Scheduler,
        "has_finished_requests",
        lambda self: bool(self.finished_req_ids),
    ),
}
"""By rule: the function that has the guard, and what it is without."""

GUARDS = (*REPLACED, *EDITS)
"""The rules whose guards can be taken out."""


@contextmanager
def taken_out(rules: Iterable[str], mends: Iterable[str] = ()) -> Iterator[None]:
    """vLLM without the guards of these rules and with these mends; KeyError names one unknown."""
    replaced: list[Guard] = []
    edits: list[Edit] = [edit for mend in mends for edit in mend_edits.EDITS[mend]]
    for rule in rules:
        if rule in EDITS:
            edits += EDITS[rule]
        else:
            replaced.append(REPLACED[rule])
    with ExitStack() as stack:
        stack.enter_context(edited(edits))
        for owner, name, function in replaced:
            stack.enter_context(patch.object(owner, name, function))
        yield
