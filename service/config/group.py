"""The base class of the groups of settings, and the units in which a setting may be given.

The name of a setting says its own unit. Beside a number in that unit it takes a text with another: ``72h`` where the
name ends with ``_ms`` or ``_s``, ``512MiB`` where it ends with ``_bytes``.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_duration

_DURATION_FORMS = "a number with ms, s, m, h, d or w, for example 90d"
_SIZE_FORMS = "a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, for example 512MiB"
_DURATION_PATTERN = "^[0-9]{1,15} *(ms|s|m|h|d|w)$"
_SIZE_PATTERN = "^[0-9]{1,15} *([KMGT]i?|k)?B$"
_NUMBER = re.compile(r"\s*[-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?\s*")
_SIZE = re.compile(r"([0-9]{1,15})\s*(?:([kKMGT])(i?))?B")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


class SettingGroup(BaseModel):
    """Immutable, and every name in it is known. A text with a unit becomes a number in the unit that the name says."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, json_schema_extra=lambda schema: _describe_units(schema)
    )

    @field_validator("*", mode="before")
    @classmethod
    def _in_its_own_unit(cls, value: object, info: ValidationInfo) -> object:
        return value if info.field_name is None else in_own_unit(info.field_name, value)


def host_and_port(value: str | None) -> str | None:
    """Returns a setting that is ``host:port``, or unset; raises :class:`ValueError` for another text."""
    if value is not None:
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) >= 65_536:
            raise ValueError("not host:port")
    return value


def in_own_unit(name: str, value: object) -> object:
    """Returns a setting's value in the unit that its name says; one without a unit, or a name without one, as it is.

    Raises :class:`ValueError` with the forms there are for a text that is no number with a unit.
    """
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    if _is_size(name):
        return parse_bytes(value)
    if not _is_duration(name):
        return value
    try:
        ms = parse_duration(value)
    except InvalidRequestError:
        raise ValueError(
            f"not a duration: a number of {'ms' if name.endswith('_ms') else 'seconds'}, or {_DURATION_FORMS}"
        ) from None
    return ms if name.endswith("_ms") else ms / 1000


def parse_bytes(text: str) -> int:
    """Returns the bytes of a number with a unit, of 1,000 (kB, MB) or of 1,024 (KiB, MiB).

    Raises :class:`ValueError` for anything else.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[2] == "k" and found[3]):
        raise ValueError(f"not a size: a number of bytes, or {_SIZE_FORMS}")
    base: int = 1024 if found[3] else 1000
    return int(found[1]) * int(base ** _POWERS[found[2] or ""])


def _is_size(name: str) -> bool:
    return name.endswith(("_bytes", "_bytes_per_s"))


def _is_duration(name: str) -> bool:
    return name.endswith(("_ms", "_s")) and not _is_size(name)


def _describe_units(schema: dict[str, Any]) -> None:
    """Adds the texts with units to the JSON schema of a group."""
    for name, field in schema.get("properties", {}).items():
        if not (_is_size(name) or _is_duration(name)):
            continue
        text = {"type": "string", "pattern": _SIZE_PATTERN if _is_size(name) else _DURATION_PATTERN}
        if "anyOf" in field:
            field["anyOf"].append(text)
            continue
        beside = ("title", "description", "default")
        number = {key: field.pop(key) for key in list(field) if key not in beside}
        field["anyOf"] = [number, text]
