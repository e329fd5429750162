"""kvproof: a model checker for the vLLM v1 scheduler and its paged KV cache.

>>> import kvproof
>>> kvproof.check("two-equal").outcome
'holds'

The names below are loaded when they are first used; kvproof/api.py has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof.api import (
        SCOPES as SCOPES,
    )
    from kvproof.api import (
        Action as Action,
    )
    from kvproof.api import (
        Check as Check,
    )
    from kvproof.api import (
        External as External,
    )
    from kvproof.api import (
        KvproofError as KvproofError,
    )
    from kvproof.api import (
        Lasso as Lasso,
    )
    from kvproof.api import (
        ProgressCheck as ProgressCheck,
    )
    from kvproof.api import (
        Proof as Proof,
    )
    from kvproof.api import (
        Replay as Replay,
    )
    from kvproof.api import (
        RequestSpec as RequestSpec,
    )
    from kvproof.api import (
        Run as Run,
    )
    from kvproof.api import (
        Scope as Scope,
    )
    from kvproof.api import (
        Trace as Trace,
    )
    from kvproof.api import (
        check as check,
    )
    from kvproof.api import (
        check_progress as check_progress,
    )
    from kvproof.api import (
        export as export,
    )
    from kvproof.api import (
        load as load,
    )
    from kvproof.api import (
        load_scope as load_scope,
    )
    from kvproof.api import (
        lockstep as lockstep,
    )
    from kvproof.api import (
        minimize as minimize,
    )
    from kvproof.api import (
        prove as prove,
    )
    from kvproof.api import (
        random_runs as random_runs,
    )
    from kvproof.api import (
        replay as replay,
    )
    from kvproof.api import (
        save as save,
    )

__version__ = "0.1.0"

__all__ = [
    "SCOPES",
    "Action",
    "Check",
    "External",
    "KvproofError",
    "Lasso",
    "ProgressCheck",
    "Proof",
    "Replay",
    "RequestSpec",
    "Run",
    "Scope",
    "Trace",
    "__version__",
    "check",
    "check_progress",
    "export",
    "load",
    "load_scope",
    "lockstep",
    "minimize",
    "prove",
    "random_runs",
    "replay",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvproof import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
