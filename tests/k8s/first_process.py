"""The first process of the cluster's own process namespace: takes over orphans, and takes all down with it.

Run by its path, with nothing but Python's own modules. It lives until its standard input ends, which is when whoever
started it closes the pipe or dies; the kernel then ends every other process of the namespace, and with the last one go
its mounts and its network.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def _take_over(_signal: int, _frame: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def main() -> None:
    """Say ``ready``, then wait for the end of standard input."""
    signal.signal(signal.SIGCHLD, _take_over)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    print("ready", flush=True)
    while sys.stdin.buffer.read(1):
        pass


if __name__ == "__main__":
    main()
