"""Text lines to messages: what ``tierlog load`` does to a log file, holding no more of it than one batch.

A line ends at LF or at the end of the file; one CR before it is dropped; an empty line is skipped and
counted. The body is the line's bytes as they are, valid UTF-8 or not; keys and tags are text, so a match on
undecodable bytes is a bad line. A bad line refuses its whole batch and is named by file and line number;
batches before it stay.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from tierlog.tiering.base.errors import InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.times import to_ms
from tierlog.tiering.message.batch import Message, MessageBatch, validate_born_ms, validate_topic

BATCH_LINES = 2_000
BATCH_BYTES = 4 << 20
STDIN = "-"
EPOCH_S = "epoch_s"
EPOCH_MS = "epoch_ms"
_DIRECTIVE = re.compile(r"%[-_0^#]?(.)")
_WITH_YEAR = frozenset("YyGcx")
_WITH_DAY = frozenset("djcxUWV")
_HINT = "FMT is a strptime format such as '%Y-%m-%d %H:%M:%S,%f', or epoch_s or epoch_ms"


class TimestampParser:
    """A parser of the time a log line says it was written, for ``load --born REGEX --born-format FMT``.

    Times are in ms UTC. It remembers the last one for lines that have none.
    """

    def __init__(self, pattern: re.Pattern[str], born_format: str, *, year: int | None, now_ms: int) -> None:
        """``year`` is for formats without one; ``now_ms`` for the lines before the first that has a time.

        Raises :class:`InvalidRequestError` for a format that leaves the day or the year open.
        """
        self._pattern = pattern
        self._format = born_format
        self._prefix = ""
        self._last_text: str | None = None
        self._last_ms = now_ms
        self._zone_name = False
        if born_format not in (EPOCH_S, EPOCH_MS):
            directives = set(_DIRECTIVE.findall(born_format))
            if not directives & _WITH_DAY:
                raise InvalidRequestError(f"the time format {born_format!r} has no day", hint=_HINT)
            if not directives & _WITH_YEAR:
                if year is None:
                    raise InvalidRequestError(
                        f"the time format {born_format!r} has no year", hint="say which with --year"
                    )
                if not 1970 <= year <= 9999:
                    raise InvalidRequestError(f"year {year} is not between 1970 and 9999")
                self._prefix, self._format = f"{year:04d} ", f"%Y {born_format}"
            self._zone_name = "Z" in directives

    def of_line(self, line: str) -> int:
        """Returns the line's time, or the previous line's; :class:`InvalidRequestError` if FMT cannot read it."""
        match = self._pattern.search(line)
        if match is None:
            return self._last_ms
        text = match[1] if self._pattern.groups else match[0]
        if text is not None and text != self._last_text:
            self._last_ms = self._parse(text)
            self._last_text = text
        return self._last_ms

    def _parse(self, text: str) -> int:
        try:
            if self._format in (EPOCH_S, EPOCH_MS):
                ms = _epoch_ms(text, 1000 if self._format == EPOCH_S else 1)
            else:
                ms = self._parse_format(text)
        except ValueError as error:
            raise InvalidRequestError(f"cannot read the born time {text[:60]!r}: {error}", hint=_HINT) from error
        if ms < 0:
            raise InvalidRequestError(f"the born time {text[:60]!r} is before 1970")
        return validate_born_ms(ms)

    def _parse_format(self, text: str) -> int:
        moment = datetime.strptime(self._prefix + text, self._format)
        if moment.tzinfo is None:
            if self._zone_name and not re.search(r"\b(?:UTC|GMT|Z)\b", text, re.IGNORECASE):
                # %Z also takes the name of this machine's zone and then forgets it
                raise ValueError("a zone name other than UTC or GMT says no offset; use %z")
            moment = moment.replace(tzinfo=UTC)
        return to_ms(moment)


def _epoch_ms(text: str, factor: int) -> int:
    match = re.fullmatch(r"\s*(\d{1,20})(?:[.,](\d+))?\s*", text)
    if match is None:
        raise ValueError("not a number")
    whole = int(match[1]) * factor
    return whole + int((match[2] or "0").ljust(3, "0")[:3]) if factor == 1000 else whole


@dataclass(frozen=True, slots=True)
class LineRules:
    """The rules by which a line becomes a message. Patterns are searched in the line's text."""

    topic: str
    keys: Sequence[re.Pattern[str]] = ()
    tag: re.Pattern[str] | None = None
    born: TimestampParser | None = None
    max_body_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        validate_topic(self.topic)


@dataclass(slots=True)
class LoadReport:
    """The progress so far: acknowledged ``messages`` in ``batches``, their body ``bytes``, empty lines skipped."""

    messages: int = 0
    skipped_empty: int = 0
    batches: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that are appended together and the (file, line number from 1) that each came from."""

    messages: list[Message] = field(default_factory=list)
    lines: list[tuple[str, int]] = field(default_factory=list)


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of the command line; :class:`InvalidRequestError` if it is none."""
    try:
        return re.compile(text)
    except re.error as error:
        raise InvalidRequestError(f"bad pattern {text!r}: {error}", hint="Python's regular expressions") from error


