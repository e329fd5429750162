"""The modules that are made from the tables of spec/: numbers of rules and of mends, numbers and
masks of invariants.

The tables name their entries by text, so that an entry comes first and its number after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvproof.spec.efficiency import EFFICIENCY, EfficiencyProperty
from kvproof.spec.invariants import INVARIANTS, Invariant
from kvproof.spec.mends import MENDS
from kvproof.spec.rules import RULES
from kvproof.trace.files import write_bytes

_WIDTH = 100
# Put together here: a module with this text would be taken for one that has kernels.
_KERNEL = "@" + "kernel"


def rules_module() -> str:
    """model/rules.py."""
    members = "\n".join(f"    {info.name} = {number}" for number, info in enumerate(RULES))
    return f'''"""Numbers of the rules: the guards that vLLM has, on unless a scope switches it off.

Made by `kvproof docs` from the table in spec/rules.py, which says what each requires.
"""

from __future__ import annotations

from enum import IntEnum


class Rule(IntEnum):
    """One guard of vLLM; the value is its place in the compiled scope's `rules`."""

{members}
'''


def mends_module() -> str:
    """model/mends.py."""
    members = "\n".join(f"    {info.name} = {number}" for number, info in enumerate(MENDS))
    return f'''"""Numbers of the mends: changes that vLLM lacks, off unless a scope switches one on.

Made by `kvproof docs` from the table in spec/mends.py, which says what each changes.
"""

from __future__ import annotations

from enum import IntEnum


class Mend(IntEnum):
    """One change of vLLM; the value is its place in the compiled scope's `mends`."""

{members}
'''


def masks_module() -> str:
    """spec/masks.py."""
    members = "\n".join(f"    {one.name} = {number}" for number, one in enumerate(INVARIANTS))
    wishes = "\n".join(f"    {one.name} = {number}" for number, one in enumerate(EFFICIENCY))
    return f'''"""The invariants by number, and all of them asked at once of a state and of a step.

Made by `kvproof docs` from the table in spec/invariants.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kvproof.model import engine
from kvproof.native.jit import kernel
from kvproof.native.record import Record
from kvproof.spec import efficiency_steps, state_invariants, step_invariants
from kvproof.spec.verdicts import BROKEN, VACUOUS, WORKSPACE


class Id(IntEnum):
    """The invariants by name; the value is the invariant's bit in a mask of broken ones."""

{members}


class Efficiency(IntEnum):
    """The efficiency properties by name; the value is the property's bit in a mask."""

{wishes}


def new_workspace(sizes: Mapping[str, int]) -> Record:
    """A workspace for states with these sizes, in which nothing has been put to the test."""
    return WORKSPACE.layout({{**sizes, "I": len(Id)}}).new()


{_KERNEL}
def _note(w, which, verdict):
    """Count the test and give the invariant's bit if it is broken."""
    if verdict != VACUOUS:
        w.tested[which] += 1
    return (1 << which) if verdict == BROKEN else 0


{_KERNEL}
def check_state(s, c, w):
    """Mask of the state invariants that the state breaks; bit i is Id(i)."""
    broken = 0
{_asked("state", "(s, c, w)")}
    return broken


{_KERNEL}
def check_step(before, s, c, e, w, action):
    """Mask of the step invariants that an action breaks; bit i is Id(i)."""
    kind = engine.kind_of(action)
    broken = 0
{_asked("step", "(before, s, c, e, kind)")}
    return broken


{_KERNEL}
def _count(tested, which, verdict):
    """Count the test and give the property's bit if the step misses it."""
    if verdict != VACUOUS:
        tested[which] += 1
    return (1 << which) if verdict == BROKEN else 0


{_KERNEL}
def check_efficiency(before, s, c, e, action, tested):
    """Mask of the efficiency properties that an action misses; bit i is Efficiency(i)."""
    kind = engine.kind_of(action)
    missed = 0
{_wished("(before, s, c, e, kind)")}
    return missed
'''


def _asked(kind: str, arguments: str) -> str:
    return "\n".join(
        line for one in INVARIANTS if one.kind == kind for line in _question(one, arguments)
    )


def _wished(arguments: str) -> str:
    return "\n".join(line for one in EFFICIENCY for line in _wish(one, arguments))


def _wish(one: EfficiencyProperty, given: str) -> Iterator[str]:
    number, call = f"Efficiency.{one.name}", f"efficiency_steps.{one.kernel_name}{given}"
    arguments = f"        tested, {number}, {call}"
    line = f"    missed |= _count({arguments.lstrip()})"
    if len(line) <= _WIDTH:
        yield line
    elif len(arguments) <= _WIDTH:
        yield from ("    missed |= _count(", arguments, "    )")
    else:
        lines = (f"        {part}," for part in ("tested", number, call))
        yield from ("    missed |= _count(", *lines, "    )")


def _question(one: Invariant, arguments: str) -> Iterator[str]:
    """A call in the formatter's layout."""
    number, call = f"Id.{one.name}", f"{one.kind}_invariants.{one.kernel_name}{arguments}"
    line = f"    broken |= _note(w, {number}, {call})"
    if len(line) <= _WIDTH:
        yield line
    else:
        yield from ("    broken |= _note(", f"        w, {number}, {call}", "    )")


def write_modules(root: Path) -> list[Path]:
    """Write the modules that are not as the tables have them; returns their paths."""
    written = []
    for name, module in (
        ("model/rules.py", rules_module),
        ("model/mends.py", mends_module),
        ("spec/masks.py", masks_module),
    ):
        path = root / name
        if path.read_text(encoding="utf-8") != module():
            write_bytes(path, module().encode())
            written.append(path)
    return written
