"""The project's folder, where counterexamples/ and docs/ are."""

from __future__ import annotations

from pathlib import Path

import kvproof
from kvproof.errors import KvproofError

COUNTEREXAMPLES = "counterexamples"


class NoProject(KvproofError, RuntimeError):
    """There is no checkout of the project: the installed package has no evidence in it."""


def project() -> Path:
    """The checkout that this package is run from, or the one around the current folder."""
    package = Path(kvproof.__file__).resolve().parent
    here = Path.cwd()
    for folder in (package.parent, here, *here.parents):
        if (folder / COUNTEREXAMPLES).is_dir() and (folder / "kvproof").is_dir():
            return folder
    raise NoProject(
        f"there is no {COUNTEREXAMPLES}/ beside {package} or here: it is in a checkout of the "
        f"project, not in the installed package"
    )
