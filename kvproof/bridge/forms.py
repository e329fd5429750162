"""Every form that a trace is exported in."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.bridge.export import export_test
from kvproof.checker.dot import dot
from kvproof.trace.itf import itf
from kvproof.trace.mermaid import mermaid
from kvproof.trace.trace import Trace

FORMS: dict[str, Callable[[Trace], str]] = {
    "pytest": export_test,
    "itf": itf,
    "mermaid": mermaid,
    "dot": lambda trace: dot(trace.scope),
}
"""A test that needs vLLM and nothing else, the Informal Trace Format, a sequence diagram, and the
state graph of the scope."""
