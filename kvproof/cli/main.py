"""The command line: its commands by name, loaded when they are asked for, and how it ends.

Exit codes are those of kvproof/cli/outcomes.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import Annotated, Any

import typer

from kvproof import __version__
from kvproof.cli.console import say
from kvproof.cli.outcomes import CLOSED_PIPE, DEFECT, INTERRUPTED, USAGE
from kvproof.errors import KvproofError

COMMANDS = {
    "scopes": "scopes",
    "scope": "scope",
    "invariants": "invariants",
    "rules": "rules",
    "findings": "findings",
    "check": "check",
    "check-progress": "check_progress",
    "replay": "replay",
    "minimize": "minimize",
    "export": "export",
    "sweep": "sweep",
    "sweep-progress": "sweep_progress",
    "random": "random",
    "lockstep": "lockstep",
    "prove": "prove",
    "tie": "tie",
    "configure": "configure",
    "simulate": "simulate",
    "matrix": "matrix",
    "counterexamples": "counterexamples",
    "docs": "docs",
}
"""Commands in the order of the help, each with its module beside this one."""

_SETTINGS = {"help_option_names": ["-h", "--help"]}


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvproof {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Version."),
    ] = False,
) -> None:
    """A model checker for the vLLM v1 scheduler and its paged KV cache.

    Exit codes: 0 holds, 1 something falls or differs, 2 a mistake of use or of the environment,
    3 a limit was reached, 70 a defect of kvproof, 130 interrupted, 141 the reader has gone.
    """


def build(names: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command line with these commands; each loads what it needs."""
    app = typer.Typer(
        no_args_is_help=True, pretty_exceptions_enable=False, context_settings=_SETTINGS
    )
    app.callback()(_options)
    for name in names:
        module = import_module(f"kvproof.cli.{COMMANDS[name]}")
        if hasattr(module, "app"):
            for one in module.app.registered_commands:
                one.callback = _ending(one.callback)
            app.add_typer(module.app, name=name)
            continue
        examples = getattr(module, "EXAMPLES", "").strip().splitlines()
        epilog = "\n\n".join(["Examples:", *examples]) if examples else None
        app.command(name=name, epilog=epilog, context_settings=_SETTINGS)(_ending(module.command))
    return app


def _wanted(arguments: Sequence[str]) -> Sequence[str]:
    """The command that the arguments name, all of them if it takes all to say what is wrong."""
    first = next((word for word in arguments if not word.startswith("-")), None)
    completing = any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ)
    return (first,) if first in COMMANDS and not completing else tuple(COMMANDS)


def _ending(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one way to end for what it may run into."""

    @functools.wraps(command)
    def ended(**arguments: Any) -> None:
        try:
            command(**arguments)
            sys.stdout.flush()
        except KvproofError as error:
            say(str(error))
            raise typer.Exit(USAGE) from None
        except OSError as error:
            raise typer.Exit(_failed(error)) from None
        except KeyboardInterrupt:
            _say_interrupted()
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            say("out of memory; --max-memory ends a search before")
            raise typer.Exit(USAGE) from None
        except typer.Exit:
            raise
        except Exception:
            if _lost_interrupts:
                _say_interrupted()
                raise typer.Exit(INTERRUPTED) from None
            traceback.print_exc()
            raise typer.Exit(DEFECT) from None

    return ended


def _say_interrupted() -> None:
    say("interrupted")


_lost_interrupts: list[object] = []
"""Interrupts within a callback of the compiler, which loses them and then fails otherwise."""


def _note_lost(lost: sys.UnraisableHookArgs) -> None:
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _lost_interrupts.append(lost.object)
    else:
        sys.__unraisablehook__(lost)


def _failed(error: OSError) -> int:
    """The exit code of an error of a file or of the output, which is said if anybody reads."""
    if error.filename is None:
        # What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    say(f"{error.filename or 'output'}: {error.strerror or error}")
    return USAGE


def _terminated(_signal: int, frame: FrameType | None) -> None:
    """SIGTERM is as a Ctrl-C, whatever that does at the time."""
    interrupt = signal.getsignal(signal.SIGINT)
    if not callable(interrupt):
        raise KeyboardInterrupt
    interrupt(signal.SIGINT, frame)


def _run(arguments: Sequence[str]) -> None:
    if arguments in (["--version"], ["-V"]):
        print(f"kvproof {__version__}")
    else:
        build(_wanted(arguments))(args=arguments)


def main() -> None:
    """Run the command line; mistakes that a user can mend end with one line on stderr."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (to the end)
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, _terminated)
    sys.unraisablehook = _note_lost
    try:
        try:
            _run(sys.argv[1:])
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _say_interrupted()
        sys.exit(INTERRUPTED)
    except OSError as error:
        sys.exit(_failed(error))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(_failed(end.__context__))
        raise
