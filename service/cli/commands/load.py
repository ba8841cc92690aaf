"""``tierlog load``: text lines to messages."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.errors import say, say_error
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import Stopped, stop_flag
from tierlog.service.cli.targets import Writer, open_writer, settings_of
from tierlog.service.exit_codes import DONE, NOTHING, exit_code
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import (
    ForbiddenError,
    InvalidRequestError,
    KeyReusedError,
    StoreError,
    TopicNotFoundError,
)
from tierlog.tiering.base.progress_bar import bar
from tierlog.tiering.base.types import Durability

if TYPE_CHECKING:
    from tierlog.service.cli.line_loader import Batch, LineRules, LoadReport
    from tierlog.service.cli.load_progress import LoadProgress
    from tierlog.service.config.settings import Settings
    from tierlog.tiering.message.batch import Message

HELP = "append the lines of text files as messages"
EXAMPLES = (
    (
        "keys, and when a line was written, out of its text",
        "tierlog load app.log --topic app --key 'id=(\\w+)' "
        "--born '^\\S+' --born-format '%Y-%m-%dT%H:%M:%S' --root ./store",
    ),
    (
        "lines of JSON, keys out of their fields",
        "tierlog load orders.jsonl --topic orders --json-key order.id --json-key customer --json-born time "
        "--root ./store",
    ),
    (
        "stack traces with the line before them; after a failure the same command goes on",
        "tierlog load app.log --topic traces --continues '^\\s' --resume app.progress --root ./store",
    ),
    (
        "standard input to a running service",
        "journalctl --since today | tierlog load - --topic journal --url http://127.0.0.1:8080",
    ),
)
_QUEUES = 4
_LIMIT = re.compile(r"(\d{1,18})|(\d{1,3}(?:\.\d{1,6})?)%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which files, and how a line becomes a message."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="text file, plain, gzip or zstd; - for standard input")
    parser.add_argument("--topic", required=True, metavar="T")
    parser.add_argument(
        "--key", action="append", default=[], metavar="REGEX",
        help="keys of a line: the first group of every match, or all of it",
    )  # fmt: skip
    parser.add_argument("--tag", metavar="REGEX", help="tag of a line: the first match")
    parser.add_argument("--born", metavar="REGEX", help="where a line says when it was written")
    parser.add_argument(
        "--born-format", metavar="FMT",
        help="how it says that: a strptime format, rfc3339, epoch_s or epoch_ms; UTC unless the format has a zone",
    )  # fmt: skip
    parser.add_argument("--year", type=int, metavar="N", help="the year, for a format without one")
    parser.add_argument(
        "--json-key", action="append", default=[], metavar="FIELD",
        help="keys of a line that is a JSON object: a field such as order.id; strings, numbers, or lists of them",
    )  # fmt: skip
    parser.add_argument("--json-tag", metavar="FIELD", help="tag of such a line")
    parser.add_argument(
        "--json-born", metavar="FIELD", help="when such a line was written: RFC 3339 or ms unless --born-format says"
    )
    parser.add_argument(
        "--continues", metavar="REGEX", help="a line that matches belongs to the message before it, as of a stack trace"
    )
    parser.add_argument(
        "--max-unmatched", metavar="N|N%",
        help="end with 1 if more lines have no key, no time or no tag that was asked for; "
        "unless told, if a pattern or field was found in no line at all",
    )  # fmt: skip
    parser.add_argument("--text", action="store_true", help="take files for text, whatever they look like")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE",
        help="keep in FILE how far the load has come; the same command appends exactly the rest",
    )  # fmt: skip
    parser.add_argument("--queues", type=int, metavar="N", help=f"queues of the topic, {_QUEUES} for a new one")
    parser.add_argument(
        "--durability", choices=[each.value for each in Durability], default=Durability.FLUSHED.value,
        help="what a batch waits for: nothing (async), the disk (flushed), or the archive as well (archived)",
    )  # fmt: skip
    add_format(parser, forms=DOCUMENT_FORMS)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary last, also when a bad line ends the load: what it counts is acknowledged and stays."""
    from tierlog.service.cli.line_loader import LoadReport
    from tierlog.service.cli.line_sources import check_files

    clock = SystemClock()
    settings = settings_of(arguments)
    _check(arguments)
    limit = _unmatched_limit(arguments.max_unmatched)
    progress = _progress(arguments, clock)
    rules = _rules(arguments, settings, clock.now_ms() if progress is None else progress.born_ms)
    total = check_files(arguments.files, is_text=arguments.text)
    report = LoadReport() if progress is None else progress.report
    before, began_s = report.messages, clock.monotonic_s()
    failure: StoreError | None = None
    with stop_flag() as stop, open_writer(arguments, make=True, start=True) as target:
        loading = _Loading(target, arguments, settings, rules, report, progress)
        try:
            with bar("bytes", "loading") as move:
                read_bytes = 0

                def read(count: int) -> None:
                    nonlocal read_bytes
                    read_bytes += count
                    move(read_bytes, total or 0)

                loading.run(stop, read)
        except StoreError as error:
            failure = error
        except Stopped:
            hint = "load the rest of the lines to go on" if progress is None else "the same command goes on"
            failure = StoreError("stopped", hint=hint)
    summary = _summary(report, rules)
    summary["seconds"] = round(clock.monotonic_s() - began_s, 3)
    if progress is not None:
        summary["resumed_at"] = before
    if failure is not None:
        summary["error"] = str(failure)
        if arguments.format in ("json", "ndjson"):
            say_error(failure, arguments.format)
        else:
            say(f"{failure}; {report.messages} messages before were acknowledged and stay")
    print_document(summary, OutputStyle.of(arguments))
    if failure is not None:
        return exit_code(failure)
    unmatched = _unmatched(report, rules, limit)
    for words in unmatched:
        say(f"{words}; the messages are there all the same")
    return NOTHING if unmatched else DONE


