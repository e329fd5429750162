"""The reference of a scope's options, from their table: a template in TOML, and a page of docs/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kvproof.model.options import REQUIRED, Option, Options, options_of
from kvproof.model.scope import External, RequestSpec, Scope
from kvproof.scopes.named import SCOPES

_EXAMPLE = SCOPES["two-equal"]
_TITLES: dict[type[Options], str] = {
    Scope: "A scope",
    RequestSpec: "A request",
    External: "An external prefix",
}


def template() -> str:
    """A scope in TOML that can be checked as it is, with every other option in a comment."""
    lines = [
        "# A scope: a few requests and the engine's configuration. An option that is commented out",
        "# is at its default or left out. vLLM's own name, where it differs, is taken too.",
        "",
        *_explained(_EXAMPLE),
    ]
    first, *others = _EXAMPLE.requests
    lines += ["[[requests]]", *_explained(first)]
    for request in others:
        lines += ["[[requests]]", *(line for line in _explained(request) if line[:1].isalpha()), ""]
    return "\n".join(lines).rstrip() + "\n"


def page() -> str:
    """docs/scopes.md without its first line: every option, and the template."""
    lines = [
        "# Scopes\n",
        "What a scope is made of, in TOML or in Python. vLLM's own name is taken too where it "
        "differs from ours. What vLLM refuses at start-up is refused here as well, with the "
        'option, its value and what is allowed. A default that is "none" stands for an option '
        "that is left out.\n",
    ]
    for kind, title in _TITLES.items():
        lines += [
            f"## {title}\n",
            "| option | what it is | allowed | default | vLLM's name |",
            "|---|---|---|---|---|",
            *(_row(option) for option in options_of(kind).values()),
            "",
        ]
    return "\n".join([*lines, "## A template\n", "```toml", template().rstrip(), "```", ""])


def _row(option: Option) -> str:
    vllm = f"`{option.vllm}`" if option.vllm else ""
    cells = (f"`{option.name}`", option.about, _allowed(option), _default(option), vllm)
    return f"| {' | '.join(cells)} |"


def _default(option: Option) -> str:
    if option.default is REQUIRED:
        return "required"
    return "none" if option.default is None else f"`{_toml(option.default)}`"


def _allowed(option: Option) -> str:
    return option.allowed() if option.many else option.range() or option.allowed()


def _explained(options: Options) -> Iterator[str]:
    """An option with what it is above it; a comment where it is at its default."""
    for option in options_of(type(options)).values():
        if option.name == "requests":
            continue
        value = getattr(options, option.name)
        vllm = f"; vLLM's {option.vllm}" if option.vllm else ""
        yield f"# {option.about}: {_allowed(option)}{vllm}"
        if value == option.default:
            yield f"# {option.name} = {_toml(_example(option) if value is None else value)}"
        else:
            yield f"{option.name} = {_toml(value)}"
        yield ""


def _example(option: Option) -> Any:
    """A value of an option that may be left out."""
    if option.choices:
        return option.choices[0]
    if option.kind is External:
        return External(tokens=1)
    return "a" if option.kind is str else option.low


def _toml(value: Any) -> str:
    if isinstance(value, Options):
        given = ((name, getattr(value, name)) for name in options_of(type(value)))
        return f"{{ {', '.join(f'{name} = {_toml(v)}' for name, v in given)} }}"
    return json.dumps(value)
