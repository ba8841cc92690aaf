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
from pathlib import Path
from typing import BinaryIO

from service.born import BornTimes
from tiering.batch import Message, MessageBatch, validate_topic
from tiering.errors import InvalidRequestError, MessageTooLargeError

BATCH_LINES = 2_000
BATCH_BYTES = 4 << 20
STDIN = "-"


@dataclass(frozen=True, slots=True)
class LineRules:
    """How a line becomes a message. Patterns are searched in the line's text."""

    topic: str
    keys: Sequence[re.Pattern[str]] = ()
    tag: re.Pattern[str] | None = None
    born: BornTimes | None = None
    max_body_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        validate_topic(self.topic)


@dataclass(slots=True)
class LoadReport:
    """What was done so far: acknowledged ``messages`` in ``batches``, their body ``bytes``, empty lines skipped."""

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
    """A pattern of the command line; :class:`InvalidRequestError` if it is none."""
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
    """Append every batch in order; ``report`` and ``acknowledged`` follow each one that ``append`` returned for.

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
    """Raise what appending would raise about the messages themselves, with the line named; writes nothing."""
    with _naming_the_line(batch):
        MessageBatch.of(batch.messages, now_ms=0, max_body_bytes=max_body_bytes)


def batches_of(
    files: Sequence[str],
    rules: LineRules,
    report: LoadReport,
    read: Callable[[int], None] = lambda count: None,
) -> Iterator[Batch]:
    """Batches over all files in order; ``read`` is told the bytes of every line, so that a bar can move."""
    return batches_of_lines(_lines(files, rules.max_body_bytes, read), rules, report)


def batches_of_lines(lines: Iterable[tuple[str, int, bytes]], rules: LineRules, report: LoadReport) -> Iterator[Batch]:
    """Batches of at most 2,000 lines and about 4 MiB of bodies out of (file, line number, line with its end).

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
    """All bytes, None if standard input is in; :class:`InvalidRequestError` for a file that cannot be read."""
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
    """The first group of every match, or all of it; a match in which the group took no part gives nothing."""
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
