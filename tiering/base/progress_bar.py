"""Shows the progress of long work on a terminal; in a pipe nothing is written."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

#: Is told what is done, and of how much; 0 if that is not known.
Progress = Callable[[int, int], None]

#: Work that takes less shows nothing.
_PATIENCE_S = 0.5


@contextlib.contextmanager
def bar(unit: str, label: str = "") -> Iterator[Progress]:
    """A bar on a terminal, to be called with (done, of) from any thread; ``of`` 0 means unknown.

    Unit ``bytes`` is scaled.
    """
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    unit = unit.strip()
    with _progress(is_bytes=unit == "bytes", unit=unit) as shown:
        task = shown.add_task(label or "working", total=None)

        def move(done: int, of: int) -> None:
            shown.update(task, completed=done, total=of or None)

        yield move


@contextlib.contextmanager
def spinner(label: str) -> Iterator[None]:
    """A sign of life on a terminal while something is waited for longer than half a second; gone afterwards."""
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        yield
        return
    with contextlib.ExitStack() as running:
        ended, lock = threading.Event(), threading.Lock()

        def begin() -> None:
            with lock:
                if not ended.is_set():
                    running.enter_context(_console().status(label))

        timer = threading.Timer(_PATIENCE_S, begin)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with lock:
                ended.set()


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _progress(*, is_bytes: bool, unit: str) -> Bar:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount: list[ProgressColumn | str]
    if is_bytes:
        amount = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
    else:
        amount = [MofNCompleteColumn(), TextColumn(unit)]
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *amount,
        TimeElapsedColumn(), TimeRemainingColumn(), console=_console(), transient=True,
    )  # fmt: skip
