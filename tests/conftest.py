"""What the tests of the tool share."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs that tests start can be interrupted, even where pytest itself was told to ignore it.

    A shell without job control starts what runs in the background with SIGINT ignored, and a
    process hands that on to those it starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
