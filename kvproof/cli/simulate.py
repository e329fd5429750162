"""`kvproof simulate`: workloads on a simulated clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from kvproof.bridge.differences import told
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.cli.arguments import Version
from kvproof.cli.console import (
    Force,
    Json,
    coloured,
    counted_line,
    err,
    out,
    print_json,
    telling_of_compilation,
    titled,
)
from kvproof.cli.files import check_page, write_text
from kvproof.cli.outcomes import VIOLATED, exit_code
from kvproof.evidence.project import project
from kvproof.simulate import plot as plotting
from kvproof.simulate import real, report
from kvproof.simulate.comparison import EXPLAINED, Cause, Comparison, compare_runs
from kvproof.simulate.page import measured_page
from kvproof.simulate.scaled import Episode, run_episodes
from kvproof.simulate.serq import Variant, run_on_serq
from kvproof.simulate.summary import check_file, summarise, write_csv
from kvproof.trace.render import render
from kvproof.trace.trace import save
from kvproof.workload.clock import Broken
from kvproof.workload.sessions import draw
from kvproof.workload.settings import Settings

app = typer.Typer(help="Serve workloads with the real classes on a simulated clock.")

_DEFAULT = Settings()

Rate = Annotated[float, typer.Option(help="Sessions a second.")]
Pool = Annotated[int, typer.Option(help="Blocks without the null block.")]
BlockSize = Annotated[int, typer.Option(help="Tokens in a block.")]
Budget = Annotated[int, typer.Option(help="Tokens a step may schedule.")]
MaxRequests = Annotated[int, typer.Option(help="Requests that run at once.")]
Policy = Annotated[
    Literal["fcfs", "priority"], typer.Option(help="With priority, later turns go first.")
]
Depth = Annotated[int, typer.Option(help="Steps in flight; 2 is asynchronous scheduling.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same numbers.")]
Horizon = Annotated[float, typer.Option(help="Simulated seconds.")]
Warmup = Annotated[
    float | None, typer.Option(help="Seconds that do not count.", show_default="a tenth")
]
CheckEvery = Annotated[int, typer.Option(help="Steps between checks of everything; 0: at the end.")]


@contextmanager
def _watch(name: str, unit: str = "s") -> Iterator[real.Watch | None]:
    """What is done, in `unit`, on stderr; nothing where it is no terminal."""
    with counted_line(name) as count:
        if count is None:
            yield None
            return
        yield lambda now, total, requests: count(
            min(now, total), total, f"{unit}, {requests:,} requests"
        )


def _table(columns: tuple[str, ...], rows: report.Rows) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


@app.command(name="multi-turn")
def multi_turn(
    rate: Rate = _DEFAULT.rate,
    pool: Pool = _DEFAULT.pool,
    block_size: BlockSize = _DEFAULT.block_size,
    budget: Budget = _DEFAULT.budget,
    max_requests: MaxRequests = _DEFAULT.max_requests,
    policy: Policy = "fcfs",
    depth: Depth = _DEFAULT.depth,
    seed: Seed = _DEFAULT.seed,
    horizon: Horizon = _DEFAULT.horizon,
    warmup: Warmup = None,
    check_every: CheckEvery = _DEFAULT.check_every,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write a line for each request: .csv"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .svg or .png")] = None,
    version: Version = DEFAULT_VERSION,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Serve multi-turn sessions with the real scheduler; exit code 1 if an invariant falls."""
    settings = Settings(
        rate=rate,
        pool=pool,
        block_size=block_size,
        budget=budget,
        max_requests=max_requests,
        policy=policy,
        depth=depth,
        seed=seed,
        horizon=horizon,
        warmup=horizon / 10 if warmup is None else warmup,
        check_every=check_every,
    )
    if to is not None:
        check_file("--to", to, (".csv",), force=force)
    if plot is not None:
        check_file("--plot", plot, plotting.SUFFIXES, force=force)
        plotting.figure_class()
    with _watch("multi-turn") as watch:
        run = real.run_on_vllm(draw(settings), settings, version=version, watch=watch)
    if as_json:
        print_json("simulate multi-turn", _run_json(run))
    else:
        out.print(_table(report.FIGURE_COLUMNS, report.figure_rows(run)))
        out.print(report.totals_sentence(run))
        colour = "green" if run.broken is None else "red"
        out.print(Text(report.checks_sentence(run), style=colour))
        early = ", interrupted" if run.interrupted else ""
        out.print(f"vLLM {run.version}, {run.seconds:.0f} s{early}")
    if to is not None:
        write_csv(run.records, to, force=force)
    if plot is not None:
        plotting.plot(run.records, settings, plot)
    outcome = "holds" if run.broken is None else "violated"
    raise typer.Exit(exit_code([outcome], interrupted=run.interrupted))


