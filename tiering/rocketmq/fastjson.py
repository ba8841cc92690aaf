"""JSON as RocketMQ writes it (fastjson 1.2): keys of a map that are integers stand without quotes, ``{0:12,1:7}``.

Everything else is strict JSON.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from tierlog.tiering.base.errors import CorruptionError

#: A string, which is left alone, or an integer between an opening brace or comma and a colon.
_STRING_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<number>-?(?:0|[1-9][0-9]*))(?=\s*:)', re.DOTALL)

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None


def parse_json(data: bytes, *, path: str) -> JsonValue:
    """Returns the document, keys as text; :class:`CorruptionError` for anything that is no such JSON."""
    try:
        text = _STRING_OR_KEY.sub(_quoted, data.decode())
        found: JsonValue = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"not the JSON of a broker: {error}", path=path) from error
    return found


def _quoted(match: re.Match[str]) -> str:
    number = match["number"]
    return match[0] if number is None else f'{match["before"]}"{number}"'


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
