"""Messages for people: a line of a table each, or all of each (``--full``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from service.cli.look import Look, printable
from service.wire import Json

if TYPE_CHECKING:
    from service.cli.table import Column


def message_columns(look: Look, *, by_born: bool) -> tuple[Column, ...]:
    """The columns; the time that is asked about is first, the other one is for ``--full``."""
    from service.cli.table import Column

    name = f"{'born' if by_born else 'stored'} ({look.zone})"
    return (
        Column(name, style="time"),
        Column("tier", rank=1, by_value=True),
        Column("topic", rank=3),
        Column("queue:offset", rank=2),
        Column("key", style="key"),
        Column("body", is_text=True),
    )


def message_cells(row: Json, look: Look, key: str | None, *, by_born: bool) -> Json:
    """A message in one line; of several keys the one asked for, else the first, and how many more."""
    keys: list[str] = row["keys"]
    first = key if key is not None and key in keys else "".join(keys[:1])
    body = row.get("body")
    return {
        f"{'born' if by_born else 'stored'} ({look.zone})": look.time(row["born_ms" if by_born else "store_ms"]),
        "tier": row["tier"],
        "topic": row["topic"],
        "queue:offset": f"{row['queue_id']}:{row['queue_offset']}",
        "key": first + (f" +{len(keys) - 1}" if len(keys) > 1 else ""),
        "body": (f"base64: {row.get('body_base64')}" if body is None else body)[: look.width + 1],
    }


def full_lines(rows: Sequence[Json], look: Look) -> list[str]:
    """Every field of the messages, bodies whole; JSON bodies with an indent."""
    lines = []
    for row in rows:
        for name in row:
            if name in ("body", "body_base64") or row[name] in ("", [], {}):
                continue
            value = row[name]
            text = look.time(value) if name.endswith("_ms") else _text(value)
            label = f"{name.removesuffix('_ms') if name.endswith('_ms') else name}:"
            lines.append(f"{painted(f'{label:<16}', 'head', look)}{painted(text, _style(name, text), look)}")
        lines += ["", *_body_lines(row), ""]
    return lines


def _body_lines(row: Json) -> list[str]:
    body = row.get("body")
    if body is None:
        return [f"base64: {row.get('body_base64')}"]
    if body[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):  # else it is shown as it is
            body = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    return [printable(line.replace("\t", "    ").rstrip("\r")) for line in body.split("\n")]


def _text(value: object) -> str:
    if isinstance(value, list):
        return printable(" ".join(str(each) for each in value))
    return printable(json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value))


def _style(name: str, text: str) -> str:
    return text if name == "tier" else "key" if name == "keys" else ""


def painted(text: str, style: str, look: Look) -> str:
    """Text in a style, where colours are wanted."""
    if not look.is_colored:
        return text
    from service.cli.table import paint

    return paint(text, style)