def _run_json(run: real.Run) -> dict[str, Any]:
    summary = summarise(run.records, run.settings.warmup)
    return {
        "version": run.version,
        "figures": {
            figure.name: {
                "count": figure.observed,
                "mean": _number(figure.mean),
                "p50": _number(figure.p50),
                "p99": _number(figure.p99),
            }
            for figure in summary.figures
        },
        "served": summary.served,
        "sessions": run.totals.sessions,
        "hit_share": _number(summary.hit_share),
        "preemptions": summary.preemptions,
        "refused": run.totals.refused,
        "cut": run.totals.cut,
        "steps": run.totals.steps,
        "full_checks": run.full_checks,
        "broken": None if run.broken is None else [run.broken.invariant, run.broken.seen],
        "interrupted": run.interrupted,
    }


@app.command(name="lockstep")
def lockstep(
    episodes: Annotated[int, typer.Option(help="Small runs, from consecutive seeds.")] = 10,
    policy: Policy = "fcfs",
    depth: Depth = _DEFAULT.depth,
    seed: Seed = _DEFAULT.seed,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write the run that does not agree."),
    ] = None,
    version: Version = DEFAULT_VERSION,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run it at the model's sizes on the model and on the real classes; 1 if they differ."""
    if to is not None:
        check_file("--to", to, (".json",), force=force)
    settings = Settings(policy=policy, depth=depth, seed=seed)
    with (
        telling_of_compilation(),
        _watch("lockstep", "episodes") as watch,
    ):
        done = run_episodes(settings, episodes, version=version, watch=watch)
    agrees = all(one.agrees for one in done)
    interrupted = agrees and len(done) < episodes
    counts = {
        "episodes": len(done),
        "requests": sum(len(one.records) for one in done),
        "steps": sum(one.steps for one in done),
        "compared": sum(one.compared for one in done),
        "hits": sum(bool(record.hit) for one in done for record in one.records),
        "preemptions": sum(record.preemptions for one in done for record in one.records),
    }
    if as_json:
        print_json("simulate lockstep", {**counts, **_episode_json(done[-1] if done else None)})
    else:
        listed = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        verdict = "interrupted" if interrupted else "equal" if agrees else "stopped"
        out.print(Text.assemble(coloured(verdict), f": {listed}"))
        if not agrees:
            _show_episode(done[-1])
    if to is not None and not agrees:
        save(done[-1].trace, to, force=force)
    raise typer.Exit(exit_code(["holds" if agrees else "violated"], interrupted=interrupted))


def _show_episode(episode: Episode) -> None:
    out.print(render(episode.trace))
    for line in told(episode.difference):
        out.print(f"  {line}")
    if episode.broken is not None:
        out.print(f"  broken on the model: {episode.broken}")


def _episode_json(episode: Episode | None) -> dict[str, Any]:
    if episode is None:
        return {"difference": [], "broken": None}
    broken = episode.broken
    return {
        "difference": episode.difference,
        "broken": None if broken is None else [broken.invariant, broken.seen],
    }


