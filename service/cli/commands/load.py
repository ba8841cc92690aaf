"""``tierlog load``: text lines to messages."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.errors import say, say_error
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import Stopped, stop_flag
from tierlog.service.cli.targets import Writer, open_writer, settings_of
from tierlog.service.exit_codes import DONE, exit_code
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import ForbiddenError, InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.progress_bar import bar
from tierlog.tiering.base.types import Durability

if TYPE_CHECKING:
    from tierlog.service.cli.line_loader import Batch, LineRules, LoadReport
    from tierlog.service.config.settings import Settings

HELP = "append the lines of text files as messages"
EXAMPLES = (
    (
        "keys, and when a line was written, out of its text",
        "tierlog load app.log --topic app --key 'id=(\\w+)' "
        "--born '^\\S+' --born-format '%Y-%m-%dT%H:%M:%S' --root ./store",
    ),
    (
        "standard input to a running service",
        "journalctl --since today | tierlog load - --topic journal --url http://127.0.0.1:8080",
    ),
)
_QUEUES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which files, and how a line becomes a message."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="text file, or - for standard input")
    parser.add_argument("--topic", required=True, metavar="T")
    parser.add_argument(
        "--key", action="append", default=[], metavar="REGEX",
        help="keys of a line: the first group of every match, or all of it",
    )  # fmt: skip
    parser.add_argument("--tag", metavar="REGEX", help="tag of a line: the first match")
    parser.add_argument("--born", metavar="REGEX", help="where a line says when it was written")
    parser.add_argument(
        "--born-format", metavar="FMT",
        help="how it says that: a strptime format, epoch_s or epoch_ms; UTC unless the format has a zone",
    )  # fmt: skip
    parser.add_argument("--year", type=int, metavar="N", help="the year, for a format without one")
    parser.add_argument("--queues", type=int, metavar="N", help=f"queues of the topic, {_QUEUES} for a new one")
    parser.add_argument(
        "--durability", choices=[each.value for each in Durability], default=Durability.FLUSHED.value,
        help="what a batch waits for: nothing (async), the disk (flushed), or the archive as well (archived)",
    )  # fmt: skip
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary last, also when a bad line ends the load: what it counts is acknowledged and stays."""
    from tierlog.service.cli.line_loader import LoadReport, check_files

    clock = SystemClock()
    settings = settings_of(arguments)
    rules = _rules(arguments, settings, clock.now_ms())
    total = check_files(arguments.files)
    report, began_s = LoadReport(), clock.monotonic_s()
    failure: StoreError | None = None
    with stop_flag() as stop, open_writer(arguments, make=True, start=True) as target:
        try:
            with bar("bytes", "loading") as move:
                read_bytes = 0

                def read(count: int) -> None:
                    nonlocal read_bytes
                    read_bytes += count
                    move(read_bytes, total or 0)

                _load(target, arguments, rules=rules, settings=settings, report=report, stop=stop, read=read)
        except StoreError as error:
            failure = error
        except Stopped:
            failure = StoreError("stopped", hint="load the rest of the lines to go on")
    summary: dict[str, object] = {
        "messages": report.messages,
        "skipped_empty": report.skipped_empty,
        "batches": report.batches,
        "bytes": report.bytes,
        "seconds": round(clock.monotonic_s() - began_s, 3),
    }
    if failure is not None:
        summary["error"] = str(failure)
        if arguments.format in ("json", "ndjson"):
            say_error(failure, arguments.format)
        else:
            say(f"{failure}; {report.messages} messages before were acknowledged and stay")
    print_document(summary, OutputStyle.of(arguments))
    return DONE if failure is None else exit_code(failure)


def _rules(arguments: argparse.Namespace, settings: Settings, now_ms: int) -> LineRules:
    from tierlog.service.cli.line_loader import LineRules, TimestampParser, compile_pattern

    if (arguments.born is None) != (arguments.born_format is None):
        raise InvalidRequestError("--born and --born-format go together")
    if arguments.year is not None and arguments.born is None:
        raise InvalidRequestError("--year needs --born and --born-format")
    if arguments.queues is not None and not 1 <= arguments.queues <= 1024:
        raise InvalidRequestError(f"a topic has 1 to 1024 queues, not {arguments.queues}")
    born = None
    if arguments.born is not None:
        pattern = compile_pattern(arguments.born)
        born = TimestampParser(pattern, arguments.born_format, year=arguments.year, now_ms=now_ms)
    return LineRules(
        arguments.topic,
        [compile_pattern(text) for text in arguments.key],
        None if arguments.tag is None else compile_pattern(arguments.tag),
        born,
        settings.hot.max_body_bytes,
    )


def _load(
    target: Writer,
    arguments: argparse.Namespace,
    *,
    rules: LineRules,
    settings: Settings,
    report: LoadReport,
    stop: threading.Event,
    read: Callable[[int], None],
) -> None:
    from tierlog.service.cli.line_loader import batches_of, check_batch, load

    def until_stopped() -> Iterator[Batch]:
        for batch in batches_of(arguments.files, rules, report, read):
            if stop.is_set():
                raise Stopped
            if not report.batches:
                # found before the topic is made: a load that is refused at once has changed nothing
                check_batch(batch, rules.max_body_bytes)
                try:
                    _prepare_topic(target, arguments, settings)
                except ForbiddenError:  # a token that may only append: the first message makes the topic
                    if arguments.queues is not None:
                        raise
            yield batch

    load(until_stopped(), partial(target.append, durability=Durability(arguments.durability)), report=report)


def _prepare_topic(target: Writer, arguments: argparse.Namespace, settings: Settings) -> None:
    queues = target.queues_of(arguments.topic)
    if arguments.queues is not None:
        if queues != arguments.queues:
            target.create_topic(arguments.topic, arguments.queues)
    elif queues is None:
        if not settings.create_topics:
            raise TopicNotFoundError(f"no such topic {arguments.topic!r}", hint="make it with --queues N")
        target.create_topic(arguments.topic, _QUEUES)
