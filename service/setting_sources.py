"""The settings of a process one by one, each with where its value comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, SecretStr

from service.settings import ENV_ALIASES, ENV_PREFIX, Settings, values_of_environment, values_of_file

_HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting; ``source`` is ``default``, ``file``, the variable's name in the environment, or ``flag``."""

    name: str
    value: object
    default: object
    source: str


def settings_in_force(
    config: Path | None = None, overrides: Mapping[str, object] | None = None
) -> list[SettingInForce]:
    """Every setting as :meth:`Settings.load` makes it of the same arguments; secrets are hidden.

    Raises :class:`InvalidRequestError` as that does.
    """
    settings = Settings.load(config, overrides)
    flags = {name for name, value in (overrides or {}).items() if value is not None}
    file = {} if config is None else dict(_flat(values_of_file(config)))
    environment = dict(_flat(values_of_environment()))
    found = []
    for name, value, default in _fields(settings, Settings()):
        if name in flags:
            source = "flag"
        elif name in environment:
            source = ENV_ALIASES.get(name, "") or ENV_PREFIX + name.replace(".", "_").upper()
        else:
            source = "file" if name in file else "default"
        found.append(SettingInForce(name, _plain(value), _plain(default), source))
    return found


def _fields(model: BaseModel, default: BaseModel, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for name in type(model).model_fields:
        value, usual = getattr(model, name), getattr(default, name)
        if isinstance(value, BaseModel):
            yield from _fields(value, usual, f"{prefix}{name}.")
        else:
            yield prefix + name, value, usual


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return _HIDDEN if isinstance(value, SecretStr) else str(value)
