"""`kvproof findings`: what vLLM itself gets wrong."""

from __future__ import annotations

from kvproof.cli.console import Json, out, print_json, titled
from kvproof.spec.findings import FINDINGS


def command(as_json: Json = False) -> None:
    """List the open findings on vLLM 0.31.0."""
    if as_json:
        rows = [
            {"id": f.id, "title": f.title, "broken": f.broken.name, "reachable": f.reachable}
            for f in FINDINGS
        ]
        print_json("findings", rows)
        return
    for finding in FINDINGS:
        out.print(titled(finding.id, f" ({finding.broken.name})  {finding.title}"))
