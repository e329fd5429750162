"""What is known already: the open finding that a violation is, unless a mend has removed it."""

from __future__ import annotations

from collections.abc import Collection

from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.hangs import HANGS, Hang
from kvproof.spec.identity import Identity
from kvproof.spec.mends import MENDED_BY


def known_finding(identity: Identity, mends: Collection[str] = ()) -> Finding | None:
    """The open finding that a broken invariant of this identity is, where these mends are on."""
    return next(
        (one for one in FINDINGS if one.explains(identity) and _is_open(one.id, mends)), None
    )


def known_hang(identity: Identity, mends: Collection[str] = ()) -> Hang | None:
    """The open finding that a lasso of this identity is; the first one that explains it."""
    return next((one for one in HANGS if one.explains(identity) and _is_open(one.id, mends)), None)


def _is_open(finding: str, mends: Collection[str]) -> bool:
    return MENDED_BY.get(finding) not in mends
