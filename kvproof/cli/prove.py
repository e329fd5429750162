"""`kvproof prove`: what it runs and what it prints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kvproof.cli.files import check_page
from kvproof.errors import KvproofError
from kvproof.model.rules import Rule
from kvproof.proof.configurations import configurations, find_configuration
from kvproof.proof.induction import Proof
from kvproof.proof.page import proofs_page
from kvproof.proof.proofs import THEOREMS, prove_theorem, prove_without
from kvproof.proof.report import configuration_lines, explain, summary
from kvproof.proof.tie.compare import Comparison, compare_scope
from kvproof.scopes.named import SCOPES

EXIT_CODES = {"holds": 0, "fails": 1, "unknown": 3}


class UnknownName(KvproofError, ValueError):
    """No proof, or no rule, has this name."""


@dataclass(frozen=True)
class ProveOptions:
    """The arguments of the command."""

    name: str | None
    rule_off: str | None
    seconds: float
    tie: bool
    configuration: str | None
    page: Path | None
    as_json: bool


def run_prove(options: ProveOptions, show: Callable[[str], None]) -> int:
    """Run the command; returns its exit code."""
    if not 0 < options.seconds < math.inf:
        raise UnknownName(f"--seconds = {options.seconds}: allowed is more than 0")
    check_page("--page", options.page)
    if options.configuration is not None and options.rule_off is not None:
        raise UnknownName(f"--rule-off = {options.rule_off}: not with --configuration")
    if options.page is not None:
        options.page.write_text(proofs_page(), encoding="utf-8")
        return 0
    if options.configuration is not None:
        return _configuration(_rule(options.configuration), options.seconds, show)
    if options.tie:
        return _tie(show)
    return _proofs(options, show)


def _rule(name: str) -> Rule:
    if name not in Rule.__members__:
        raise UnknownName(f"no rule is named {name!r}; `kvproof rules` lists them")
    return Rule[name]


def _proofs(options: ProveOptions, show: Callable[[str], None]) -> int:
    if options.name is not None and options.name not in THEOREMS:
        raise UnknownName(f"no proof is named {options.name!r}: {', '.join(THEOREMS)}")
    rule = None if options.rule_off is None else _rule(options.rule_off)
    done = []
    for name in THEOREMS if options.name is None else (options.name,):
        if rule is None:
            proof = prove_theorem(name, seconds=options.seconds)
        else:
            proof = prove_without(name, rule, seconds=options.seconds)
        done.append(proof)
        if not options.as_json:
            show(summary(proof))
            if proof.failure is not None:
                off = frozenset() if rule is None else frozenset({rule})
                show(explain(proof.failure, THEOREMS[name].small(off)))
    if options.as_json:
        show(json.dumps([_as_json(proof) for proof in done], indent=1))
    elif rule is None:
        show(f"{sum(proof.seconds for proof in done):.1f} s in all")
    return _exit_code(proof.outcome for proof in done)


def _as_json(proof: Proof) -> dict[str, object]:
    return asdict(proof)


def _exit_code(outcomes: Iterable[str]) -> int:
    seen = set(outcomes)
    for outcome in ("fails", "unknown"):
        if outcome in seen:
            return EXIT_CODES[outcome]
    return EXIT_CODES["holds"]


def _configuration(rule: Rule, seconds: float, show: Callable[[str], None]) -> int:
    found = find_configuration(rule, seconds=seconds)
    if found is None:
        show(f"Z3 finds no configuration in which {rule.name} is missed")
        return EXIT_CODES["holds"]
    show(f"without {rule.name}:")
    for line in configuration_lines(found, configurations(frozenset({rule}))):
        show(line)
    return EXIT_CODES["fails"]


def _tie(show: Callable[[str], None]) -> int:
    done = []
    for scope in SCOPES.values():
        one = compare_scope(scope)
        done.append(one)
        show(tie_line(one))
        for disagreement in one.disagreements:
            show(f"  {disagreement}")
    total = sum(one.transitions for one in done)
    show(f"{total:,} transitions, {sum(one.samples for one in done):,} operations")
    return int(not all(one.agrees for one in done))


def tie_line(one: Comparison) -> str:
    """One line on the comparison of a scope."""
    return (
        f"{one.scope:<15} {one.transitions:>6,} transitions{' (all)' if one.whole else ''}, "
        f"{one.samples:,} operations, {sum(one.operations.values()):,} of them distinct: "
        f"{len(one.disagreements)} fields disagree"
    )
