"""``tierlog archive``: put what is rolled, or everything, into the archive now."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, TIMES, add_format, add_target, asked_times
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import run_stoppable, stop_flag, stopping_at
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.progress_bar import bar

if TYPE_CHECKING:
    from tierlog.service.cli.targets import Reader
    from tierlog.tiering.base.progress_bar import Progress

HELP = "roll, seal and publish now; answer when it is published"
EXAMPLES = (
    (
        "everything, and only the archive keeps it",
        "tierlog archive --all --drop-hot --url http://127.0.0.1:8080",
    ),
    (
        "what was stored before March",
        "tierlog archive --until 2026-03-01 --root ./store",
    ),
)
_INTERVAL_S = 1.0


@contextlib.contextmanager
def archive_progress(target: Reader) -> Iterator[Progress]:
    """Yields a bar of segments, moved by a store opened here, or of bytes, moved by the statistics of a service."""
    from tierlog.service.cli.remote import RemoteTarget

    if not isinstance(target, RemoteTarget):
        with bar("segments", "archiving") as move:
            yield move
        return
    with bar("bytes", "archiving") as move:
        ended = threading.Event()
        if sys.stderr.isatty():
            threading.Thread(target=_poll, args=(target, move, ended), daemon=True, name="tierlog-progress").start()
        try:
            yield lambda done, of: None
        finally:
            ended.set()


def _poll(target: Reader, move: Callable[[int, int], None], ended: threading.Event) -> None:
    """Shows by how much what is not archived yet has shrunk, until told to end or not answered."""
    most = 0
    with contextlib.suppress(StoreError):  # decoration: callers without the right to statistics see no bar
        while not ended.is_set():
            left = target.stats().get("unarchived_bytes")
            if not isinstance(left, int):
                return
            most = max(most, left)
            move(most - left, most)
            ended.wait(_INTERVAL_S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds how much to archive, and whether the hot copies go."""
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--until", metavar="T", help=f"what was stored before this time: {TIMES}")
    much.add_argument("--all", action="store_true", help="everything, the active segment too")
    parser.add_argument("--drop-hot", action="store_true", help="then remove the hot copies of what is archived")
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary; stopped, it leaves what is published and can be run again."""
    (until_ms,) = asked_times(arguments, "until")
    with stop_flag() as stop, open_writer(arguments) as target, archive_progress(target) as move:
        progress = stopping_at(move, stop)
        report = run_stoppable(
            lambda: target.archive(
                until_ms=until_ms, everything=arguments.all, drop_hot=arguments.drop_hot, progress=progress
            ),
            stop,
        )
    print_document(report, OutputStyle.of(arguments))
    return DONE
