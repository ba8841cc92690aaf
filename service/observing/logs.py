"""Log lines: one a event, as JSON or as text, with the request that they belong to.

Nothing here, and nobody who logs, writes keys, bodies, tokens or query strings.

Lines of requests are many, and to log one took as long as a fifth of what it tells of. So they are records without what
no line shows (thread, process, place in the code), and those of one turn of the event loop are written at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TextIO

import orjson

from tierlog.service.config.settings import LogSettings
from tierlog.service.observing.request_context import current_request
from tierlog.tiering.base.clock import SystemClock

#: Facts of a line beside its text: ``extra={"facts": {...}}``.
FACTS = "facts"
_CLOCK = SystemClock()
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Sends the lines of this process to ``stream``, standard error unless told; instead of where they went before.

    ``settings.level`` is about our own lines; of libraries only warnings are shown.
    """
    stream = stream or sys.stderr
    is_text = settings.format == "text" or (settings.format == "auto" and stream.isatty())
    handler = Lines(stream)
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tierlog").setLevel(_LEVELS[settings.level])
    for name in ("uvicorn", "uvicorn.error"):  # the server's own lines go the same way; request lines are ours
        library = logging.getLogger(name)
        library.handlers[:] = []
        library.propagate = True


class _RequestRecord(logging.LogRecord):
    """The record of a line that may wait for others of the same turn of the event loop."""

    def __init__(self, logger: str, level: int, event: str, facts: dict[str, Any]) -> None:
        self.__dict__ |= _COMMON
        self.name, self.levelno, self.levelname, self.msg = logger, level, logging.getLevelName(level), event
        self.created = _CLOCK.now_ms() / 1000
        setattr(self, FACTS, facts)


#: Attributes that every record has, for other handlers.
_COMMON = logging.makeLogRecord({}).__dict__


def log_request(logger: logging.Logger, level: int, event: str, facts: dict[str, Any]) -> None:
    """Logs what was done for a request. On the event loop only."""
    if logger.isEnabledFor(level):
        logger.handle(_RequestRecord(logger.name, level, event, facts))


class Lines(logging.StreamHandler[TextIO]):
    """Writes lines in their order, those of requests at the end of the turn of the event loop in which they come."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waiting: list[str] = []
        #: The event loop that will write them.
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line."""
        try:
            self._waiting.append(self.format(record) + self.terminator)
            if not isinstance(record, _RequestRecord):
                self.flush()
            elif (loop := asyncio.get_running_loop()) is not self._loop:
                loop.call_soon(self._end_turn, record)
                self._loop = loop
        except Exception:
            self.handleError(record)

    def _end_turn(self, record: logging.LogRecord) -> None:
        self._loop = None
        try:
            self.flush()
        except Exception:  # as in emit: a stream that is gone is nothing that the loop could log
            self.handleError(record)

    def flush(self) -> None:
        """Writes what waits."""
        with self.lock:  # type: ignore[union-attr]  # every handler has one
            lines = "".join(self._waiting)
            self._waiting.clear()
            if lines:
                self.stream.write(lines)
            super().flush()


def _time_of(record: logging.LogRecord) -> str:
    second, ms = divmod(int(record.created * 1000), 1000)
    return f"{_second(second)}.{ms:03}Z"


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat().removesuffix("+00:00")


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """Returns what is known beside the words; the request first."""
    facts: dict[str, Any] = {}
    request = current_request()
    if request is not None:
        facts["request_id"] = request.request_id
        if request.trace_id is not None:
            facts["trace_id"] = request.trace_id
    facts.update(getattr(record, FACTS, {}))
    return facts


class JsonLines(logging.Formatter):
    """An object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``event``, and what else is known."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a line."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts_of(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # half of a surrogate pair, or a number of more than 64 bits
            return json.dumps(line, default=str)


def _shown(words: str) -> str:
    """Removes what would move a terminal's cursor, end a line or change its direction: some words are a client's."""
    return words if words.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in words)


class TextLines(logging.Formatter):
    """Time, level, words, then ``name=value``; a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats a line."""
        words = _shown(" ".join(record.getMessage().splitlines()))
        facts = "".join(
            f" {name}={_shown(str(value))}" for name, value in _facts_of(record).items() if value is not None
        )
        line = f"{_time_of(record)} {record.levelname.lower():7} {words}{facts}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return line
