"""A scope from the lines that are printed of it, to see that they leave nothing out."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

from kvproof.model.options import Option, Options, options_of
from kvproof.model.scope import External, RequestSpec, Scope, scope_from_dict

_HEAD = re.compile(
    r"scope (?P<name>.*): (?P<blocks>\d+) blocks of (?P<block_size>\d+), budget (?P<budget>\d+)"
    r"(?: of (?P<batched>\d+))?, at most (?P<max_num_seqs>\d+) running, "
    r"model length (?P<max_model_len>\d+), (?P<policy>\w+), depth \d+"
    r"(?:, (?P<num_speculative_tokens>\d+) drafts)?(?:, (?P<kv_role>kv_\w+))?"
)
_REQUEST = re.compile(
    r"  R\d+: prompt (?P<prompt>\[.*?\]), at most (?P<max_tokens>\d+) tokens(?P<more>.*)"
)
_EXTERNAL = re.compile(r", (?P<tokens>\d+) tokens external(?: \((?P<more>.*)\))?$")


def value_of(option: Option, words: str) -> Any:
    """The value whose words these are, None where they speak of another option."""
    if option.kind is bool:
        return (not option.default) if words == option.words(not option.default) else None
    before, _, after = option.words("\0").replace("'\\x00'", "\0").partition("\0")
    if not words.startswith(before) or not words.endswith(after) or not before + after:
        return None
    text = words.removeprefix(before).removesuffix(after)
    return text if option.choices else literal_eval(text)


def values_of(kind: type[Options], words: list[str]) -> dict[str, Any]:
    """Values by name from the words of options."""
    values = {}
    for one in words:
        spoken_of = {
            name: value
            for name, option in options_of(kind).items()
            if (value := value_of(option, one)) is not None
        }
        assert len(spoken_of) == 1, (one, spoken_of)
        values |= spoken_of
    return values


def listed(text: str) -> list[str]:
    """The words between commas, of which a salt in quotes may have some itself."""
    return re.findall(r"(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^,'\"])+", text.strip(", "))


def scope_from_lines(lines: list[str]) -> Scope:
    """The scope that lines of kvproof.trace.render.scope_lines are of."""
    head = _HEAD.fullmatch(lines[0])
    assert head, lines[0]
    values: dict[str, Any] = {name: value for name, value in head.groupdict().items() if value}
    values = {n: int(v) if v.isdigit() and n != "name" else v for n, v in values.items()}
    values["num_blocks"] = values.pop("blocks") + 1
    budget, batched = values.pop("budget"), values.pop("batched", None)
    values["max_num_batched_tokens"] = budget if batched is None else batched
    if batched is not None:
        values["max_num_scheduled_tokens"] = budget
    requests = []
    for line in lines[1:]:
        name, _, rest = line.partition(": ")
        if name == "  about":
            values["about"] = rest
        elif name == "  options":
            values |= values_of(Scope, rest.split(", "))
        elif name == "rules off":
            values["rules_off"] = [] if rest == "none" else rest.split(", ")
        elif name == "mends":
            values["mends"] = rest.split(", ")
        else:
            requests.append(_request(line))
    return scope_from_dict({**values, "requests": requests})


def _request(line: str) -> dict[str, Any]:
    found = _REQUEST.fullmatch(line)
    assert found, line
    more = found["more"]
    values: dict[str, Any] = {
        "prompt": literal_eval(found["prompt"]),
        "max_tokens": int(found["max_tokens"]),
    }
    external = _EXTERNAL.search(more)
    if external:
        more = more[: external.start()]
        words = external["more"].split(", ") if external["more"] else []
        values["external"] = {
            "tokens": int(external["tokens"]),
            **values_of(External, words),
        }
    words = [word.strip() for word in listed(more)] if more else []
    return values | values_of(RequestSpec, words)
