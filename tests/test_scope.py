from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import pytest

from kvproof.bridge import environment
from kvproof.model.options import REQUIRED, Option, Options, ScopeError, checked, options_of
from kvproof.model.scope import External, RequestSpec, Scope, load_scope, scope_from_dict
from kvproof.scopes.cover import Cover
from kvproof.scopes.draw import RandomChooser, Size, draw_scope
from kvproof.scopes.named import SCOPES
from kvproof.scopes.reference import template
from kvproof.scopes.rows import CONSTRAINTS, PARAMETERS, scope_of
from kvproof.scopes.values import EXTERNAL_VALUES, REQUEST_VALUES, SCOPE_VALUES
from kvproof.spec.findings import FINDINGS
from kvproof.spec.hangs import GUARDS, HANGS
from kvproof.spec.rules import RULES
from kvproof.trace.render import scope_lines
from kvproof.trace.trace import Trace, TraceError, dumps, load
from tests.scope_text import scope_from_lines
from tests.test_cli import kvproof

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


def python_refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ScopeError) as caught:
        make()
    return str(caught.value)


WRONG: list[tuple[str, Any, str]] = [
    ("policy", "lifo", "policy = 'lifo': allowed is 'fcfs', 'priority'"),
    ("policy", None, "policy = None: allowed is 'fcfs', 'priority'"),
    ("kv_role", "consumer", "kv_role = 'consumer': allowed is 'kv_consumer', 'kv_producer'"),
    ("spec_method", "medusa", "spec_method = 'medusa': allowed is 'ngram', 'eagle', 'draft_model'"),
    ("kv_load_failure_policy", "x", "kv_load_failure_policy = 'x': allowed is 'recompute', 'fail'"),
    ("max_num_seqs", True, "max_num_seqs = True: allowed is a whole number: 1..16"),
    ("num_blocks", 4.5, "num_blocks = 4.5: allowed is a whole number: 2..256"),
    ("num_blocks", "four", "num_blocks = 'four': allowed is a whole number: 2..256"),
    ("watermark", "none", "watermark = 'none': allowed is a number: 0 <= watermark < 1"),
    ("watermark", float("nan"), "watermark = nan: allowed is 0 <= watermark < 1"),
    ("prefix_caching", 1, "prefix_caching = 1: allowed is true or false"),
    ("may_reset", "yes", "may_reset = 'yes': allowed is true or false"),
    ("rules_off", "free_tail_first", "rules_off = 'free_tail_first': allowed is a list, each text"),
    ("rules_off", [1], "rules_off[0] = 1: allowed is text"),
    ("name", 3, "name = 3: allowed is text"),
    ("name", "", "name = '': allowed is a non-empty name"),
    ("name", "a\nb", "name = 'a\\nb': allowed is text in one line"),
    ("name", "\x1b[31mred", "name = '\\x1b[31mred': allowed is text in one line"),
    ("about", "two\nlines", "about = 'two\\nlines': allowed is text in one line"),
    ("requests", 1, "requests = 1: allowed is a list, each a request"),
    ("requests", [1], "requests[0] = 1: allowed is a request"),
    (
        "requests",
        [{"prompt": "ab", "max_tokens": 1}],
        "requests[0].prompt = 'ab': allowed is a list",
    ),
    (
        "requests",
        [{"prompt": [1, 0], "max_tokens": 1}],
        "requests[0].prompt[1] = 0: allowed is 1..249",
    ),
    ("requests", [{"prompt": [True], "max_tokens": 1}], "requests[0].prompt[0] = True: allowed is"),
    ("requests", [{"prompt": [1], "max_tokens": 1.5}], "requests[0].max_tokens = 1.5: allowed is"),
    (
        "requests",
        [{"prompt": [1], "max_tokens": 0}],
        "requests[0].max_tokens = 0: allowed is 1..512",
    ),
    (
        "requests",
        [{"prompt": [1], "max_tokens": 1, "external": {"tokens": 1, "ask_later": 4}}],
        "requests[0].external.ask_later = 4: allowed is 0..3",
    ),
    (
        "requests",
        [{"prompt": [1], "max_tokens": 1, "external": 3}],
        "requests[0].external = 3: allowed is an external prefix",
    ),
]


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_python_refuses_what_toml_refuses_in_the_same_words(
    field: str, value: object, message: str
) -> None:
    from_plain_values = refusal(**{field: value})
    assert from_plain_values.startswith(message)
    assert python_refusal(lambda: Scope(**{**VALID, field: value})) == from_plain_values


