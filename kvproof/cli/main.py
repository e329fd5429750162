"""The command line."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvproof import __version__
from kvproof.check.check import Check, Limits, check, exit_code
from kvproof.check.check_progress import ProgressCheck, check_progress
from kvproof.check.dot import dot
from kvproof.check.known import explanation
from kvproof.check.minimize import Progress as Minimising
from kvproof.check.minimize import minimize, with_rules_on
from kvproof.cli.console import Force, Json, err, out, say_of, telling_of_compilation
from kvproof.cli.files import check_output, check_page
from kvproof.cli.prove import ProveOptions, run_prove
from kvproof.cli.simulate import app as simulate_app
from kvproof.errors import KvproofError
from kvproof.evidence.counterexamples import FOLDER as COUNTEREXAMPLES
from kvproof.evidence.counterexamples import write, write_pages
from kvproof.evidence.finding_pages import write_findings
from kvproof.evidence.hang_pages import write_hangs
from kvproof.evidence.matrix import matrix, page, table
from kvproof.evidence.pages import PAGES, write_docs
from kvproof.lockstep.client import Client
from kvproof.lockstep.environment import DEFAULT_VERSION
from kvproof.lockstep.export import export_test
from kvproof.lockstep.follow import MOST_REQUESTS, Difference, On, opener
from kvproof.lockstep.lockstep import lockstep_scope
from kvproof.lockstep.loops import go_round
from kvproof.lockstep.vllm_replay import Replay, replay_on_vllm
from kvproof.model.scope import MAX_REQUESTS, Scope, load_scope
from kvproof.proof.proofs import SECONDS
from kvproof.scopes.draw import Size
from kvproof.scopes.named import LOCKSTEP, SCOPES
from kvproof.search.explore import Progress
from kvproof.spec.findings import FINDINGS
from kvproof.spec.invariants import INVARIANTS
from kvproof.spec.masks import Id
from kvproof.spec.rules import RULES
from kvproof.sweep.progress_report import as_json as progress_as_json
from kvproof.sweep.progress_report import (
    headline,
    progress_sweep_page,
    sweep_as_json,
    sweep_summary,
)
from kvproof.sweep.progress_sweep import explanation as progress_explanation
from kvproof.sweep.progress_sweep import progress_sweep
from kvproof.sweep.sweep import FULL, QUICK, minimal, summary_page, sweep
from kvproof.trace.itf import itf
from kvproof.trace.lasso import Lasso, is_lasso, load_lasso, render_lasso, save_lasso
from kvproof.trace.mermaid import mermaid
from kvproof.trace.render import render
from kvproof.trace.trace import Trace, load, passed_over, replay, save
from kvproof.walks.runs import random_runs
from kvproof.walks.worlds import Violation
from kvproof.workload.clock import Broken

USAGE = 2

_Searched = TypeVar("_Searched", Check, ProgressCheck)

app = typer.Typer(
    help="A model checker for the vLLM v1 scheduler and its paged KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(simulate_app, name="simulate")


class UsageError(KvproofError):
    """A mistake in the command's arguments; ends with exit code 2."""


def find_scope(name: str) -> Scope:
    """A named scope, or one from a TOML file."""
    if name in SCOPES:
        return SCOPES[name]
    if name == "-" or name.lower().endswith(".toml"):
        return load_scope(Path(name))
    raise UsageError(
        f"no scope is named {name!r}; `kvproof scopes` lists them, a file ends in .toml"
    )


@contextmanager
def _progress_line(name: str) -> Iterator[Any]:
    """Show a search's progress on stderr while it runs; nothing where stderr is no terminal."""
    if not err.is_terminal:
        yield None
        return
    with Live(console=err, transient=True, refresh_per_second=10) as live:

        def show(p: Progress) -> None:
            live.update(
                Text(
                    f"{name}: {p.states:,} states, depth {p.depth} ({p.level_done:.0%}), "
                    f"frontier {p.frontier:,}, {p.states_per_second:,.0f} states/s, "
                    f"{p.memory / 1e6:,.0f} MB"
                )
            )

        yield show


