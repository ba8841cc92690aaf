"""Log lines: one a event, as JSON or as text, with the request that they belong to.

Nothing here, and nobody who logs, writes keys, bodies, tokens or query strings.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from service.observing.requests import current_request
from service.settings import LogSettings

#: What a line may say beside its words: ``extra={"facts": {...}}``.
FACTS = "facts"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the lines of this process to ``stream``, standard error unless told; instead of where they went before.

    ``settings.level`` is about our own lines; of libraries only warnings are shown.
    """
    stream = stream or sys.stderr
    is_text = settings.format == "text" or (settings.format == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextLines() if is_text else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tierlog").setLevel(_LEVELS[settings.level])
    for name in ("uvicorn", "uvicorn.error"):  # its own lines go the same way, those of each request are ours
        library = logging.getLogger(name)
        library.handlers[:] = []
        library.propagate = True


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    """What is known beside the words; the request first."""
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
        """The line."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts_of(record),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _shown(words: str) -> str:
    """Without what would move a terminal's cursor, end a line or change its direction: some words are a client's."""
    return words if words.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in words)


class TextLines(logging.Formatter):
    """Time, level, words, then ``name=value``; a traceback on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        words = _shown(" ".join(record.getMessage().splitlines()))
        facts = "".join(
            f" {name}={_shown(str(value))}" for name, value in _facts_of(record).items() if value is not None
        )
        line = f"{_time_of(record)} {record.levelname.lower():7} {words}{facts}"
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + self.formatException(record.exc_info)
        return line
