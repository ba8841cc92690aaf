"""Every number and name a process is run with, and the only place that reads the environment.

Three sources in rising order: a TOML file, the environment, flags. ``hot.retention_ms`` is the key
``retention_ms`` of the file's table ``[hot]`` and the variable ``TIERLOG_HOT_RETENTION_MS``. An unknown name
in the file, or below a group in the environment, is an error and not a silent default, and so is a variable whose name
is like that of a setting; others below the prefix are told (:func:`unknown_variables`). What Kubernetes makes of a
Service's name is neither. Making a :class:`Settings` reads nothing but its arguments; :meth:`Settings.load` reads all
three.

``docs/configuration.md`` is made from the fields below (``python -m docs.tools.settings``).
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.config.follow import FollowSettings
from tierlog.service.config.rocketmq import RocketmqSettings
from tierlog.service.config.serve import (
    AccessSettings,
    LogSettings,
    MetricsSettings,
    ProduceSettings,
    ServeSettings,
    TracingSettings,
)
from tierlog.service.config.store import ColdSettings, HotSettings, IndexSettings, QuerySettings
from tierlog.service.config.suggestions import closest
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.options import ColdOptions, HotOptions, RetentionOptions, TailOptions
from tierlog.tiering.base.types import Visibility
from tierlog.tiering.remote.endpoint import (
    CA_FILE,
    CLIENT_CERTIFICATE,
    CLIENT_KEY,
    TOKEN,
    TOKEN_FILE,
    TOKEN_OVER_HTTP,
)

__all__ = [
    "AccessSettings",
    "ClusterSettings",
    "ColdSettings",
    "FollowSettings",
    "HotSettings",
    "IndexSettings",
    "LogSettings",
    "MetricsSettings",
    "ProduceSettings",
    "QuerySettings",
    "RocketmqSettings",
    "ServeSettings",
    "Settings",
    "TracingSettings",
]

_HIDDEN = "(hidden)"
ENV_PREFIX = "TIERLOG_"
#: Variables that do not follow the rule of the prefix and the group.
ENV_ALIASES = {
    "cold.s3_endpoint": "TIERLOG_S3_ENDPOINT",
    "tracing.endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
    "tracing.service_name": "OTEL_SERVICE_NAME",
}
#: Variables below the prefix that are no settings: what clients of a service read, and the tests of a checkout.
_OTHER_VARIABLES = frozenset(
    (
        *(TOKEN, TOKEN_FILE, TOKEN_OVER_HTTP, CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY),
        *("TIERLOG_SEED", "TIERLOG_DATA", "TIERLOG_NO_SKIPS", "TIERLOG_ADVISORIES", "TIERLOG_IMAGE"),
    )
)
#: What Kubernetes puts into pods for a Service whose name begins like the prefix, without it.
_OF_A_SERVICE = re.compile(r"(\w+_)?(service_host|service_port(_\w+)?|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?)")
_ADDRESS_OF_A_SERVICE = re.compile(r"(tcp|udp|sctp)://.*")
#: Above it a variable is taken for a setting that was mistyped.
_MISTYPED = 0.8


class Settings(BaseSettings):
    """All settings of one process. Immutable; :meth:`load` raises :class:`InvalidRequestError` for a wrong value."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="_",
        env_nested_max_split=1,
        env_ignore_empty=True,
        nested_model_default_partial_update=True,
    )

    advertise: str | None = Field(
        default=None,
        description=(
            "`address:port` (IPv4 or IPv6) written into every record as the store host, and so "
            "part of every message id; unset = the first non-loopback IPv4 address and the service's "
            "port."
        ),
    )
    create_topics: bool = Field(
        default=True,
        description="Whether the first message to an unknown topic creates it; false answers 404 instead.",
    )
    max_topics: int = Field(
        default=10_000,
        ge=0,
        le=10_000_000,
        description=(
            "Maximum number of topics that messages may create. At the limit, which counts deleted topics "
            "because their numbering is kept, the first message to another topic is refused with 409; an "
            "operator can still create one (`PUT /v1/topics/{topic}`). Each topic takes about 0.5 KB of a file "
            "that is rewritten for each new topic."
        ),
    )
    max_groups: int = Field(
        default=1_000,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of consumer groups in the store; another is refused with 409 until one is removed. "
            "Their offsets are in one file, which each commit rewrites."
        ),
    )
    hot: HotSettings = HotSettings()
    produce: ProduceSettings = ProduceSettings()
    index: IndexSettings = IndexSettings()
    cold: ColdSettings = ColdSettings()
    query: QuerySettings = QuerySettings()
    serve: ServeSettings = ServeSettings()
    access: AccessSettings = AccessSettings()
    cluster: ClusterSettings = ClusterSettings()
    rocketmq: RocketmqSettings = RocketmqSettings()
    follow: FollowSettings = FollowSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()

    @field_validator("advertise")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            host, _, port = value.rpartition(":")
            ipaddress.ip_address(host.strip("[]"))
            if not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ValueError("not host:port")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Reads only the constructor's own arguments: a test's Settings does not depend on the machine."""
        return (init_settings,)

    @classmethod
    def load(cls, config: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
        """Loads file, environment, then ``overrides`` (``{"hot.segment_bytes": 65536}``; None values are not given).

        Raises :class:`InvalidRequestError` for a file that cannot be read, a name that does not exist and a
        value out of range, naming it.
        """
        merged: dict[str, object] = {}
        _merge(merged, {} if config is None else values_of_file(config))
        _merge(merged, values_of_environment())
        for name, value in (overrides or {}).items():
            if value is not None:
                group, _, key = name.rpartition(".")
                _merge(merged, {group: {key: value}} if group else {key: value})
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise InvalidRequestError(_describe(error), hint="docs/configuration.md lists every setting") from error

    def unsized(self) -> Settings:
        """Returns the settings without the sizes that a store is made with: those of an existing one hold."""
        own = self.hot.model_copy(update={"segment_bytes": None, "queue_file_units": None})
        return self.model_copy(update={"hot": own})

    def with_segments_of(self, segment_bytes: int | None) -> Settings:
        """Returns the settings with another size of segments; None: with none."""
        return self.model_copy(update={"hot": self.hot.model_copy(update={"segment_bytes": segment_bytes})})

    def hot_options(
        self, segment_bytes: int | None = None, queue_file_units: int | None = None, *, foreign: bool = False
    ) -> HotOptions:
        """Makes options of the hot tier; the sizes are what an existing store was made with, and win."""
        sizes: dict[str, Any] = {
            "segment_bytes": segment_bytes or self.hot.segment_bytes,
            "queue_file_units": queue_file_units or self.hot.queue_file_units,
        }
        return HotOptions(
            **{name: value for name, value in sizes.items() if value is not None},
            flush_interval_ms=self.hot.flush_interval_ms,
            flush_dirty_bytes=self.hot.flush_dirty_bytes,
            visibility=Visibility(self.hot.visibility),
            checkpoint_interval_ms=self.hot.checkpoint_interval_ms,
            max_body_bytes=self.hot.max_body_bytes,
            default_queues=self.hot.default_queues,
            max_topics=self.max_topics,
            record_checksum=self.hot.record_checksum,
            producer_window_ms=self.produce.window_ms,
            producer_window_requests=self.produce.window_requests,
            foreign=foreign,
        )

    def tail_options(self) -> TailOptions:
        """Options of `archived` appends."""
        cold = self.cold
        return TailOptions(
            max_bytes=cold.tail_bytes, interval_ms=cold.tail_interval_ms, timeout_ms=cold.tail_timeout_ms
        )

    def cold_options(self) -> ColdOptions:
        """Options of the cold tier."""
        cold = self.cold
        return ColdOptions(
            cold.frame_bytes,
            cold.compression_level,
            cold.max_inline_entries,
            cold.page_entries,
            cold.cache_bytes,
            grace_ms=cold.grace_ms,
            read_ahead_bytes=cold.read_ahead_bytes,
        )

    def retention_options(self) -> RetentionOptions:
        """When segments are rolled and hot copies go."""
        hot, cold = self.hot, self.cold
        return RetentionOptions(
            hot.roll_age_ms, hot.retention_ms, hot.max_bytes, cold.retention_ms, cold.max_bytes
        )  # fmt: skip


def values_of_file(path: Path) -> dict[str, object]:
    """Reads a settings file, not checked; :class:`InvalidRequestError` if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"cannot read the settings file: {error.strerror}", path=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the settings file is not TOML: {error}", path=str(path)) from error