def _searched(scopes: list[Scope], search: Callable[..., _Searched]) -> Iterator[_Searched]:
    """Search scopes one by one, until one is interrupted; shows the progress of each."""
    with telling_of_compilation():
        for scope in scopes:
            with _progress_line(scope.name) as show:
                one = search(scope, progress=show)
            yield one
            if one.result.reason == "interrupted":
                break


@contextmanager
def _status_line() -> Iterator[Any]:
    """Show how much is done on stderr while it is being done; nothing where it is no terminal."""
    if not err.is_terminal:
        yield None
        return
    with Live(console=err, transient=True, refresh_per_second=10) as live:
        yield lambda done, total, what="": live.update(
            Text(f"{done:,} of {total:,} ({done / total:.0%}) {what}")
        )


def _as_json(done: Check) -> dict[str, Any]:
    result = done.result
    trace = done.trace
    return {
        "scope": done.scope.name,
        "rules_off": list(done.scope.rules_off),
        "outcome": result.outcome,
        "reason": result.reason,
        "states": result.states,
        "transitions": result.transitions,
        "depth": result.depth,
        "covered_depth": result.covered_depth,
        "dead_ends": result.dead_ends,
        "seconds": round(result.seconds, 3),
        "bytes_per_state": round(result.bytes_per_state, 1),
        "collision_probability": result.collision_probability,
        "broken": list(result.violation.invariants) if result.violation else [],
        "trace": None if trace is None else msgspec.to_builtins(trace),
        "coverage": {
            "actions": dict(done.actions),
            "branches": dict(done.branches),
            "invariants": dict(done.tested),
        },
    }


def _print_check(done: Check, coverage: bool) -> None:
    result = done.result
    colour = {"holds": "green", "violated": "red", "bounded": "yellow"}[result.outcome]
    reason = f" ({result.reason})" if result.reason else ""
    say_of(
        done.scope.name,
        f"[{colour}]{result.outcome}[/{colour}]{reason}  "
        f"{result.states:,} states, {result.transitions:,} transitions, depth {result.depth}, "
        f"{result.seconds:.2f} s, {result.states_per_second:,.0f} states/s, "
        f"{result.bytes_per_state:.0f} bytes a state",
    )
    out.print(
        f"  chance that a fingerprint collision hid a state: {result.collision_probability:.1e}"
    )
    if result.outcome == "bounded":
        out.print(f"  every run of at most {result.covered_depth} actions was checked")
    if done.untested and result.outcome != "violated":
        err.print(f"  [yellow]never put to the test here: {', '.join(done.untested)}[/yellow]")
    if coverage:
        _print_coverage(done)
    trace = done.trace
    if trace is not None:
        out.print(f"  broken: {', '.join(trace.broken)}, after {len(trace.actions)} actions\n")
        out.print(render(trace), markup=False)


def _print_coverage(done: Check) -> None:
    for title, counts in (
        ("action", done.actions),
        ("branch", done.branches),
        ("invariant", done.tested),
    ):
        table = Table(title, "times", box=None, pad_edge=False)
        for name, times in counts.items():
            table.add_row(name, f"{times:,}" if times else "[yellow]never[/yellow]")
        out.print(table)


