"""Output of commands whose answer is one document: a list of names and values on a terminal, JSON elsewhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping

from service.cli.look import Look, printable, readable_bytes, safe_json
from service.cli.message_view import painted
from service.wire import Json


def print_document(document: Json, look: Look) -> None:
    """``table`` is a line for each value; ``json`` has an indent, ``ndjson`` is one line."""
    if look.form != "table":
        text = json.dumps(document, ensure_ascii=False, indent=1 if look.form == "json" else None)
        print(safe_json(text), flush=True)
        return
    lines = list(flat(document))
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        sys.stdout.write(f"{painted(f'{name:<{width}}', 'head', look)}  {shown_value(name, value, look)}\n".rstrip(" "))
    sys.stdout.flush()


def print_done(document: Json, arguments: argparse.Namespace) -> None:
    """What a command did that has nothing else to say: told on a terminal, and in a pipe to who asked for a format."""
    if arguments.format is not None or sys.stdout.isatty():
        print_document(document, Look.of(arguments))


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Values of values by their whole names, ``cache.filters.hits``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def shown_value(name: str, value: object, look: Look) -> str:
    """A value for people: bytes with a unit beside their number, moments as such, numbers in groups of three."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return (
            printable(", ".join(map(str, value)))
            if all(isinstance(one, str | int) for one in value)
            else printable(json.dumps(value, ensure_ascii=False))
        )
    if isinstance(value, int):
        if name.endswith("_ms") and value > _MOMENT_MS:
            return look.time(value)
        if name.rpartition(".")[2].find("bytes") >= 0 and value >= 1024:
            return f"{value:,} ({readable_bytes(value)})"
        return f"{value:,}"
    return printable(str(value))


#: Above this many ms a number is no duration: 1980.
_MOMENT_MS = 315_532_800_000
