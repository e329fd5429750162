from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.model.scope import RequestSpec, Scope, ScopeError, load_scope, scope_from_dict
from kvproof.scopes.named import SCOPES

VALID: dict[str, Any] = {
    "name": "valid",
    "requests": [{"prompt": [1, 2, 1], "max_tokens": 2}],
    "num_blocks": 4,
    "max_num_batched_tokens": 4,
    "max_model_len": 6,
}


def refusal(**changes: Any) -> str:
    with pytest.raises(ScopeError) as caught:
        scope_from_dict({**VALID, **changes})
    return str(caught.value)


def test_a_valid_scope_is_taken() -> None:
    assert scope_from_dict(VALID).requests == (RequestSpec(prompt=(1, 2, 1), max_tokens=2),)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_num_batched_tokens", 0, "1.."),
        ("max_num_scheduled_tokens", 0, "1.."),
        ("num_blocks", 1, "2.."),
        ("block_size", 0, "1.."),
        ("max_model_len", 1, "2.."),
        ("max_num_seqs", 0, "1..16"),
        ("max_num_seqs", 17, "1..16"),
        ("watermark", 1.0, "< 1"),
        ("watermark", -0.1, "0 <="),
        ("num_speculative_tokens", 4, "0..3"),
        ("pipeline_parallel_size", 4, "1..3"),
        ("long_prefill_token_threshold", 7, "max_model_len"),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_value_and_range(
    field: str, value: float, allowed: str
) -> None:
    message = refusal(**{field: value})
    assert message.startswith(field)
    assert str(value) in message
    assert allowed in message


def test_a_pool_too_small_for_one_whole_request_is_refused() -> None:
    assert ">= 4" in refusal(num_blocks=3)


def test_more_requests_than_the_record_holds_are_refused() -> None:
    message = refusal(requests=VALID["requests"] * 17)
    assert "requests" in message
    assert "1..16" in message


def test_no_request_is_refused() -> None:
    assert "requests" in refusal(requests=[])


def test_a_prompt_that_leaves_no_room_for_output_is_refused() -> None:
    message = refusal(requests=[{"prompt": [1] * 6, "max_tokens": 1}])
    assert "requests[0].prompt" in message


def test_an_unknown_key_is_refused_by_name() -> None:
    assert "watermak" in refusal(watermak=0.1)
    assert "promt" in refusal(requests=[{"promt": [1], "prompt": [1], "max_tokens": 1}])


def test_a_wrong_type_is_refused_with_its_place() -> None:
    assert "num_blocks" in refusal(num_blocks="four")


def test_an_unknown_rule_is_refused() -> None:
    assert "no_such_rule" in refusal(rules_off=["no_such_rule"])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_num_seqs": 5}, "max_num_seqs"),
        ({"chunked_prefill": False}, "chunked prefill"),
        (
            {"async_scheduling": True, "num_speculative_tokens": 1, "spec_method": "ngram"},
            "spec_method",
        ),
        ({"async_scheduling": True, "pipeline_parallel_size": 2}, "v2_model_runner"),
        ({"may_fail_loads": True}, "kv_role"),
        (
            {"requests": [{"prompt": [1], "max_tokens": 1, "external": {"tokens": 1}}]},
            "kv_role",
        ),
    ],
)
def test_what_start_up_refuses_is_refused(changes: dict[str, Any], named: str) -> None:
    assert named in refusal(**changes)


def test_a_toml_file_is_read_and_named_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "num_blocks = 4\nmax_num_batched_tokens = 4\nmax_model_len = 6\n"
        "[[requests]]\nprompt = [1, 2]\nmax_tokens = 2\n",
        encoding="utf-8",
    )
    scope = load_scope(path)
    assert scope.name == "mine"
    assert scope.requests[0].prompt == (1, 2)


def test_a_toml_file_that_is_not_toml_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("num_blocks = = 4", encoding="utf-8")
    with pytest.raises(ScopeError, match=r"broken\.toml: not TOML"):
        load_scope(path)


def test_named_scopes_survive_a_round_trip_through_plain_values() -> None:
    for scope in SCOPES.values():
        assert scope_from_dict(msgspec.to_builtins(scope)) == scope


def test_depth_follows_vllm() -> None:
    def depth(**changes: Any) -> int:
        return Scope(**{**VALID, "requests": (RequestSpec((1,), 1),), **changes}).depth

    assert depth() == 1
    assert depth(async_scheduling=True) == 2
    assert depth(pipeline_parallel_size=3) == 3
    assert depth(async_scheduling=True, v2_model_runner=True) == 2
    assert depth(async_scheduling=True, v2_model_runner=True, pipeline_parallel_size=2) == 3
