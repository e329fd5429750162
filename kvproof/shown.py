"""Results that print well, in a notebook too."""

from __future__ import annotations

from html import escape


class Shown:
    """A value whose `str` is meant for people: a notebook shows that, line by line."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
