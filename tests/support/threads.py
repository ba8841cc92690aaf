"""Background threads of the product, by their names."""

from __future__ import annotations

import threading


def wait_for_threads(name: str) -> None:
    """Wait until the threads with this name that run now have ended, 10 s for each."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)