@app.command(name="check")
def check_command(
    scopes: Annotated[list[str] | None, typer.Argument(help="Names or .toml files.")] = None,
    max_states: Annotated[int | None, typer.Option(help="Stop after this many states.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Stop after this long.")] = None,
    max_memory: Annotated[int | None, typer.Option(help="Stop at this many megabytes.")] = None,
    rule_off: Annotated[list[str] | None, typer.Option(help="Switch a rule off.")] = None,
    rename: Annotated[bool, typer.Option(help="Rename blocks canonically.")] = True,
    coverage: Annotated[bool, typer.Option(help="List what was exercised.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the counterexample here.")] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Look for runs that never get anywhere instead.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Search scopes exhaustively (all named ones by default)."""
    for option, value in (
        ("--max-states", max_states),
        ("--max-seconds", max_seconds),
        ("--max-memory", max_memory),
    ):
        if value is not None and not value > 0:
            raise UsageError(f"{option} = {value}: allowed is more than 0")
    check_output("--trace", trace, force=force)
    chosen = [find_scope(name).with_rules_off(*rule_off or ()) for name in scopes or SCOPES]
    memory = None if max_memory is None else max_memory * 1_000_000
    limits = Limits(max_states, memory, max_seconds)
    if progress:
        if coverage:
            raise UsageError("--coverage = True: not with --progress, which has its own figures")
        _check_progress(chosen, limits, rename, trace, as_json)
    done = []
    for one in _searched(chosen, partial(check, limits=limits, rename=rename)):
        done.append(one)
        if not as_json:
            _print_check(one, coverage)
        if one.trace is not None and trace is not None:
            save(one.trace, trace, force=force)
            trace = None
    if as_json:
        print(json.dumps([_as_json(one) for one in done], indent=1))
    raise typer.Exit(exit_code(one.result.outcome for one in done))


def _check_progress(
    scopes: list[Scope], limits: Limits, rename: bool, to: Path | None, as_json: bool
) -> NoReturn:
    done = []
    for one in _searched(scopes, partial(check_progress, limits=limits, rename=rename)):
        done.append(one)
        if not as_json:
            say_of(one.scope.name, headline(one))
            for found in one.lassos:
                out.print(f"\n{render_lasso(found)}", markup=False)
        if one.lassos and to is not None:
            save_lasso(one.lassos[0], to)
            to = None
    if as_json:
        print(json.dumps([progress_as_json(one) for one in done], indent=1))
    raise typer.Exit(exit_code(one.outcome for one in done))


@app.command(name="scopes")
def scopes_command(as_json: Json = False) -> None:
    """List the named scopes."""
    if as_json:
        print(json.dumps([msgspec.to_builtins(scope) for scope in SCOPES.values()], indent=1))
        return
    table = Table("scope", "requests", "blocks", "about", box=None, pad_edge=False)
    for scope in SCOPES.values():
        table.add_row(
            scope.name,
            str(len(scope.requests)),
            f"{scope.num_blocks - 1} x {scope.block_size}",
            scope.about,
        )
    out.print(table)


@app.command(name="invariants")
def invariants_command(as_json: Json = False) -> None:
    """List the invariants."""
    if as_json:
        rows = [
            {"id": i.id.name, "kind": i.kind, "statement": i.statement, "why": i.why}
            for i in INVARIANTS
        ]
        print(json.dumps(rows, indent=1))
        return
    for invariant in INVARIANTS:
        out.print(f"[bold]{invariant.id.name}[/bold] ({invariant.kind})  {invariant.statement}")


@app.command(name="rules")
def rules_command(as_json: Json = False) -> None:
    """List the rules: the guards of vLLM that a scope may switch off."""
    if as_json:
        rows = [
            {"rule": i.rule.name, "requires": i.requires, "where": i.where, "reports": i.reports}
            for i in RULES
        ]
        print(json.dumps(rows, indent=1))
        return
    for info in RULES:
        out.print(f"[bold]{info.rule.name}[/bold]  {info.requires}")


@app.command(name="findings")
def findings_command(as_json: Json = False) -> None:
    """List the open findings on vLLM 0.31.0."""
    if as_json:
        rows = [
            {"id": f.id, "title": f.title, "broken": f.broken.name, "reachable": f.reachable}
            for f in FINDINGS
        ]
        print(json.dumps(rows, indent=1))
        return
    for finding in FINDINGS:
        out.print(f"[bold]{finding.id}[/bold] ({finding.broken.name})  {finding.title}")


@app.command(name="sweep")
def sweep_command(
    full: Annotated[bool, typer.Option(help=f"{FULL} scopes instead of {QUICK}.")] = False,
    scopes: Annotated[int | None, typer.Option(help="As many scopes as this.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other scopes.")] = 0,
    record: Annotated[
        Path | None, typer.Option(help="JSON lines to add to; what is there is not done again.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write the summary here.")] = None,
    vllm: Annotated[bool, typer.Option(help="Replay violations on the real classes.")] = False,
    progress: Annotated[
        bool, typer.Option("--progress", help="Look for runs that never get anywhere instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search small scopes that cover every pair of switches and boundary values.

    Exit code 1 if something falls that no open finding explains.
    """
    if scopes is not None and scopes <= 0:
        raise UsageError(f"--scopes = {scopes}: allowed is more than 0")
    if scopes is not None and full:
        raise UsageError(f"--scopes = {scopes}: not with --full, which is {FULL}")
    check_page("--page", page)
    count = scopes or (FULL if full else QUICK)
    if progress:
        if record is not None:
            raise UsageError("--record: not with --progress")
        _sweep_progress(count, seed, page, vllm, as_json)
    with telling_of_compilation(), _status_line() as show:
        done = sweep(
            count,
            seed=seed,
            record=record,
            progress=None if show is None else lambda one, total: show(one.number + 1, total),
        )
    if page is not None:
        page.write_text(summary_page(done), encoding="utf-8")
    distinct = done.distinct()
    rows = []
    with Client() if vllm else nullcontext() as client:
        for place, found in distinct.items():
            finding = explanation(place)
            trace = minimal(found)
            agrees = None if client is None else replay_on_vllm(trace, client).agrees
            rows.append((place, finding, trace, agrees))
            if not as_json:
                known = finding.id if finding else "[red]not explained[/red]"
                real = "" if agrees is None else f", vLLM {'agrees' if agrees else 'DIFFERS'}"
                out.print(f"[bold]{place}[/bold]: {known}, {len(trace.actions)} actions{real}")
                if finding is None:
                    out.print(render(trace), markup=False)
    outcomes = Counter(one.outcome for one in done.swept)
    if as_json:
        print(
            json.dumps(
                {
                    "scopes": len(done.swept),
                    "outcomes": dict(outcomes),
                    "violations": [
                        {
                            "place": place,
                            "finding": finding.id if finding else None,
                            "trace": msgspec.to_builtins(trace),
                            "vllm_agrees": agrees,
                        }
                        for place, finding, trace, agrees in rows
                    ],
                },
                indent=1,
            )
        )
    else:
        listed = ", ".join(f"{outcomes[name]} {name}" for name in ("holds", "violated", "bounded"))
        out.print(f"{len(done.swept)} of {count} scopes: {listed}")
    raise typer.Exit(int(any(explanation(place) is None for place in distinct)))


def _sweep_progress(
    count: int, seed: int, page: Path | None, vllm: bool, as_json: bool
) -> NoReturn:
    with telling_of_compilation(), _status_line() as show:
        done = progress_sweep(count, seed=seed, progress=show)
    if page is not None:
        page.write_text(progress_sweep_page(done), encoding="utf-8")
    rows = []
    with Client() if vllm else nullcontext() as client:
        for place, found in done.distinct.items():
            hang = progress_explanation(place)
            agrees = None if client is None else go_round(found, client).agrees
            rows.append((place, found, hang, agrees))
    if as_json:
        print(json.dumps(sweep_as_json(done, rows), indent=1))
    else:
        out.print(sweep_summary(done, rows), markup=False)
    raise typer.Exit(int(any(hang is None for _place, _found, hang, _agrees in rows)))


@app.command(name="matrix")
def matrix_command(
    page_file: Annotated[
        Path | None, typer.Option("--page", help="Write the page here instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which invariants fall without each rule, and after how many actions."""
    check_page("--page", page_file)
    with telling_of_compilation(), _status_line() as show:
        rows = matrix(progress=show)
    if page_file is not None:
        page_file.write_text(page(rows), encoding="utf-8")
    elif as_json:
        falls = [
            {"rule": rule.name, "invariant": identity.name, **msgspec.to_builtins(fall)}
            for rule, row in rows.items()
            for identity, fall in row.items()
        ]
        print(json.dumps(falls, indent=1))
    else:
        shown = Table("rule", *(str(identity + 1) for identity in Id), box=None, pad_edge=False)
        for cells in table(rows):
            shown.add_row(*cells)
        out.print(shown, ", ".join(f"{identity + 1} {identity.name}" for identity in Id))


@app.command(name="counterexamples")
def counterexamples_command(
    rules: Annotated[list[str] | None, typer.Argument(help="Rules; all by default.")] = None,
) -> None:
    """Search, minimise and write counterexamples/ anew: minutes for all rules."""
    with telling_of_compilation(), _status_line() as show:
        for path in write(rules or (), progress=show):
            out.print(str(path))


@app.command(name="prove")
def prove_command(
    name: Annotated[str | None, typer.Argument(help="One proof; all by default.")] = None,
    rule_off: Annotated[str | None, typer.Option(help="Try it without a rule.")] = None,
    seconds: Annotated[float, typer.Option(help="Time limit of each proof.")] = SECONDS,
    tie: Annotated[bool, typer.Option(help="Hold the relations against the model.")] = False,
    configuration: Annotated[
        str | None, typer.Option(help="Let Z3 find a configuration that misses this rule.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write docs/proofs.md here.")] = None,
    as_json: Json = False,
) -> None:
    """Prove invariants for all sizes with Z3: 0 all hold, 1 one fails, 3 one is unknown."""
    with telling_of_compilation():
        raise typer.Exit(
            run_prove(
                ProveOptions(name, rule_off, seconds, tie, configuration, page, as_json),
                lambda line: out.print(line, markup=False),
            )
        )


@app.command(name="docs")
def docs_command(
    folder: Annotated[Path, typer.Argument(help="Where the pages go.")] = Path("docs"),
) -> None:
    """Write the generated pages and the runs of the findings anew, in the project's folder."""
    if not COUNTEREXAMPLES.is_dir():
        raise UsageError(
            f"docs: there is no {COUNTEREXAMPLES}/ here; run it in the project's folder"
        )
    for name in PAGES if folder.is_dir() else ():
        check_page("FOLDER", folder / name)
    with telling_of_compilation():
        for path in [*write_findings(), *write_hangs(), *write_pages(), *write_docs(folder)]:
            out.print(str(path))


def _replay_json(trace: Trace) -> list[dict[str, Any]]:
    return [
        {"action": msgspec.to_builtins(moment.action), "broken": list(moment.broken)}
        for moment in replay(trace)
    ]


def _replay_lasso(found: Lasso, vllm: bool, as_json: bool) -> NoReturn:
    if as_json:
        moments = _replay_json(found.rounds(1))
        print(json.dumps({"moments": moments, "broken": list(found.broken)}, indent=1))
    else:
        out.print(render_lasso(found), markup=False)
    if vllm:
        with Client() as client:
            done = go_round(found, client)
        off = ", ".join(found.scope.rules_off)
        err.print(
            f"vLLM {DEFAULT_VERSION}{f', which has the guard of {off}' if off else ''}: "
            + (
                f"each action as on the model, {done.rounds} rounds"
                if done.agrees
                else f"differs from the model at action {done.differs_at}"
            )
        )
    raise typer.Exit(1)


def _replays_on_vllm(trace: Trace) -> Iterator[tuple[Trace, Replay | None]]:
    """The trace on the real classes; one with rules off first on vLLM as it is, guards and all.

    None where the guards of its rules cannot be taken out.
    """
    with Client() as client:
        if trace.scope.rules_off:
            guarded = with_rules_on(trace)
            yield guarded, replay_on_vllm(guarded, client)
        possible = client.guards.issuperset(trace.scope.rules_off)
        yield trace, replay_on_vllm(trace, client) if possible else None


def _say_replay(run: Trace, done: Replay | None) -> str:
    off = ", ".join(run.scope.rules_off)
    vllm = f"vLLM {DEFAULT_VERSION} {f'without the guard of {off}' if off else 'as it is'}:"
    if done is None:
        return f"{vllm} not tried, for no one function has that guard and nothing else"
    if not done.agrees:
        fields = "; ".join(f"{name}: model {a}, vLLM {b}" for name, a, b in done.fields)
        return f"{vllm} differs from the model at action {done.differs_at}: {fields}"
    raised = f" ({done.error[0]} in {done.error[2]})" if done.error else ""
    return (
        f"{vllm} {len(run.actions)} actions, each as on the model; "
        f"broken: {', '.join(run.broken) or 'nothing'}{raised}"
    )


@app.command(name="replay")
def replay_command(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    vllm: Annotated[
        bool, typer.Option(help="Run it on the real classes too, guards in and out.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a trace on the model and show each action; exit code 1 if an invariant is broken."""
    if is_lasso(file):
        with telling_of_compilation():
            _replay_lasso(load_lasso(file), vllm, as_json)
    trace = load(file)
    with telling_of_compilation():
        moments = list(replay(trace))
    broken = sorted({name for moment in moments for name in moment.broken})
    if not as_json:
        out.print(render(trace), markup=False)
    passed_over(trace)
    real = list(_replays_on_vllm(trace)) if vllm else []
    if as_json:
        shown = {"moments": _replay_json(trace), "broken": broken}
        if vllm:
            shown["vllm"] = [
                {
                    "guards_out": list(run.scope.rules_off),
                    "actions": len(run.actions),
                    "broken": list(run.broken),
                    "differs_at": done.differs_at,
                    "fields": [list(field) for field in done.fields],
                    "error": done.error,
                }
                for run, done in real
                if done is not None
            ]
        print(json.dumps(shown, indent=1))
    else:
        for run, done in real:
            out.print(_say_replay(run, done), markup=False)
    differs = any(done is not None and not done.agrees for _run, done in real)
    raise typer.Exit(int(bool(broken) or differs))


@app.command(name="minimize")
def minimize_command(
    file: Annotated[Path, typer.Argument(help="A trace file.")],
    to: Annotated[Path, typer.Option(help="Write the smaller trace here.")],
    force: Force = False,
) -> None:
    """Shrink a trace's scope while its violation stays; Ctrl-C keeps the best so far."""
    check_output("--to", to, force=force)
    trace = load(file)
    reports: list[Minimising] = []
    with telling_of_compilation(), _minimising() as show:

        def progress(report: Minimising) -> None:
            reports[:] = [report]
            if show is not None:
                show(report)

        past = passed_over(trace)
        smaller = minimize(trace, trace.broken, past=past, progress=progress)
    save(smaller, to, force=force)
    out.print(render(smaller), markup=False)
    err.print(f"{_HOW_IT_ENDED[reports[-1].stage]} ({_minimised(reports[-1])})")


_HOW_IT_ENDED = {
    "minimal": "minimal: no cut is left, and no shorter run of the scope breaks it",
    "short": "short, not shown to be shortest: the scope is too large to be searched",
    "interrupted": "interrupted: the best so far",
}


def _minimised(p: Minimising) -> str:
    return (
        f"{p.candidates} candidates, {len(p.scope.requests)} requests, "
        f"{p.scope.num_blocks - 1} blocks, {p.actions} actions, {p.seconds:.1f} s"
    )


@contextmanager
def _minimising() -> Iterator[Any]:
    """Show on stderr how small the scope is by now; nothing where it is no terminal."""
    if not err.is_terminal:
        yield None
        return
    with Live(console=err, transient=True, refresh_per_second=10) as live:
        yield lambda p: live.update(Text(f"{p.stage}: {_minimised(p)}"))


@app.command(name="export")
def export_command(
    file: Annotated[Path, typer.Argument(help="A trace file; for --dot also a scope.")],
    vllm_test: Annotated[
        bool, typer.Option("--vllm-test", help="A pytest file that needs vLLM and nothing else.")
    ] = False,
    as_itf: Annotated[bool, typer.Option("--itf", help="Informal Trace Format.")] = False,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="A sequence diagram.")] = False,
    as_dot: Annotated[bool, typer.Option("--dot", help="The scope's state graph.")] = False,
    to: Annotated[Path | None, typer.Option(help="Write it here instead of stdout.")] = None,
    force: Force = False,
) -> None:
    """Write a trace, or the state graph of its scope, for other tools."""
    if [vllm_test, as_itf, as_mermaid, as_dot].count(True) != 1:
        raise UsageError("export: give one of --vllm-test, --itf, --mermaid, --dot")
    check_output("--to", to, force=force)
    with telling_of_compilation():
        if as_dot:
            is_trace = file.suffix == ".json"
            text = dot(load(file).scope if is_trace else find_scope(str(file)))
        else:
            trace = load(file)
            passed_over(trace)
            text = (export_test if vllm_test else itf if as_itf else mermaid)(trace)
    if to is None:
        print(text)
    else:
        to.write_text(text, encoding="utf-8")


@app.command(name="lockstep")
def lockstep_command(
    scopes: Annotated[list[str] | None, typer.Argument(help="Names or .toml files.")] = None,
    version: Annotated[str, typer.Option(help="Release of vLLM.")] = DEFAULT_VERSION,
    as_json: Json = False,
) -> None:
    """Replay every transition of scopes on the real vLLM classes and compare."""
    reports = []
    chosen = [find_scope(name) for name in scopes or LOCKSTEP]
    with telling_of_compilation(), Client(version) as client:
        for scope in chosen:
            with _status_line() as show:
                report = lockstep_scope(scope, client, progress=show)
            reports.append(report)
            if not as_json:
                verdict = "equal" if report.difference is None else "DIFFERENT"
                say_of(
                    scope.name,
                    f"{verdict}  {report.transitions:,} transitions "
                    f"replayed on vLLM {report.version}, {report.seconds:.1f} s",
                )
                if report.difference is not None:
                    out.print(render(report.difference.trace), markup=False)
                    for field, model, real in report.difference.fields:
                        out.print(f"  {field}\n    model {model}\n    vLLM  {real}", markup=False)
    if as_json:
        rows = [
            {
                "scope": r.scope,
                "version": r.version,
                "transitions": r.transitions,
                "seconds": round(r.seconds, 2),
                "difference": None
                if r.difference is None
                else {
                    "trace": msgspec.to_builtins(r.difference.trace),
                    "fields": [list(field) for field in r.difference.fields],
                },
            }
            for r in reports
        ]
        print(json.dumps(rows, indent=1))
    raise typer.Exit(int(any(report.difference is not None for report in reports)))


@app.command(name="random")
def random_command(
    on: Annotated[On, typer.Option(help="What the runs move.")] = "model",
    runs: Annotated[int, typer.Option(min=1, help="Runs, each of a scope of its own.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="Most actions of a run.")] = 60,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal runs.")] = 0,
    size: Annotated[Size | None, typer.Option(help="All sizes if not given.")] = None,
    plain: Annotated[bool, typer.Option(help="Prefer nothing.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write what goes wrong here.")] = None,
    version: Annotated[str, typer.Option(help="Release of vLLM.")] = DEFAULT_VERSION,
    force: Force = False,
) -> None:
    """Random runs over drawn scopes; exit code 1 at the first that breaks something or differs."""
    started = time.perf_counter()
    with (
        telling_of_compilation(),
        nullcontext() if on == "model" else Client(version) as client,
        _status_line() as show,
    ):
        world = opener(on, client)
        try:
            done = random_runs(
                world,
                runs,
                steps=steps,
                seed=seed,
                size=size,
                guided=not plain,
                most_requests=MOST_REQUESTS if on == "lockstep" else MAX_REQUESTS,
                progress=show,
            )
        except (Violation, Difference) as wrong:
            if trace is not None:
                save(wrong.trace, trace, force=force)
            out.print(f"{wrong}\n{render(wrong.trace)}", markup=False)
            raise typer.Exit(1) from None
    out.print(f"{done.summary()}, {time.perf_counter() - started:.0f} s", markup=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; mistakes of use end with exit code 2 and one line on stderr."""
    try:
        app()
    except KvproofError as error:
        err.print(f"kvproof: {error}", markup=False)
        sys.exit(USAGE)
    except OSError as error:
        err.print(f"kvproof: {error.filename}: {error.strerror}", markup=False)
        sys.exit(USAGE)
    except Broken as broken:
        err.print(f"kvproof: broken: {broken}", markup=False)
        sys.exit(1)
