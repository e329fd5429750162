"""Where an answer of the real side is not what the model expects: named fields with both values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.bridge.observation import UNSTATED, Past
from kvproof.vllm import protocol

Field = tuple[str, Any, Any]
"""The name of what differs, the model's value and vLLM's."""

ABSENT = "not there"
"""The value of something that the side does not have at all."""

_OF_REQUESTS = {
    "requests": protocol.REQUEST,
    "connector": protocol.SCRIPT,
    "sent_new": protocol.SENT_NEW,
    "sent_cached": protocol.SENT_CACHED,
}
"""Lists with a row for each request, and what stands in a row."""

_OF_BLOCKS = ("ref_cnt", "block_hash")


@dataclass
class Expected:
    """One operation under way: the run it ends, and what the model says of it.

    `past` is what the run has come by after it.
    """

    codes: tuple[int, ...]
    past: Past
    result: Any
    observation: list[Any]
    asserts: bool


def compare(expected: Expected, answer: Any) -> tuple[Field, ...]:
    """The fields in which the real side's answer differs from the model's."""
    result, seen = answer
    if is_broken(answer):
        if expected.asserts and not is_endless(answer):
            return ()
        wanted = "an assertion of vLLM" if expected.asserts else "no error"
        return (("outcome", wanted, _outcome(result)),)
    if expected.asserts:
        return (("outcome", "an assertion of vLLM", "no error"),)
    fields: list[Field] = []
    if result != expected.result:
        fields += _of_result(expected.result, result)
    if seen != expected.observation:
        for name, model, real in zip(protocol.OBSERVATION, expected.observation, seen, strict=True):
            fields += _of_part(name, "", model, real)
    return tuple(fields)


def is_broken(answer: Any) -> bool:
    """Whether an operation raised, or was skipped for an earlier one had."""
    result = answer[0]
    return isinstance(result, list) and bool(result) and result[0] in ("error", "skipped")


def is_skipped(answer: Any) -> bool:
    """Whether an operation was skipped."""
    return bool(answer[0] == ["skipped"])


def is_endless(answer: Any) -> bool:
    """Whether the operation is a call that does not return."""
    return is_broken(answer) and answer[0][1:2] == ["DoesNotReturn"]


def _outcome(result: list[Any]) -> str:
    if result[0] == "skipped":
        return "skipped after an error"
    _error, kind, message, where = result
    how = "does not return" if is_endless([result]) else f"{kind}: {message}"
    return f"{how} ({where})"


def told(fields: Iterable[Field]) -> list[str]:
    """One line a field, with both values."""
    return [f"{name}: model {model}, vLLM {real}" for name, model, real in fields]


def _of_result(model: Any, real: Any) -> Iterator[Field]:
    """The parts in which two results differ: a step's by their names, an output's by requests."""
    if not (isinstance(model, dict) and isinstance(real, dict)):
        yield "result", model, real
        return
    for key in {**model, **real}:
        a, b = model.get(key, ABSENT), real.get(key, ABSENT)
        if isinstance(key, str):
            yield from _of_part(key, "result, ", a, b)
        elif ABSENT in (a, b) or key < 0:
            yield from _if_different(f"result, R{key}" if key >= 0 else "result, nobody", a, b)
        else:
            yield from _columns(f"result, R{key} ", protocol.OUTPUT, a, b)


def _of_part(name: str, before: str, model: Any, real: Any) -> Iterator[Field]:
    """The places of one part in which two sides differ."""
    if model in (real, UNSTATED) or real == protocol.UNSEEN:
        return
    if isinstance(model, list) and isinstance(real, list):
        if name in _OF_REQUESTS:
            yield from _rows(name, before, _OF_REQUESTS[name], model, real)
            return
        if name in _OF_BLOCKS and len(model) == len(real):
            for b, (ours, theirs) in enumerate(zip(model, real, strict=True)):
                yield from _if_different(f"{before}block {b} {name}", ours, theirs)
            return
    if isinstance(model, dict) and isinstance(real, dict):
        for r in {**model, **real}:
            ours, theirs = model.get(r, ABSENT), real.get(r, ABSENT)
            yield from _if_different(f"{before}R{r} {name}", ours, theirs)
        return
    yield before + name, model, real


def _rows(
    name: str, before: str, names: Sequence[str], model: list[Any], real: list[Any]
) -> Iterator[Field]:
    """The columns in which the rows of the same requests differ; then the rows themselves."""
    ours, theirs = _by_request(model), _by_request(real)
    for r in ours.keys() & theirs.keys():
        yield from _columns(f"{before}R{r} ", names, ours[r], theirs[r])
    requests = [[row[0] for row in rows] for rows in (model, real)]
    yield from _if_different(before + name, *requests)


def _by_request(rows: list[Any]) -> Mapping[int, Any]:
    return {row[0]: row for row in rows}


def _columns(before: str, names: Sequence[str], model: list[Any], real: list[Any]) -> list[Field]:
    return [
        field
        for name, ours, theirs in zip(names, model, real, strict=True)
        for field in _if_different(before + name, ours, theirs)
    ]


def _if_different(name: str, model: Any, real: Any) -> Iterator[Field]:
    if model != real:
        yield name, model, real