def load(
    batches: Iterable[Batch],
    append: Callable[[Sequence[Message]], object],
    *,
    report: LoadReport,
    acknowledged: Callable[[Batch], None] = lambda batch: None,
) -> None:
    """Appends every batch in order; ``report`` and ``acknowledged`` follow each one that ``append`` returned for.

    An error of ``append`` that names a message by its place is raised again with that message's file and line.
    """
    for batch in batches:
        with _naming_the_line(batch):
            append(batch.messages)
        report.messages += len(batch.messages)
        report.batches += 1
        report.bytes += sum(len(message.body) for message in batch.messages)
        acknowledged(batch)


def check_batch(batch: Batch, max_body_bytes: int) -> None:
    """Raises what appending would raise about the messages themselves, with the line named; writes nothing."""
    with _naming_the_line(batch):
        MessageBatch.of(batch.messages, now_ms=0, max_body_bytes=max_body_bytes)


def batches_of(
    files: Sequence[str],
    rules: LineRules,
    report: LoadReport,
    read: Callable[[int], None] = lambda count: None,
) -> Iterator[Batch]:
    """Yields batches over all files in order; ``read`` is told the bytes of every line, so that a bar can move."""
    return batches_of_lines(_lines(files, rules.max_body_bytes, read), rules, report)


def batches_of_lines(lines: Iterable[tuple[str, int, bytes]], rules: LineRules, report: LoadReport) -> Iterator[Batch]:
    """Yields batches of at most 2,000 lines and about 4 MiB of bodies out of (file, line number, line with its end).

    Raises :class:`InvalidRequestError` naming the first bad line; :class:`MessageTooLargeError` for one over the
    limit, of which no more than that is read.
    """
    batch, size = Batch(), 0
    for name, number, raw in lines:
        body = _strip_end(raw)
        if len(body) > rules.max_body_bytes:
            raise MessageTooLargeError(
                f"{_place(name, number)}: the line is over the limit of {rules.max_body_bytes} bytes",
                hint="hot.max_body_bytes is the setting",
            )
        if not body:
            report.skipped_empty += 1
            continue
        if batch.messages and (len(batch.messages) >= BATCH_LINES or size + len(body) > BATCH_BYTES):
            yield batch
            batch, size = Batch(), 0
        try:
            batch.messages.append(_message(body, rules))
        except InvalidRequestError as error:
            raise type(error)(f"{_place(name, number)}: {error.message}", hint=error.hint) from error
        batch.lines.append((name, number))
        size += len(body)
    if batch.messages:
        yield batch


def check_files(files: Sequence[str]) -> int | None:
    """Counts all bytes, None if standard input is in; :class:`InvalidRequestError` for a file that cannot be read."""
    total: int | None = 0
    for name in files:
        if name == STDIN:
            total = None
            continue
        with _opened(name) as stream:
            if total is not None:
                total += stream.seek(0, 2) if stream.seekable() else 0
    return total


def _lines(files: Sequence[str], max_body_bytes: int, read: Callable[[int], None]) -> Iterator[tuple[str, int, bytes]]:
    for name in files:
        with _opened(name) as stream:
            number = 0
            # A body of the limit, CR and LF; a longer read shows the line to be too long, wherever it ends.
            while raw := stream.readline(max_body_bytes + 2):
                number += 1
                read(len(raw))
                yield name, number, raw


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == STDIN:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(name).open("rb"))
        except OSError as error:
            raise InvalidRequestError(f"cannot read {name}: {error.strerror}") from error
        yield stream


def _strip_end(raw: bytes) -> bytes:
    body = raw[:-1] if raw.endswith(b"\n") else raw
    return body[:-1] if body.endswith(b"\r") else body


def _message(body: bytes, rules: LineRules) -> Message:
    text = body.decode("utf-8", "surrogateescape")
    return Message(
        rules.topic,
        body,
        keys=list(dict.fromkeys(_readable(found, "key") for pattern in rules.keys for found in _found(pattern, text))),
        tag=_readable(next(_found(rules.tag, text), ""), "tag") if rules.tag else "",
        born_ms=rules.born.of_line(text) if rules.born else None,
    )


def _found(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Returns the first group of every match, or all of it; a match in which the group took no part gives nothing."""
    for match in pattern.finditer(text):
        found = match[1] if pattern.groups else match[0]
        if found is not None:
            yield found


def _readable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the {what} {text[:100]!r} is not valid UTF-8") from error
    return text


def _place(name: str, number: int) -> str:
    return f"{'standard input' if name == STDIN else name}, line {number}"


@contextmanager
def _naming_the_line(batch: Batch) -> Iterator[None]:
    try:
        yield
    except InvalidRequestError as error:
        if error.position is None or error.path is not None or not 0 <= error.position < len(batch.lines):
            raise
        text = error.message.removeprefix(f"message {error.position}: ")
        raise type(error)(f"{_place(*batch.lines[error.position])}: {text}", hint=error.hint) from error
