"""`kvproof scope`: a template of a scope, to be filled in."""

from __future__ import annotations

from kvproof.cli.console import Force, To
from kvproof.cli.files import check_output, write_text
from kvproof.scopes.reference import template

EXAMPLES = """
kvproof scope --to mine.toml
"""


def command(to: To = None, force: Force = False) -> None:
    """Print a scope in TOML with every option explained; it can be checked as it is."""
    check_output("--to", to, force=force)
    if to is None:
        print(template(), end="")
    else:
        write_text(to, template())