def values_of_environment() -> dict[str, object]:
    """Reads the environment, not checked but for names; :class:`InvalidRequestError` for one that was mistyped."""
    source = EnvSettingsSource(Settings)
    source.env_vars = _own_variables(source)
    _refuse_mistyped(source.env_vars)
    try:
        values = dict(source())
    except SettingsError as error:  # TIERLOG_COLD, say: a group as a whole, where pydantic would take JSON
        raise InvalidRequestError(
            f"the environment: {error}", hint="each setting has a variable of its own; docs/configuration.md lists them"
        ) from error
    for name, variable in ENV_ALIASES.items():
        value = source.env_vars.get(variable.lower())
        group, _, key = name.rpartition(".")
        if value and key not in values.get(group, {}):  # a name of our own is meant for us
            _merge(values, {group: {key: value}})
    return values


def unknown_variables() -> list[str]:
    """Names the variables below the prefix that are like nothing that is read, and have no effect."""
    return [name.upper() for name in _unknown(_own_variables(EnvSettingsSource(Settings)))]


def _own_variables(source: EnvSettingsSource) -> dict[str, str | None]:
    """Returns what is in the environment, by lower-case names, without what Kubernetes made of a Service's name."""
    return {name: value for name, value in source.env_vars.items() if not _is_of_a_service(name, value or "")}


