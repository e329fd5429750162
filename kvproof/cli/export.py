"""`kvproof export`: a trace, or the state graph of its scope, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvproof.bridge.forms import FORMS
from kvproof.checker.dot import dot
from kvproof.cli.arguments import find_scope
from kvproof.cli.console import Force, To, telling_of_compilation
from kvproof.cli.files import check_output, write_text
from kvproof.trace.trace import load, passed_over

Form = Literal["pytest", "itf", "mermaid", "dot"]

EXAMPLES = """
kvproof export x.json --as pytest --to test_x.py
kvproof export two-equal --as dot
"""


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A trace file; for dot also a scope.")
    ],
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="A test that needs vLLM and nothing else, the Informal Trace Format, a sequence "
            "diagram, or the scope's state graph.",
        ),
    ],
    to: To = None,
    force: Force = False,
) -> None:
    """Write a trace, or the state graph of its scope, for other tools."""
    check_output("--to", to, force=force)
    with telling_of_compilation():
        if form == "dot" and not file.endswith(".json"):
            text = dot(find_scope(file))
        else:
            trace = load(Path(file))
            passed_over(trace)
            text = FORMS[form](trace)
    if to is None:
        print(text)
    else:
        write_text(to, text)
