"""What keeps requests waiting: the lassos of findings and guards, and their page in docs/."""

from __future__ import annotations

from pathlib import Path

from kvproof.checker.check_progress import check_progress
from kvproof.errors import KvproofError
from kvproof.evidence.finding_pages import account
from kvproof.evidence.project import project
from kvproof.model.scope import Scope
from kvproof.scopes.named import LOCKSTEP, SCOPES
from kvproof.spec.hangs import GUARDS, HANGS, Guard, Hang
from kvproof.spec.progress import STATEMENTS, broken_by
from kvproof.trace.action_kinds import ACTION_KINDS
from kvproof.trace.lasso import Lasso, render_lasso, save_lasso

FOLDER = Path("counterexamples/progress")


class HangGone(KvproofError, RuntimeError):
    """A finding or a guard that the progress check does not show any more."""


def find_hang(hang: Hang) -> Lasso:
    """The lasso of a finding in its scope; HangGone where there is none."""
    return _find(hang.scope, hang.id, tuple(one.name for one in hang.broken))


def find_guard(guard: Guard) -> Lasso:
    """The lasso that a rule guards against, with the rule off; HangGone where there is none."""
    scope = guard.scope.with_rules_off(guard.rule.name)
    return _find(scope, guard.rule.name, (guard.falls.name,))


def _find(scope: Scope, name: str, broken: tuple[str, ...]) -> Lasso:
    done = check_progress(scope)
    done.result.finished()
    lassos = done.lassos
    for one in lassos:
        if set(broken) <= set(one.broken):
            return one
    fell = "; ".join(", ".join(one.broken) for one in lassos) or "nothing"
    raise HangGone(f"{name}: expected {', '.join(broken)} to fall, {fell} did")


def write_hangs(folder: Path | None = None) -> list[Path]:
    """Write the lasso of every finding and every guard anew; returns the paths."""
    paths = []
    folder = folder or project() / FOLDER
    for hang in HANGS:
        paths.append(folder / f"{hang.id}.json")
        save_lasso(find_hang(hang), paths[-1], force=True)
    for guard in GUARDS:
        paths.append(folder / f"{guard.rule.name}.json")
        save_lasso(find_guard(guard), paths[-1], force=True)
    return paths


def progress_page() -> str:
    """docs/progress.md: properties, fairness, scopes, guards and findings."""
    return "\n".join(
        [
            "# Progress\n",
            "Most hangs are no bad state but a run that never gets anywhere. `kvproof "
            "check-progress` searches a scope to the end, past whatever invariant falls, keeps its "
            "graph, and looks for such runs. A counterexample is a lasso: a stem, as short as "
            "there is one (where a request is passed too often, a short one), and a loop that "
            "returns to its very state, block numbers included. "
            "`kvproof replay` shows one.\n",
            *_properties(),
            *_fairness(),
            *_scopes(),
            *_guards(),
            *_findings(),
        ]
    )


def _properties() -> list[str]:
    lines = ["## Properties\n"]
    for one in STATEMENTS:
        rules = ", ".join(f"`{rule.name}`" for rule in broken_by(one.property))
        lines.append(
            f"**{one.property.name}.** {one.statement} {one.why} *How:* {one.how} It falls, for "
            f"instance, without {rules}.\n"
        )
    return lines


def _fairness() -> list[str]:
    return [
        "## Fairness\n",
        "Every request fits alone in the pool: a scope in which one does not is refused. Of each "
        "kind of action is assumed (weak: one that stays enabled is taken; strong: one that is "
        "enabled again and again is taken; none: it may come, or never):\n",
        "| action | fairness | |",
        "|---|---|---|",
        *(f"| {one.name} | {one.fairness} | {one.assumed} |" for one in ACTION_KINDS.values()),
        "",
        "So a loop has no action of a client and nothing that fails. A load or a sending that is "
        "under way stays so until it ends: a component of the graph has a fair cycle exactly if "
        "none is under way in all of its states. What the device answers is anybody's choice: a "
        "token that is delivered takes its request nearer to its limit, so no choice can make a "
        "loop.\n",
        "The search renames blocks. A cycle of renamed states leads back to the same state with "
        "other block numbers; taken again and again it returns to the same numbers, and that is "
        "how the loop is listed. No reduction is switched off.\n",
    ]


def _scopes() -> list[str]:
    lines = [
        "## Scopes\n",
        "Every named scope is small enough, `crowd` with its millions of states included "
        "(`checks/test_progress.py`). What was looked at, so that a scope that gives no occasion "
        "is seen: states with work due, cycles of the engine's own actions and how many of them "
        "are fair, calls of schedule that pass a waiting request, and the most that one is passed "
        "while it waits. Cycles that are not fair are the engine's empty steps while a transfer "
        "takes its time; where there is no cycle, every run of the engine ends by itself.\n",
        "| scope | progress | states | work due | cycles | fair | passing calls | most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in LOCKSTEP:
        done = check_progress(SCOPES[name])
        done.result.finished()
        outcome = ", ".join([done.outcome, *(n for one in done.lassos for n in one.broken)])
        lines.append(
            f"| {name} | {outcome} | {done.result.states:,} | {done.due_states:,} "
            f"| {done.cycles:,} | {done.fair_cycles:,} | {done.passes:,} | {done.most_passes} |"
        )
    return [*lines, ""]


def _guards() -> list[str]:
    lines = [
        "## Guards against hanging\n",
        "With the rule off the property falls in the scope, with it on it does not.\n",
        "| rule | falls | scope | stem | loop |",
        "|---|---|---|---|---|",
    ]
    for guard in GUARDS:
        found = find_guard(guard)
        broken = ", ".join(found.broken)
        lines.append(
            f"| `{guard.rule.name}` | {broken} | {guard.scope.name} | {len(found.stem)} actions "
            f"| {len(found.loop)} |"
        )
    return [*lines, ""]


def _findings() -> list[str]:
    lines = [
        "## What vLLM 0.31.0 gets wrong\n",
        "Every rule is on. Each loop was taken 50 times by the real classes too, and their "
        "observation returned to itself each time. The sweep's figures are in "
        "[progress-sweep.md](progress-sweep.md).\n",
    ]
    for hang in HANGS:
        lines += [
            f'<a id="{hang.id}"></a>\n',
            f"### {hang.title}\n",
            f"{', '.join(f'`{one.name}`' for one in hang.broken)}; `{hang.where}`.\n",
            *account(hang, render_lasso(find_hang(hang))),
        ]
    return lines