def _is_of_a_service(name: str, value: str) -> bool:
    prefix, rest = ENV_PREFIX.lower(), name[len(ENV_PREFIX) :]
    if not name.startswith(prefix):
        return False
    is_address = re.fullmatch(r"(\w+_)?port", rest) and _ADDRESS_OF_A_SERVICE.fullmatch(value)
    return bool(is_address or _OF_A_SERVICE.fullmatch(rest))


def _unknown(variables: Mapping[str, str | None]) -> list[str]:
    """Returns the names below the prefix that neither are those of settings nor of a group, or below one."""
    read = _variable_names()
    groups = tuple(f"{ENV_PREFIX}{name}_".lower() for name in _groups())
    return sorted(
        name
        for name in variables
        if name.startswith(ENV_PREFIX.lower()) and name.upper() not in read and not f"{name}_".startswith(groups)
    )


def _variable_names() -> set[str]:
    """Returns the names of all variables that anybody reads."""
    settings = {ENV_PREFIX + name.replace(".", "_").upper() for name in {*_names(Settings)} - {*_groups()}}
    return settings | _OTHER_VARIABLES | set(ENV_ALIASES.values())


def _refuse_mistyped(variables: Mapping[str, str | None]) -> None:
    known = [name.removeprefix(ENV_PREFIX) for name in _variable_names() if name.startswith(ENV_PREFIX)]
    for name in map(str.upper, _unknown(variables)):
        meant = closest(name.removeprefix(ENV_PREFIX), known, likeness=_MISTYPED)
        if meant is not None:
            raise InvalidRequestError(
                f"the environment: nothing reads {name}", hint=f"did you mean {ENV_PREFIX}{meant}?"
            )


def _merge(into: dict[str, object], values: Mapping[str, object]) -> None:
    for name, value in values.items():
        current = into.get(name)
        if isinstance(current, dict) and isinstance(value, Mapping):
            _merge(current, value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _groups() -> list[str]:
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    return [name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _names(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name}.")
        yield prefix + name


def _describe(error: ValidationError) -> str:
    """Describes every wrong setting in one line, named as in the documentation."""
    found = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            meant = closest(name, _names(Settings))
            found.append(f"there is no setting {name!r}" + (f", did you mean {meant!r}?" if meant else ""))
        else:
            text = problem["msg"].removeprefix("Value error, ")
            is_of_group = problem["type"] == "value_error" and isinstance(problem["input"], dict)
            value = "" if is_of_group else f" = {problem['input']!r}"
            found.append(f"setting{'s' if is_of_group else ''} {name}{value}: {text[:1].lower() + text[1:]}")
    return "; ".join(found)


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """A setting with its value; ``source`` is ``default``, ``file``, the name of a variable, or ``flag``."""

    name: str
    value: object
    default: object
    source: str


def settings_in_force(
    config: Path | None = None, overrides: Mapping[str, object] | None = None
) -> list[SettingInForce]:
    """Lists every setting as :meth:`Settings.load` makes it of the same arguments; secrets are hidden.

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
