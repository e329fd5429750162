"""Options: what each field of a scope may be, and its words, read off where it is declared.

A field is declared once, as `name: Annotated[type, Option(...)] = default`. The same entry checks
its values, whether they come from Python, TOML or a trace, finds it under vLLM's name, and has what
is printed of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from kvproof.errors import KvproofError

REQUIRED = msgspec.NODEFAULT

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LONGEST_VALUE = 100


class ScopeError(KvproofError, ValueError):
    """A scope that makes no sense: names the field, the value and what is allowed."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of options, each with its entry; refuses what an entry does not allow."""

    WHAT: ClassVar[str] = "a set of options"

    def __post_init__(self) -> None:
        for option in options_of(type(self)).values():
            value = getattr(self, option.name)
            taken = checked(option, value)
            if taken is not value:
                msgspec.structs.force_setattr(self, option.name, taken)


_Set = TypeVar("_Set", bound=Options)


@dataclass(frozen=True)
class Option:
    """One option; its declaration gives the first part, the field's type and default the rest.

    `low` and `high` bound a number (`high` itself is allowed in whole numbers only) or each item of
    a list, `why` says where they come from. `vllm` is vLLM's own name where that differs. `says` is
    printed for a value that is not the default, with {} for the value; without it, the name. The
    driver of the real classes is told the option unless `driver` is false.
    """

    about: str
    low: float | None = None
    high: float | None = None
    why: str = ""
    vllm: str = ""
    says: str = ""
    driver: bool = True
    name: str = ""
    kind: type[Any] = NoneType
    many: bool = False
    choices: tuple[str, ...] = ()
    optional: bool = False
    default: Any = REQUIRED

    def range(self) -> str:
        """The numbers that are allowed; empty where all are."""
        if self.low is None:
            return ""
        if self.kind is float:
            return f"{self.low:g} <= {self.name} < {self.high:g}"
        return f"{self.low}..{self.high}" + (f" ({self.why})" if self.why else "")

    def allowed(self) -> str:
        """What the option may be, for people."""
        if self.choices:
            return ", ".join(map(repr, self.choices))
        one = self.kind.WHAT if issubclass(self.kind, Options) else _KINDS[self.kind]
        if self.many:
            one = f"a list, each {one}"
        return f"{one}: {self.range()}" if self.range() else one

    def words(self, value: Any) -> str:
        """What is printed of a value that is not the default."""
        if self.says:
            return self.says.format(value)
        if self.kind is bool:
            return self.name if value else f"no {self.name}"
        return f"{self.name} {value}"


@cache
def options_of(kind: type[Options]) -> dict[str, Option]:
    """The entries of a set of options by name; TypeError where a field has none."""
    hints = get_type_hints(kind, include_extras=True)
    entries = {}
    for field in msgspec.structs.fields(kind):
        declared, *extras = get_args(hints[field.name]) or (hints[field.name],)
        given = [extra for extra in extras if isinstance(extra, Option)]
        if len(given) != 1:
            raise TypeError(f"{kind.__name__}.{field.name}: declared without its one Option")
        parts = [part for part in get_args(declared) if part is not NoneType]
        optional = NoneType in get_args(declared)
        inner = parts[0] if optional else declared
        many = get_origin(inner) is tuple
        item = get_args(inner)[0] if many else inner
        choices = get_args(item) if get_origin(item) is Literal else ()
        entries[field.name] = replace(
            given[0],
            name=field.name,
            kind=str if choices else item,
            many=many,
            choices=choices,
            optional=optional,
            default=field.default,
        )
    return entries


def refuse(field: str, value: object, allowed: str) -> NoReturn:
    """Raise ScopeError with a field, its value, and what is allowed."""
    shown = repr(value)
    if len(shown) > _LONGEST_VALUE:
        shown = f"{shown[:_LONGEST_VALUE]}..."
    raise ScopeError(f"{field} = {shown}: allowed is {allowed}")


def checked(option: Option, value: Any) -> Any:
    """The value as the option keeps it (a list as a tuple); ScopeError where it is not allowed."""
    if value is None and option.optional:
        return None
    if not option.many:
        return _checked_one(option, option.name, value)
    if not isinstance(value, (tuple, list)):
        refuse(option.name, value, option.allowed())
    taken = tuple(_checked_one(option, f"{option.name}[{i}]", v) for i, v in enumerate(value))
    return value if taken == value else taken


def _checked_one(option: Option, name: str, value: Any) -> Any:
    if option.choices:
        if type(value) is not str or value not in option.choices:
            refuse(name, value, option.allowed())
        return value
    if issubclass(option.kind, Options):
        if isinstance(value, Mapping):
            return _made_at(name, option.kind, value)
        if not isinstance(value, option.kind):
            refuse(name, value, option.kind.WHAT)
        return value
    if option.kind is float and type(value) is int:
        value = float(value)
    if type(value) is not option.kind:
        bounds = option.range()
        refuse(name, value, _KINDS[option.kind] + (f": {bounds}" if bounds else ""))
    if option.kind is str and not value.isprintable():
        refuse(name, value, "text in one line, without control characters")
    if option.low is not None and option.high is not None:
        inside = option.low <= value <= option.high
        if not inside or (option.kind is float and value == option.high):
            refuse(name, value, option.range())
    return value


def _made_at(place: str, kind: type[Options], values: Mapping[str, Any]) -> Options:
    try:
        return made(kind, values)
    except ScopeError as error:
        raise ScopeError(f"{place}.{error}") from None


def made(kind: type[_Set], values: Mapping[str, Any]) -> _Set:
    """The options from plain values by name, ours or vLLM's; ScopeError as for Python's."""
    options = options_of(kind)
    names = {option.vllm: option.name for option in options.values() if option.vllm}
    taken: dict[str, Any] = {}
    for given, value in values.items():
        name = names.get(given, given)
        if name not in options:
            _refuse_name(kind, given, value, (*options, *names))
        if name in taken:
            raise ScopeError(f"{given} = {value!r}: {name} is given twice, by vLLM's name too")
        taken[name] = checked(options[name], value)
    missing = [o.name for o in options.values() if o.default is REQUIRED and o.name not in taken]
    if missing:
        raise ScopeError(f"{missing[0]}: {kind.WHAT} needs {', '.join(missing)}")
    return kind(**taken)


def _refuse_name(
    kind: type[Options], given: object, value: object, known: Iterable[str]
) -> NoReturn:
    near = get_close_matches(str(given), known, n=3)
    hint = f"nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}; " if near else ""
    raise ScopeError(
        f"{given} = {value!r}: no option of {kind.WHAT}; {hint}"
        f"there are {', '.join(options_of(kind))}"
    )


def told(
    options: Options, *, besides: Collection[str] = (), only: Collection[str] = ()
) -> list[str]:
    """The words of every option that is not at its default, in the order of their declaration."""
    entries = options_of(type(options))
    names = only or [name for name in entries if name not in besides]
    return [
        entries[name].words(getattr(options, name))
        for name in names
        if getattr(options, name) != entries[name].default
    ]


def driver_values(options: Options) -> dict[str, Any]:
    """The plain values of what the driver of the real classes is told."""
    return {
        option.name: _plain(getattr(options, option.name))
        for option in options_of(type(options)).values()
        if option.driver
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Options):
        return driver_values(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
