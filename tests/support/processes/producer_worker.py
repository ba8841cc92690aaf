"""A process that sends numbered messages to a store over HTTP until the store's process is killed: the store's part.

``python -m tests.support.processes.producer_worker`` reads one JSON request a line: ``folder``, ``port``, ``kill_at``.
It forks a child (everything is imported and compiled by then) that serves the store and kills itself at that call to
the disk or between an append and its answer, tells the child's wait status once it is dead, and goes on with the next
line.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support.processes.kill_worker import CHANGING_CALLS, Countdown, Counted
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.message.batch import Message


class KilledBeforeItAnswers(Store):
    """Appends, and counts that as a call too: the messages are durable and nobody was told."""

    countdown: Countdown

    def append(self, *args: Any, **kwargs: Any) -> Any:
        results = super().append(*args, **kwargs)
        self.countdown.step()
        return results


def serve(folder: Path, port: int, kill_at: int) -> None:
    """Serve until killed."""
    countdown = Countdown(kill_at)
    settings = tiny_settings(hot__flush_interval_ms=5, hot__checkpoint_interval_ms=20, hot__retention_ms=0)
    engine = KilledBeforeItAnswers.open(
        folder / "store", settings=settings, cold_url=f"file://{folder}/cold",
        fs=Counted(LocalFileSystem(), countdown, CHANGING_CALLS),
    )  # fmt: skip
    engine.countdown = countdown  # type: ignore[attr-defined]
    engine.start()
    with served(engine, settings, port=port):
        while True:
            engine._clock.wait(engine._background._stopping, 60)


def main() -> None:
    """Answer requests until there are no more."""
    warm = Store.open(Path(sys.argv[1]) / "warm", settings=tiny_settings(), clock=SystemClock())
    warm.append([Message("t", b"x", ["k"])])
    warm.close()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                serve(Path(request["folder"]), request["port"], request["kill_at"])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