def _check(arguments: argparse.Namespace) -> None:
    """Refuses flags that do not go together."""
    if (arguments.born is None) != (arguments.born_format is None) and arguments.json_born is None:
        raise InvalidRequestError("--born and --born-format go together")
    if arguments.year is not None and arguments.born_format is None:
        raise InvalidRequestError("--year needs --born and --born-format")
    for name in ("born", "tag"):
        if getattr(arguments, name) is not None and getattr(arguments, f"json_{name}") is not None:
            raise InvalidRequestError(f"give either --{name} or --json-{name}")
    if arguments.queues is not None and not 1 <= arguments.queues <= 1024:
        raise InvalidRequestError(f"a topic has 1 to 1024 queues, not {arguments.queues}")
    if arguments.resume is not None and arguments.durability == Durability.ASYNC.value:
        raise InvalidRequestError(
            "--resume needs --durability flushed or archived",
            hint="a power cut may take back what was acknowledged as async, and the record would not know",
        )


def _unmatched_limit(text: str | None) -> tuple[int, float] | None:
    """Reads --max-unmatched: so many lines, and such a share of them."""
    if text is None:
        return None
    found = _LIMIT.fullmatch(text.strip())
    if found is None or (found[2] and float(found[2]) > 100):
        raise InvalidRequestError(f"bad --max-unmatched {text!r}", hint="a number of lines, or a share such as 5%")
    return (int(found[1]), 0.0) if found[1] else (0, float(found[2]) / 100)


def _rules(arguments: argparse.Namespace, settings: Settings, now_ms: int) -> LineRules:
    from tierlog.service.cli.line_loader import RFC_3339, JsonField, LineRules, TimestampParser, compile_pattern

    born = None
    if arguments.born is not None or arguments.json_born is not None:
        pattern = None if arguments.born is None else compile_pattern(arguments.born)
        born = TimestampParser(pattern, arguments.born_format or RFC_3339, year=arguments.year, now_ms=now_ms)
    return LineRules(
        arguments.topic,
        [compile_pattern(text) for text in arguments.key],
        None if arguments.tag is None else compile_pattern(arguments.tag),
        born,
        settings.hot.max_body_bytes,
        continues=None if arguments.continues is None else compile_pattern(arguments.continues),
        json_keys=[JsonField(path) for path in arguments.json_key],
        json_tag=None if arguments.json_tag is None else JsonField(arguments.json_tag),
        json_born=None if arguments.json_born is None else JsonField(arguments.json_born),
        is_text=arguments.text,
    )


def _progress(arguments: argparse.Namespace, clock: SystemClock) -> LoadProgress | None:
    if arguments.resume is None:
        return None
    from tierlog.service.cli.load_progress import LoadProgress
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.randomness import SystemRandomness

    same = (
        "files", "topic", "key", "tag", "born", "born_format", "year", "json_key", "json_tag", "json_born", "continues",
    )  # fmt: skip
    load = {name: getattr(arguments, name) for name in same}
    return LoadProgress.open(LocalFileSystem(), arguments.resume, clock, SystemRandomness(), load)


