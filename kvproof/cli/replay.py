"""`kvproof replay`: a trace's actions again, on the model and on vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from kvproof.bridge.client import Client
from kvproof.bridge.environment import DEFAULT_VERSION
from kvproof.bridge.loops import go_round
from kvproof.bridge.observed import RealClasses, moments_on
from kvproof.bridge.vllm_replay import Replay, replay_on_vllm
from kvproof.checker.minimize import with_rules_on
from kvproof.cli.arguments import Mended, Mends, UsageError, Version, with_mends_made
from kvproof.cli.console import Json, err, out, print_json, telling_of_compilation
from kvproof.trace.lasso import Lasso, is_lasso, load_lasso, render_lasso
from kvproof.trace.render import render
from kvproof.trace.trace import Moment, Trace, load, not_followed, passed_over, replay

EXAMPLES = """
kvproof replay x.json
kvproof replay counterexamples/evict_hash_on_reuse.json --vllm
"""


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trace or a lasso.")],
    vllm: Annotated[
        bool, typer.Option(help="Run it on the real classes too, guards in and out.")
    ] = False,
    mend: Mends = None,
    mended: Mended = False,
    version: Version = DEFAULT_VERSION,
    as_json: Json = False,
) -> None:
    """Run a trace on the model and show each action; exit code 1 if an invariant is broken.

    With mends its actions are taken as far as they are enabled then.
    """
    if is_lasso(file):
        if mend or mended:
            raise UsageError(f"{file}: a lasso does not go round with a mend; search its scope")
        with telling_of_compilation():
            _replay_lasso(load_lasso(file), vllm, version, as_json)
    trace = load(file)
    if trace.recorded_on and not (mend or mended):
        with telling_of_compilation():
            _replay_recorded(trace, vllm, version, as_json)
    trace = with_mends_made(trace, mend, mended)
    with telling_of_compilation():
        moments = list(replay(trace))
    broken = sorted({name for moment in moments for name in moment.broken})
    if not as_json:
        out.print(render(trace))
    passed_over(trace)
    real = list(_replays_on_vllm(trace, version)) if vllm else []
    if as_json:
        shown: dict[str, Any] = {"moments": _moments(moments), "broken": broken}
        if vllm:
            shown["vllm"] = [_on_vllm(run, done) for run, done in real if done is not None]
        print_json("replay", shown)
    else:
        for run, done in real:
            out.print(_say_replay(run, done, version))
    differs = any(done is not None and not done.agrees for _run, done in real)
    raise typer.Exit(int(bool(broken) or differs))


def _moments(moments: Iterable[Moment]) -> list[dict[str, Any]]:
    return [
        {"action": msgspec.to_builtins(moment.action), "broken": list(moment.broken)}
        for moment in moments
    ]


def _replay_recorded(trace: Trace, vllm: bool, version: str, as_json: bool) -> NoReturn:
    """A run that the real classes made, there again or as far as the model follows it."""
    parted = not_followed(trace)
    moments: list[Moment] = []
    if vllm:
        with Client(version) as client:
            moments = list(moments_on(RealClasses(client), trace))
    elif parted is None:
        moments = list(replay(trace))
    broken = sorted({name for moment in moments for name in moment.broken})
    if as_json:
        shown = {"recorded_on": trace.recorded_on, "model": parted or "follows"}
        print_json("replay", {**shown, "moments": _moments(moments), "broken": broken})
    else:
        out.print(render(trace, moments if vllm else None))
        where = f"vLLM {version}" if vllm else "the model"
        if vllm or parted is None:
            out.print(f"{where}: {len(moments)} actions; broken: {', '.join(broken) or 'nothing'}")
    raise typer.Exit(int(bool(broken) or parted is not None))


def _on_vllm(run: Trace, done: Replay) -> dict[str, Any]:
    return {
        "guards_out": list(run.scope.rules_off),
        "actions": len(run.actions),
        "broken": list(run.broken),
        "differs_at": done.differs_at,
        "fields": [list(field) for field in done.fields],
        "error": done.error,
    }


def _replay_lasso(found: Lasso, vllm: bool, version: str, as_json: bool) -> NoReturn:
    if as_json:
        shown = {"moments": _moments(replay(found.rounds(1))), "broken": list(found.broken)}
        print_json("replay", shown)
    else:
        out.print(render_lasso(found))
    if vllm:
        with Client(version) as client:
            done = go_round(found, client)
        off = ", ".join(found.scope.rules_off)
        err.print(f"vLLM {version}{f', which has the guard of {off}' if off else ''}: {done}")
    raise typer.Exit(1)


def _replays_on_vllm(trace: Trace, version: str) -> Iterator[tuple[Trace, Replay | None]]:
    """The trace on the real classes; one with rules off first on vLLM as it is, guards and all.

    None where the driver has no way to take out the guards of its rules.
    """
    with Client(version) as client:
        if trace.scope.rules_off:
            guarded = with_rules_on(trace)
            yield guarded, replay_on_vllm(guarded, client)
        possible = client.guards.issuperset(trace.scope.rules_off)
        yield trace, replay_on_vllm(trace, client) if possible else None


def _say_replay(run: Trace, done: Replay | None, version: str) -> str:
    off = ", ".join(run.scope.rules_off)
    vllm = f"vLLM {version} {f'without the guard of {off}' if off else 'as it is'}:"
    if run.scope.mends:
        vllm = f"{vllm[:-1]}, mended ({', '.join(run.scope.mends)}):"
    if done is None:
        return f"{vllm} not tried, for kvproof/vllm/guards_out.py cannot take it out"
    if not done.agrees:
        return f"{vllm} {done}"
    raised = f" ({done.error[0]} in {done.error[2]})" if done.error else ""
    return (
        f"{vllm} {len(run.actions)} actions, each as on the model; "
        f"broken: {', '.join(run.broken) or 'nothing'}{raised}"
    )
