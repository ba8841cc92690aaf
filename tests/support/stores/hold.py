"""Makes a call wait in the middle of something, so that a test can look at what others do meanwhile."""

from __future__ import annotations

import threading

_HOLD_LIMIT_S = 60.0


class Hold:
    """A call that waits: the test sees that it has come, and lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    def wait_until_reached(self) -> None:
        """Return when a call is waiting here; fail if none comes within a minute."""
        assert self.reached.wait(_HOLD_LIMIT_S), "no call came to the hold"

    def stop_here(self) -> None:
        """Called in place of the held call: wait until the test says so."""
        self.reached.set()
        assert self.released.wait(_HOLD_LIMIT_S), "the test never released the hold"

    def release(self) -> None:
        """Let the call go on, and all later ones pass."""
        self.released.set()
