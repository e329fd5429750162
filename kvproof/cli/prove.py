"""`kvproof prove`: invariants for all sizes, with Z3."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Annotated

import typer

from kvproof.cli.arguments import UsageError
from kvproof.cli.console import Json, out, print_json
from kvproof.cli.outcomes import exit_code
from kvproof.model.rules import Rule
from kvproof.proof.proofs import SECONDS, THEOREMS, prove_theorem, prove_without
from kvproof.proof.report import explain

Seconds = Annotated[float, typer.Option(help="Time limit of each proof.")]

EXAMPLES = """
kvproof prove
kvproof prove fence --rule-off fence_at_last_scheduled_step
"""


def check_seconds(seconds: float) -> None:
    """UsageError for a time limit that is none."""
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds = {seconds}: allowed is more than 0")


def find_rule(name: str) -> Rule:
    """The rule of this name; UsageError where there is none."""
    if name not in Rule.__members__:
        raise UsageError(f"no rule is named {name!r}; `kvproof rules` lists them")
    return Rule[name]


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One proof; all by default.")
    ] = None,
    rule_off: Annotated[str | None, typer.Option(help="Try it without a rule.")] = None,
    seconds: Seconds = SECONDS,
    as_json: Json = False,
) -> None:
    """Prove invariants for all sizes with Z3: 0 all hold, 1 one fails, 3 one is unknown."""
    check_seconds(seconds)
    if name is not None and name not in THEOREMS:
        raise UsageError(f"no proof is named {name!r}: {', '.join(THEOREMS)}")
    rule = None if rule_off is None else find_rule(rule_off)
    done = []
    interrupted = False
    try:
        for one in THEOREMS if name is None else (name,):
            if rule is None:
                proof = prove_theorem(one, seconds=seconds)
            else:
                proof = prove_without(one, rule, seconds=seconds)
            done.append(proof)
            if as_json:
                continue
            out.print(str(proof))
            if proof.failure is not None:
                off = frozenset() if rule is None else frozenset({rule})
                out.print(explain(proof.failure, THEOREMS[one].small(off)))
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_json("prove", [asdict(proof) for proof in done])
    elif rule is None:
        out.print(f"{sum(proof.seconds for proof in done):.1f} s in all")
    raise typer.Exit(exit_code((proof.outcome for proof in done), interrupted=interrupted))