def test_a_request_and_an_external_prefix_refuse_by_themselves() -> None:
    made: list[tuple[Callable[[], object], str]] = [
        (lambda: RequestSpec(prompt="ab", max_tokens=1), "prompt = 'ab'"),
        (lambda: RequestSpec((1,), 1, salt=2), "salt = 2: allowed is text"),
        (lambda: RequestSpec((1,), 1, arrival=-1), "arrival = -1: allowed is 0..1000"),
        (lambda: External(tokens=0), "tokens = 0: allowed is 1..512"),
        (lambda: External(tokens=1, once=1), "once = 1: allowed is true"),
    ]
    for make, message in made:
        assert python_refusal(make).startswith(message)


def test_lists_are_taken_as_tuples() -> None:
    scope = Scope(**{**VALID, "requests": [RequestSpec(prompt=[1, 2, 1], max_tokens=2)]})
    assert scope == scope_from_dict(VALID)
    assert hash(scope) == hash(scope_from_dict(VALID))


def test_vllms_own_names_are_taken() -> None:
    ours = {"prefix_caching": False, "reserve_full_isl": False, "policy": "priority"}
    theirs = {
        "enable_prefix_caching": False,
        "scheduler_reserve_full_isl": False,
        "scheduling_policy": "priority",
    }
    assert scope_from_dict({**VALID, **theirs}) == scope_from_dict({**VALID, **ours})
    twice = refusal(prefix_caching=True, enable_prefix_caching=False)
    assert twice.startswith("enable_prefix_caching = False: prefix_caching is given twice")


def test_an_unknown_name_is_refused_with_the_nearest_and_all_there_are() -> None:
    message = refusal(watermak=0.1)
    assert message.startswith("watermak = 0.1: no option of a scope; nearest is watermark; there")
    assert "pipeline_parallel_size" in message
    assert "nearest are enable_prefix_caching" in refusal(enable_prefix_cache=True)
    message = refusal(requests=[{"promt": [1], "max_tokens": 1}])
    assert message.startswith("requests[0].promt = [1]: no option of a request; nearest are")
    assert "nearest" not in refusal(qqqq=1)


def test_what_is_missing_is_named() -> None:
    assert python_refusal(lambda: scope_from_dict({"name": "x", "num_blocks": 3})) == (
        "requests: a scope needs requests, max_num_batched_tokens, max_model_len"
    )
    assert (
        refusal(requests=[{"prompt": [1]}]) == "requests[0].max_tokens: a request needs max_tokens"
    )


@pytest.mark.parametrize("kind", [Scope, RequestSpec, External])
def test_every_field_has_its_entry_and_every_entry_its_values(kind: type[Options]) -> None:
    tables = {Scope: SCOPE_VALUES, RequestSpec: REQUEST_VALUES, External: EXTERNAL_VALUES}
    assert set(options_of(kind)) == set(kind.__struct_fields__) == set(tables[kind])
    for name, option in options_of(kind).items():
        assert option.about
        values = tables[kind][name]
        if values.cut and option.default is not REQUIRED:
            assert option.default in values.cut, name
        for value in (*values.sweep, *values.draw):
            assert checked(option, value) == value


def test_a_field_without_an_entry_is_found() -> None:
    class More(Options, frozen=True):
        known: Annotated[int, Option("known")] = 1
        forgotten: int = 2

    with pytest.raises(TypeError, match=r"More\.forgotten: declared without its one Option"):
        options_of(More)


def test_an_option_that_is_a_parameter_of_its_own_is_set_by_the_rows() -> None:
    rows = list(islice(Cover(PARAMETERS, CONSTRAINTS).rows(), 60))
    for option, values in SCOPE_VALUES.items():
        if values.sweep:
            parameter = values.parameter or option.replace("_", " ")
            assert PARAMETERS[parameter] == values.sweep
            for number, row in enumerate(rows):
                assert getattr(scope_of(number, row), option) == row[parameter]


def printed() -> list[Scope]:
    """Scopes of every kind: named ones, findings', guards', seeds, rows and drawn ones."""
    return [
        *SCOPES.values(),
        *(one.scope for one in (*FINDINGS, *HANGS)),
        *(guard.scope.with_rules_off(guard.rule.name) for guard in GUARDS),
        *(info.seed for info in RULES if info.seed is not None),
        *(scope_of(*one) for one in enumerate(islice(Cover(PARAMETERS, CONSTRAINTS).rows(), 120))),
        *(draw_scope(RandomChooser(k), size) for size in get_args(Size) for k in range(50)),
    ]


def test_a_scope_can_be_rebuilt_from_what_is_printed_of_it() -> None:
    for scope in printed():
        assert scope_from_lines(scope_lines(Trace(scope, ()))) == scope