@dataclass(slots=True)
class _Loading:
    """One run of a load."""

    target: Writer
    arguments: argparse.Namespace
    settings: Settings
    rules: LineRules
    report: LoadReport
    progress: LoadProgress | None
    is_begun: bool = False
    stored_ms: int | None = None
    """The store time of the batch that was appended last."""

    def run(self, stop: threading.Event, read: Callable[[int], None]) -> None:
        """Appends everything, and says in the record of a load that can be resumed how it ended."""
        from tierlog.service.cli.line_loader import load

        is_settled, is_complete = False, False
        try:
            load(self._batches(stop, read), self._append, report=self.report, acknowledged=self._acknowledged)
            is_settled = is_complete = True
        except (InvalidRequestError, Stopped):  # which was refused, or before anything was sent
            is_settled = True
            raise
        finally:
            if self.progress is not None:
                self.progress.end(is_settled=is_settled, is_complete=is_complete)

    def _batches(self, stop: threading.Event, read: Callable[[int], None]) -> Iterator[Batch]:
        from tierlog.service.cli.line_loader import batches_of, check_batch

        positions = None if self.progress is None else self.progress.files
        for batch in batches_of(self.arguments.files, self.rules, read, positions=positions):
            if stop.is_set():
                raise Stopped
            if batch.messages and not self.is_begun:
                # found before the topic is made: a load that is refused at once has changed nothing
                check_batch(batch, self.rules.max_body_bytes)
                self._begin()
                self.is_begun = True
            yield batch

    def _begin(self) -> None:
        """Makes the topic, and the record of a load that can be resumed."""
        target, topic, progress = self.target, self.arguments.topic, self.progress
        if progress is not None:
            home = progress.store_id or target.home_of(topic)
            target.only_store(home)
        try:
            _prepare_topic(target, self.arguments, self.settings)
        except ForbiddenError:  # a token that may only append: the first message makes the topic
            if self.arguments.queues is not None:
                raise
        if progress is not None:
            # a service that does not tell its window is taken to have forgotten
            told = {} if progress.is_sure else target.stats()
            progress.begin(
                target.home_of(topic),
                window_from_ms=told.get("produce_window_from_ms"),
                window_ms=told.get("produce_window_ms", 0),
            )

    def _append(self, messages: Sequence[Message]) -> None:
        key = None if self.progress is None else self.progress.key
        try:
            self.stored_ms = self.target.append(messages, Durability(self.arguments.durability), key)
        except KeyReusedError as error:
            raise InvalidRequestError(
                "an earlier run of this load has sent another line in this place",
                position=error.position,
                hint="a load goes on only where its files are what they were, or have only grown",
            ) from error

    def _acknowledged(self, batch: Batch) -> None:
        if self.progress is not None:
            self.progress.acknowledged(batch, self.stored_ms)


def _prepare_topic(target: Writer, arguments: argparse.Namespace, settings: Settings) -> None:
    queues = target.queues_of(arguments.topic)
    if arguments.queues is not None:
        if queues != arguments.queues:
            target.create_topic(arguments.topic, arguments.queues)
    elif queues is None:
        if not settings.create_topics:
            raise TopicNotFoundError(f"no such topic {arguments.topic!r}", hint="make it with --queues N")
        target.create_topic(arguments.topic, _QUEUES)


def _lacking(report: LoadReport, rules: LineRules) -> dict[str, int]:
    """Returns how many messages lack what was asked for, by its name."""
    asked = {
        "key": (rules.keys or rules.json_keys, report.without_key),
        "time": (rules.born, report.without_time),
        "tag": (rules.tag or rules.json_tag, report.without_tag),
    }
    return {name: count for name, (is_asked, count) in asked.items() if is_asked}


def _summary(report: LoadReport, rules: LineRules) -> dict[str, object]:
    found: dict[str, object] = {
        "messages": report.messages,
        "skipped_empty": report.skipped_empty,
        "batches": report.batches,
        "bytes": report.bytes,
    }
    if rules.continues is not None:
        found["continued"] = report.continued
    found |= {f"without_{name}": count for name, count in _lacking(report, rules).items()}
    if rules.wants_json:
        found["not_json"] = report.not_json
    return found


def _unmatched(report: LoadReport, rules: LineRules, limit: tuple[int, float] | None) -> list[str]:
    """Says what was found in too few lines: more lack it than the limit allows, or all do where there is none."""
    if not report.messages:
        return []
    if limit is None:
        return [f"no line has what {flag} asks for" for name, flag in rules.asked.items() if name not in report.matched]
    most = max(limit[0], limit[1] * report.messages)
    return [
        f"{count} of {report.messages} lines have no {name}, more than --max-unmatched allows"
        for name, count in _lacking(report, rules).items()
        if count > most
    ]
