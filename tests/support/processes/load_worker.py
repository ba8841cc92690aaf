"""A process that runs ``tierlog load`` again and again, and dies by SIGKILL at a chosen call in each run.

``python -m tests.support.processes.load_worker`` reads one JSON request a line, forks a child for each, and answers
with the child's wait status once it is dead. Calls that change a disk count, those of the store as well as those of the
load's record, and so does each request to a service: once before it is sent and once when it was answered.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.processes.kill_worker import CHANGING_CALLS, Countdown
from tierlog.service.cli import line_loader, load_progress
from tierlog.service.main import main as run_command
from tierlog.tiering.base import fs
from tierlog.tiering.remote.http_client import HttpClient


def count_calls(kind: Any, name: str, countdown: Countdown, *, answers: bool = False) -> None:
    """Counts every call of a method, and with ``answers`` also that it returned."""
    real: Callable[..., Any] = getattr(kind, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        countdown.step()
        found = real(*args, **kwargs)
        if answers:
            countdown.step()
        return found

    setattr(kind, name, counted)


def work(argv: list[str], kill_at: int, save_s: float, stdin: str | None) -> int:
    """Run the command in batches of 25 lines, recorded every ``save_s``."""
    countdown = Countdown(kill_at)
    for name in CHANGING_CALLS & set(dir(fs.LocalFileSystem)):
        count_calls(fs.LocalFileSystem, name, countdown)
    for name in ("write_at", "flush"):
        count_calls(fs._LocalFile, name, countdown)
    count_calls(HttpClient, "ask", countdown, answers=True)
    line_loader.BATCH_LINES = 25
    load_progress._SAVE_S = save_s
    if stdin is None:
        return run_command(argv)
    with Path(stdin).open() as sys.stdin:
        return run_command(argv)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                code = work(request["argv"], request["kill_at"], request["save_s"], request["stdin"])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
