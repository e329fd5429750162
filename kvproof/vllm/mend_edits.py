"""Edits that make a change which vLLM lacks.

One entry a mend: the edits after which the real classes do what the model does with the mend on.
"""

from __future__ import annotations

import ast

from kvproof.vllm.edits import (
    Change,
    Edit,
    Place,
    and_also,
    become,
    followed_by,
    preceded_by,
    with_argument,
)
from kvproof.vllm.guard_edits import RUNNING, WAITING

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_POOL = "vllm.v1.core.block_pool:BlockPool"
_MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_CONFIG = "vllm.config.scheduler:SchedulerConfig"


def _schedule(*changes: Change) -> tuple[Edit, ...]:
    return (Edit(f"{_SCHEDULER}.schedule", changes),)


_PADS = Place(ast.If, ("num_computed_tokens", "padded_num_tokens", "max_model_len"), "test")
_WITH_SPEC_STEP = (
    "min(request.num_tokens + (1 + self.num_spec_tokens + self.num_lookahead_tokens "
    "if self.num_spec_tokens else 0), self.max_model_len)"
)
_WHOLE = Place(ast.Call, ("min", "num_tokens", "max_model_len"))

EDITS: dict[str, tuple[Edit, ...]] = {
    "withdraw_hashes_of_scheduled_victim": _schedule(
        Change(
            Place(ast.Assign, ("restored",), "targets"),
            preceded_by(
                "(table,) = self.kv_cache_manager.get_block_ids(preempted_req.request_id)\n"
                "first = preempted_req.num_computed_tokens // self.block_size\n"
                "self.kv_cache_manager.evict_blocks(set(table[first:]))\n"
            ),
        )
    ),
    # A running request says of itself whether the step of its load is still in flight.
    "publish_sync_loads_when_done": (
        *_schedule(
            Change(
                Place(ast.Call, ("allocate_slots",), "func", within=(RUNNING, "body")),
                with_argument("delay_cache_blocks", "request.awaits_sync_load"),
            ),
            Change(
                Place(
                    ast.Name,
                    ("load_kv_async",),
                    within=(Place(ast.keyword, ("delay_cache_blocks",)), "value"),
                ),
                become("load_kv_async or num_external_computed_tokens > 0"),
            ),
            Change(
                Place(ast.Expr, ("running", "append")),
                followed_by("request.awaits_sync_load = num_external_computed_tokens > 0"),
            ),
        ),
        Edit(
            f"{_SCHEDULER}.update_from_output",
            (
                Change(
                    Place(ast.If, ("failed_kv_load_req_ids", "req_id"), "test"),
                    preceded_by(
                        "is_back = request is not None and (\n"
                        "    not output_is_stale or req_id in failed_kv_load_req_ids\n"
                        ")\n"
                        "loaded = is_back and request.awaits_sync_load\n"
                        "if loaded:\n"
                        "    request.awaits_sync_load = False\n"
                    ),
                ),
                Change(
                    Place(ast.If, ("request", "is_finished"), "test"),
                    followed_by(
                        "if loaded:\n"
                        "    self.kv_cache_manager.cache_blocks(\n"
                        "        request, min(request.num_computed_tokens, request.num_tokens)\n"
                        "    )\n"
                    ),
                ),
            ),
        ),
    ),
    "drop_output_of_failed_load": (
        Edit(
            f"{_SCHEDULER}._handle_invalid_blocks",
            (
                Change(
                    Place(ast.Return, ("sync_failed_req_ids",)),
                    preceded_by(
                        "for req_id in sync_failed_req_ids:\n"
                        "    request = self.requests[req_id]\n"
                        "    request.drop_stale_output = True\n"
                        "    request.num_stale_output_tokens = request.num_in_flight_tokens\n"
                        "    request.num_output_placeholders = 0\n"
                        "    request.spec_token_ids = []\n"
                    ),
                ),
            ),
        ),
    ),
    "forget_prefill_of_failed_load": (
        Edit(
            f"{_SCHEDULER}._update_waiting_for_remote_kv",
            (
                Change(
                    Place(ast.Expr, ("kv_cache_manager", "free")),
                    followed_by("self._inflight_prefills.discard(request)"),
                ),
            ),
        ),
    ),
    "requeue_after_failed_load": _schedule(
        Change(
            Place(ast.If, ("ready_to_schedule",), "test"),
            followed_by(
                "if (\n"
                "    request_queue is self.kv_holding_waiting\n"
                "    and not request.num_computed_tokens\n"
                "    and not any(self.kv_cache_manager.get_block_ids(request_id))\n"
                "):\n"
                "    request_queue.pop_request()\n"
                "    self.deferred_waiting.discard(request)\n"
                "    self.waiting.prepend_request(request)\n"
                "    continue\n"
            ),
        )
    ),
    "look_before_reset": (
        Edit(
            f"{_SCHEDULER}.reset_prefix_cache",
            (
                Change(
                    Place(ast.If, ("_preempt_request",), "body"),
                    preceded_by(
                        "if reset_running_requests and self.kv_holding_waiting:\n    return False\n"
                    ),
                ),
            ),
        ),
    ),
    "reset_beside_fence": (
        Edit(
            f"{_SCHEDULER}.reset_prefix_cache",
            (
                Change(
                    Place(ast.Assign, ("reset_successful", "kv_cache_manager")),
                    preceded_by(
                        "self.kv_cache_manager.block_pool.is_read = bool(\n"
                        "    self.running or self.kv_holding_waiting\n"
                        ")\n"
                    ),
                ),
            ),
        ),
        Edit(
            f"{_POOL}.reset_prefix_cache",
            (Change(Place(ast.If, ("num_used_blocks",), "test"), and_also("self.is_read")),),
        ),
    ),
    "reserve_spec_step_exactly": (
        *_schedule(
            Change(
                Place(ast.Call, ("_spec_decode_step_blocks",)),
                become(
                    f"cdiv({_WITH_SPEC_STEP}, self.block_size)"
                    " - cdiv(min(request.num_tokens, self.max_model_len), self.block_size)"
                ),
            )
        ),
        Edit(
            f"{_SCHEDULER}._request_remaining_blocks",
            (
                Change(_WHOLE, become(_WITH_SPEC_STEP)),
                Change(
                    Place(ast.BinOp, ("num_blocks", "_spec_decode_step_blocks")),
                    become("num_blocks"),
                ),
            ),
        ),
    ),
    "tell_loaded_by_blocks": _schedule(
        Change(
            Place(ast.If, ("_get_local_prefix_cache_hit",), "body", within=(WAITING, "body")),
            and_also("not any(self.kv_cache_manager.get_block_ids(request_id))"),
        )
    ),
    "leave_last_token_of_sync_load": _schedule(
        Change(
            Place(
                ast.Assign,
                (
                    "num_computed_tokens",
                    "num_new_local_computed_tokens",
                    "num_external_computed_tokens",
                ),
            ),
            preceded_by(
                "if not load_kv_async:\n"
                "    num_external_computed_tokens = min(\n"
                "        num_external_computed_tokens,\n"
                "        request.num_tokens - 1 - num_new_local_computed_tokens,\n"
                "    )\n"
            ),
        )
    ),
    "pad_within_threshold": _schedule(
        Change(_PADS, and_also("not 0 < long_prefill_token_threshold < padded_num_tokens"))
    ),
    "admit_unpadded_alone": _schedule(
        Change(
            _PADS, and_also("(num_scheduled_tokens or padded_num_tokens <= request_token_budget)")
        )
    ),
    "await_output_before_self_preemption": _schedule(
        Change(
            Place(ast.If, ("_request_blocks_can_be_freed",), "test"),
            followed_by(
                "if (\n"
                "    preempted_req is request\n"
                "    and self.requires_kv_delivery\n"
                "    and request.num_in_flight_tokens\n"
                "):\n"
                "    break\n"
            ),
        )
    ),
    "admit_with_lookahead": (
        Edit(
            f"{_MANAGER}.allocate_slots",
            (
                Change(
                    _WHOLE,
                    become("min(request.num_tokens + num_lookahead_tokens, self.max_model_len)"),
                ),
            ),
        ),
    ),
    "resume_only_whole": _schedule(
        Change(
            Place(ast.Attribute, ("scheduler_reserve_full_isl",), within=(WAITING, "body")),
            become("self.scheduler_reserve_full_isl or request.status == RequestStatus.PREEMPTED"),
        )
    ),
    "fence_in_every_role": (
        Edit(
            f"{_SCHEDULER}.__init__",
            (
                Change(
                    Place(ast.BoolOp, ("multiple_inflight_batches", "is_kv_consumer")),
                    become("multiple_inflight_batches"),
                ),
            ),
        ),
    ),
    "reserve_rest_of_own_load": _schedule(
        Change(
            Place(ast.Assign, ("reserved_blocks", "_inflight_prefill_reserved_blocks")),
            followed_by(
                "whole = cdiv(min(request.num_tokens, self.max_model_len), self.block_size)\n"
                "reserved_blocks += whole - cdiv(num_computed_tokens, self.block_size)\n"
            ),
        )
    ),
    "compare_scheduled_budget": (
        Edit(
            f"{_CONFIG}.verify_max_model_len",
            (
                Change(
                    Place(ast.If, ("max_num_batched_tokens", "enable_chunked_prefill"), "test"),
                    preceded_by(
                        "scheduled = self.max_num_scheduled_tokens\n"
                        "chunks = self.enable_chunked_prefill\n"
                        "if not chunks and scheduled is not None and scheduled < max_model_len:\n"
                        "    raise ValueError(\n"
                        "        f'max_num_scheduled_tokens ({scheduled}) is smaller than '\n"
                        "        f'max_model_len ({max_model_len}), without chunked prefill'\n"
                        "    )\n"
                    ),
                ),
            ),
        ),
    ),
}
"""By mend: what makes it."""