@app.command(name="compare")
def compare(
    variants: Annotated[
        list[Variant] | None,
        typer.Argument(
            help="The program: as written; with whole tokens; besides admitting at a step; "
            "besides reserving whole prompts. By default whole.",
        ),
    ] = None,
    rate: Rate = _DEFAULT.rate,
    pool: Pool = _DEFAULT.pool,
    block_size: BlockSize = _DEFAULT.block_size,
    budget: Budget = _DEFAULT.budget,
    max_requests: MaxRequests = _DEFAULT.max_requests,
    seed: Seed = _DEFAULT.seed,
    horizon: Horizon = _DEFAULT.horizon,
    warmup: Warmup = None,
    version: Version = DEFAULT_VERSION,
    as_json: Json = False,
) -> None:
    """Give the requests that serQ drew to the real classes; 1 if a difference has no cause."""
    settings = Settings(
        rate=rate,
        pool=pool,
        block_size=block_size,
        budget=budget,
        max_requests=max_requests,
        seed=seed,
        horizon=horizon,
        warmup=horizon / 10 if warmup is None else warmup,
    )
    comparisons: list[Comparison] = []
    interrupted = False
    for variant in variants or [Variant.WHOLE]:
        serq = run_on_serq(settings, variant)
        with _watch(variant) as watch:
            run = real.run_on_vllm(serq.sessions, settings, version=version, watch=watch)
        if run.broken is not None:
            out.print(f"broken: {run.broken}")
            raise typer.Exit(VIOLATED)
        if run.interrupted:
            interrupted = True
            break
        comparisons.append(compare_runs(serq, run.records, variant))
        if not as_json:
            means = serq.means
            err.print(
                f"{variant} on serQ {serq.version}: {means['turns']:,.0f} turns of "
                f"{serq.arrivals:,} sessions, hit share {means['hit']:.3f}, mean prefill "
                f"{means['prefill_tokens']:.1f}, time to first token {means['ttft']:.4f} s, "
                f"response {means['response']:.4f} s"
            )
    if as_json:
        print_json("simulate compare", [_comparison_json(one) for one in comparisons])
    else:
        rows = [report.comparison_row(one) for one in comparisons]
        out.print(_table(report.COMPARISON_COLUMNS, rows))
        causes = report.cause_rows(comparisons)
        if causes:
            out.print()
            out.print(_table(("program", "cause", "requests"), causes))
        for cause in dict.fromkeys(d.cause for one in comparisons for d in one.differences):
            out.print(titled(cause, f": {EXPLAINED[cause]}"))
    outcomes = ["fails" if one.causes[Cause.UNKNOWN] else "holds" for one in comparisons]
    raise typer.Exit(exit_code(outcomes, interrupted=interrupted))


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "variant": comparison.variant,
        "requests": comparison.requests,
        "equal_hit": comparison.equal_hit,
        "equal_ttft": comparison.equal_ttft,
        "equal_response": comparison.equal_response,
        "equal": comparison.equal,
        "largest": comparison.largest,
        "causes": dict(comparison.causes),
        "differences": [
            {
                "session": d.session,
                "turn": d.turn,
                "cause": d.cause,
                "hit": [d.real.hit, d.serq.hit],
                "ttft": [d.real.ttft, d.serq.ttft],
                "response": [d.real.response, d.serq.response],
            }
            for d in comparison.differences
        ],
    }


@app.command(name="page")
def page(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="The page.",
            show_default="the project's docs/multi-turn.md",
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Runs are kept here, and what is here is not run again.",
            show_default="the project's .simulate",
        ),
    ] = None,
) -> None:
    """Measure what docs/multi-turn.md says, about half an hour, and write it."""
    file = project() / "docs" / "multi-turn.md" if to is None else to
    check_page("--to", file)
    try:
        write_text(file, measured_page(results or project() / ".simulate", _watch))
    except Broken as broken:
        out.print(f"broken: {broken}")
        raise typer.Exit(VIOLATED) from None
    out.print(str(file))
