"""The language between kvproof and the driver in vLLM's interpreter.

A frame is four bytes of length (little endian) and that much msgpack. kvproof sends batches, lists
of operations `[name, argument...]`; the driver answers each with the list of their answers:
`[result, observation]` for an operation, None for a move of the state. The first frame of a driver
is its vLLM's version and the names of the rules whose guards it can take out.

An operation that makes vLLM raise is answered with the result `["error", type, first line of the
message, "file.py:function"]`, and so is one that meets an object of another shape than the driver
knows, an output that the oldest step cannot have, for the scheduler has planned another step, and
a call that does not return (type DoesNotReturn). Later ones are answered with `["skipped"]`, until
a move leads out of the broken state, after a call that does not return until the next `new`; then
the observation is None. A batch that makes no sense ends the driver.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import msgspec

MOVES = ("new", "push", "pop", "peek")
"""Moves of the state: build it from a scope (and take guards out, by their rules' names, and make
mends, by theirs, until the next one), save it, go back to the last saved state, and the same
without forgetting that one."""

OBSERVATION = (
    "requests",
    "running",
    "waiting",
    "kv_holding_waiting",
    "free",
    "free_back",
    "num_free",
    "ref_cnt",
    "cached",
    "block_hash",
    "deferred",
    "seq_ahead",
    "recved",
    "failed",
    "finished",
    "reset_preempted",
    "inflight_prefills",
    "in_flight",
    "pause",
    "has_requests",
    "connector",
    "leaks",
)
"""Fields of an observation, in its order."""

REQUEST = (
    "request",
    "status",
    "num_computed_tokens",
    "num_tokens",
    "num_output_tokens",
    "num_output_placeholders",
    "num_in_flight_tokens",
    "num_stale_output_tokens",
    "drop_stale_output",
    "is_prefill_chunk",
    "was_preempted",
    "steps_to_fence",
    "steps_to_decode",
    "num_cached_block",
    "block_ids",
    "all_token_ids",
    "outputs_end_them",
    "spec_token_ids",
)
"""Fields of a request in the observation's `requests`, in their order."""

SCRIPT = ("request", "load_used", "asks_left")
"""Fields of a request in the observation's `connector`: what is left of its script."""

SENT_NEW = (
    "request",
    "sent prompt_token_ids",
    "sent prefill_token_ids",
    "sent block_ids",
    "sent num_computed_tokens",
)
"""Fields of a request in a step's `sent_new`."""

SENT_CACHED = (
    "request",
    "sent new_block_ids",
    "sent num_computed_tokens",
    "sent num_output_tokens",
    "sent new_token_ids",
    "sent all_token_ids",
)
"""Fields of a request in a step's `sent_cached`."""

OUTPUT = (
    "new_token_ids",
    "finish_reason",
    "stop_reason",
    "prefill_stats",
    "kv_transfer_params",
    "odd",
)
"""What the client of a request is told with a step's output, in its order; the last is empty."""

PREFILL_STATS = (
    "num_prompt_tokens",
    "num_computed_tokens",
    "num_cached_tokens",
    "num_local_cached_tokens",
    "num_external_cached_tokens",
    "num_cache_creation_tokens",
)
"""Fields of `prefill_stats`, in their order."""

UNSEEN = "unseen"
"""In the place of something that a release does not send."""

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def write_frame(stream: BinaryIO, value: Any) -> None:
    """Write one value and flush."""
    stream.write(frame(value))
    stream.flush()


def frame(value: Any) -> bytes:
    """The frame of one value."""
    body: bytes = _encode(value)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def read_body(stream: BinaryIO) -> bytes | None:
    """The next frame's bytes; None at the end of the stream, also in the middle of a frame."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "little")
    body = stream.read(size)
    return body if len(body) == size else None


def decode(body: bytes) -> Any:
    """The value of a frame's bytes."""
    return _decode(body)
