"""The root of every error that this project raises on purpose."""

from __future__ import annotations


class KvproofError(Exception):
    """Something that a user can mend: names the field or file, the value, and what is allowed."""
