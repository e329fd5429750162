"""What is known already: the open finding that a violation is."""

from __future__ import annotations

from kvproof.spec.findings import FINDINGS, Finding
from kvproof.spec.hangs import HANGS, Hang
from kvproof.spec.identity import Identity


def known_finding(identity: Identity) -> Finding | None:
    """The open finding that a broken invariant of this identity is."""
    return next((finding for finding in FINDINGS if finding.explains(identity)), None)


def known_hang(identity: Identity) -> Hang | None:
    """The open finding that a lasso of this identity is; the first one that explains it."""
    return next((hang for hang in HANGS if hang.explains(identity)), None)