def test_every_option_that_is_changed_shows_in_what_is_printed() -> None:
    rich = scope_from_dict(
        {**VALID, "kv_role": "kv_both", "v2_model_runner": True, "max_num_batched_tokens": 8}
    )
    seen = set()
    for name, option in options_of(Scope).items():
        for value in _others(option):
            try:
                changed = msgspec.structs.replace(rich, **{name: value})
            except ScopeError:
                continue
            if changed != rich:
                seen.add(name)
                assert scope_from_lines(scope_lines(Trace(changed, ()))) == changed
    assert seen == set(options_of(Scope)) - {"requests"}


def _others(option: Option) -> tuple[Any, ...]:
    if option.choices:
        return option.choices
    if option.name == "mends":
        return (("admit_with_lookahead", "resume_only_whole"),)
    if option.many:
        return (("free_tail_first", "finish_once"), ("look_before_reset",)) * (option.kind is str)
    of_kind: dict[type[Any], tuple[Any, ...]] = {
        bool: (True, False),
        int: (1, 2, 3, 5),
        float: (0.0, 0.3, 1.01 / 7),
        str: ("other: 3 blocks of 2", "v1 [/wip]"),
    }
    return of_kind[option.kind]


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


TOML = (
    "num_blocks = 4\nmax_num_batched_tokens = 4\nmax_model_len = 6\n"
    "[[requests]]\nprompt = [1, 2]\nmax_tokens = 2\n"
)


def test_a_byte_order_mark_is_no_part_of_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TOML, encoding="utf-8-sig")
    assert load_scope(path).num_blocks == 4


def test_what_is_no_file_is_refused_with_its_path_and_what_it_is(tmp_path: Path) -> None:
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    for path, words in (
        (tmp_path, "a folder; a scope is a TOML file"),
        (tmp_path / "none.toml", "no such file"),
        (loop, "symbolic links"),
        (Path("-"), "a scope is read from a file"),
    ):
        message = python_refusal(lambda path=path: load_scope(path))
        assert message.startswith(f"{path}: ")
        assert words in message


def test_a_scope_in_a_trace_is_refused_with_the_file_and_the_place(tmp_path: Path) -> None:
    text = dumps(Trace(scope_from_dict(VALID), ())).decode()
    path = tmp_path / "mine.json"
    for old, new, words in (
        ('"policy": "fcfs"', '"policy": "lifo"', "scope: policy = 'lifo': allowed is 'fcfs'"),
        ('"max_tokens": 2', '"max_tokens": 0', "scope: requests[0].max_tokens = 0: allowed is 1.."),
        ('"alphabet"', '"alfabet"', "scope: alfabet = 2: no option of a scope; nearest is"),
    ):
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        with pytest.raises(TraceError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: {words}")


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


def test_the_template_is_a_scope_and_each_of_its_comments_an_option() -> None:
    text = template()
    scope = scope_from_dict(tomllib.loads(text))
    assert scope == SCOPES["two-equal"]
    seen = {"requests"}
    table = options_of(Scope)
    for line in text.splitlines():
        if line == "[[requests]]":
            table = options_of(RequestSpec)
        setting = line.removeprefix("# ")
        name = setting.partition(" = ")[0]
        if name in table and " = " in setting:
            option = table[name]
            seen.add(name)
            checked(option, tomllib.loads(setting)[name])
            assert line.startswith("# ") == (setting not in text.splitlines())
    assert seen == set(options_of(Scope)) | set(options_of(RequestSpec))


def test_vllms_own_names_are_names_of_vllm() -> None:
    python = environment.find()
    if python is None:
        pytest.skip("the real vLLM is not here: `make vllm` builds its environment")
    (package,) = python.parent.parent.glob("lib/python3*/site-packages/vllm")
    known = set()
    for name in ("engine/arg_utils.py", "config/vllm.py", "v1/request.py"):
        for node in ast.walk(ast.parse((package / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                known.add(node.target.id)
            elif isinstance(node, ast.arg):
                known.add(node.arg)
            elif isinstance(node, ast.FunctionDef):
                known.add(node.name)
    named = [o.vllm for kind in (Scope, RequestSpec) for o in options_of(kind).values() if o.vllm]
    assert len(named) == 10
    assert set(named) <= known


def test_a_name_is_printed_as_it_is_whatever_brackets_it_has(tmp_path: Path) -> None:
    for name in ("v1 [/wip]", "my [scope]", "[bold]", "ends in \\\\"):
        path = tmp_path / "mine.TOML"
        path.write_text(f"name = '{name}'\n{TOML}", encoding="utf-8")
        done = kvproof("check", str(path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{name}: holds")
