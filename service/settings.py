"""Every number and name a process is run with, and the only place that reads the environment.

Three sources in rising order: a TOML file, the environment, flags. ``hot.retention_ms`` is the key
``retention_ms`` of the file's table ``[hot]`` and the variable ``TIERLOG_HOT_RETENTION_MS``. An unknown name
in the file, or below a group in the environment, is an error and not a silent default. Making a
:class:`Settings` reads nothing but its arguments; :meth:`Settings.load` reads all three.

``docs/configuration.md`` is made from the fields below (``python -m service.settings_doc``).
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tiering.errors import InvalidRequestError
from tiering.options import ColdOptions, HotOptions, RetentionOptions

ENV_PREFIX = "TIERLOG_"
#: Variables that do not follow the rule of the prefix and the group.
ENV_ALIASES = {"cold.s3_endpoint": "TIERLOG_S3_ENDPOINT"}
_DAY_MS = 86_400_000


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class HotSettings(_Group):
    """The hot tier: commit log and consume queues on the volume."""

    segment_bytes: int | None = Field(
        default=None,
        ge=4096,
        le=1 << 30,
        multiple_of=4096,
        description=(
            "Bytes of one commit-log segment, a multiple of 4096 up to 1 GiB. Fixed when a store is "
            "made; unset = as the store was made, 1 GiB for a new one. Smaller segments are archived "
            "sooner and make more objects."
        ),
    )
    queue_file_units: int | None = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description=(
            "20-byte units in one consume-queue file. Fixed when a store is made; unset = as the "
            "store was made, 300,000 for a new one. Every queue keeps at least one file of this size."
        ),
    )
    flush_interval_ms: int = Field(
        default=500,
        ge=1,
        le=60_000,
        description=(
            "ms. `async` appends lose at most this much when the machine crashes, nothing when the "
            "process does. Shorter costs more flushes."
        ),
    )
    flush_dirty_bytes: int = Field(
        default=4 << 20,
        ge=1,
        description="Unflushed bytes at which an `async` append wakes the flusher early.",
    )
    checkpoint_interval_ms: int = Field(
        default=5_000,
        ge=10,
        le=3_600_000,
        description="ms between recovery points. Longer makes reopening after a kill slower, never lossy.",
    )
    max_body_bytes: int = Field(
        default=4 << 20,
        ge=1,
        le=512 << 20,
        description="Bytes. A larger message body is refused; so is a record that does not fit a segment.",
    )
    default_queues: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="Queues of a topic that is made by its first message.",
    )
    roll_age_ms: int = Field(
        default=3_600_000,
        ge=1,
        description=(
            "ms. With a cold tier, a segment whose first record is older is rolled, so that a quiet "
            "store is archived too. Shorter makes more and smaller objects."
        ),
    )
    retention_ms: int = Field(
        default=3 * _DAY_MS,
        ge=0,
        description=(
            "ms. Hot copies whose newest record is older are removed once they are archived and "
            "indexed (without a cold tier: removed for good). Longer needs more disk."
        ),
    )
    max_bytes: int = Field(
        default=0,
        ge=0,
        description=("Bytes of commit log above which the oldest archived segments are removed early; 0 = no limit."),
    )


class IndexSettings(_Group):
    """Key index files. May change between starts: each file carries its own sizes."""

    slots: int = Field(
        default=5_000_000,
        ge=1,
        le=500_000_000,
        description="Hash slots of a new index file, 4 bytes each on disk. Fewer make longer chains.",
    )
    items: int = Field(
        default=20_000_000,
        ge=2,
        le=500_000_000,
        description=(
            "Items of a new index file, 36 bytes each on disk. Smaller files are published sooner and "
            "make more objects for a query to ask."
        ),
    )
    layout: Literal["tierlog"] = Field(
        default="tierlog", description="Item layout of new files. `tierlog` keeps 63 bits of hash per key."
    )


class ColdSettings(_Group):
    """The cold tier: the archive in a directory or a bucket."""

    frame_bytes: int = Field(
        default=64 << 10,
        ge=4096,
        le=16 << 20,
        description=(
            "Record bytes in one compressed frame. A read of one message fetches one frame; larger "
            "frames compress a little better."
        ),
    )
    compression_level: int = Field(
        default=1, ge=1, le=19, description="zstd level of frames. Higher is slower and a little smaller."
    )
    max_inline_entries: int = Field(
        default=200,
        ge=2,
        le=200,
        description=("Manifest entries kept inside the head object; more move into pages. Fewer make more requests."),
    )
    page_entries: int = Field(
        default=256, ge=2, le=256, description="Entries, or page references, in one manifest page."
    )
    cache_bytes: int = Field(
        default=256 << 20,
        ge=0,
        description=("Bytes of memory for directories, seek tables and manifest pages. Less asks the archive again."),
    )
    s3_endpoint: str | None = Field(
        default=None,
        description=(
            "URL of an S3-compatible server; unset = Amazon S3. Credentials and region come from the "
            "usual AWS variables."
        ),
    )
    connect_timeout_s: float = Field(default=5.0, gt=0, le=300, description="Seconds to wait for a connection to S3.")
    read_timeout_s: float = Field(
        default=20.0,
        gt=0,
        le=3600,
        description="Seconds to wait for S3 to go on answering. Shorter gives up on slow servers.",
    )
    retry_interval_ms: int = Field(
        default=10_000,
        ge=10,
        le=3_600_000,
        description="ms between attempts to reach an archive that failed, and between looks at its head.",
    )


class ServeSettings(_Group):
    """Where `tierlog serve` listens."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on; `0.0.0.0` is every interface."
    )
    port: int = Field(default=8080, ge=0, le=65_535, description="TCP port; 0 takes a free one and prints it.")
    max_request_bytes: int = Field(
        default=64 << 20,
        ge=1024,
        description="Bytes. A larger request body is refused with 413 before it is read whole.",
    )


class Settings(BaseSettings):
    """All settings of one process. Immutable; out-of-range values raise :class:`InvalidRequestError` in
    :meth:`load`.
    """

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
        description="Whether the first message to an unknown topic makes it; false answers 404 instead.",
    )
    hot: HotSettings = HotSettings()
    index: IndexSettings = IndexSettings()
    cold: ColdSettings = ColdSettings()
    serve: ServeSettings = ServeSettings()

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
        """Only the constructor's own arguments: a test's Settings does not depend on the machine."""
        return (init_settings,)

    @classmethod
    def load(cls, config: Path | None = None, overrides: Mapping[str, object] | None = None) -> Settings:
        """File, environment, then ``overrides`` (``{"hot.segment_bytes": 65536}``; None values are not
        given).

        Raises :class:`InvalidRequestError` for a file that cannot be read, a name that does not exist and a
        value out of range, naming it.
        """
        merged: dict[str, object] = {}
        _merge(merged, {} if config is None else _read_toml(config))
        _merge(merged, _read_environment())
        for name, value in (overrides or {}).items():
            if value is not None:
                group, _, key = name.rpartition(".")
                _merge(merged, {group: {key: value}} if group else {key: value})
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise InvalidRequestError(_describe(error), hint="docs/configuration.md lists every setting") from error

    def hot_options(self, segment_bytes: int | None = None, queue_file_units: int | None = None) -> HotOptions:
        """Options of the hot tier; the arguments are what an existing store was made with, and win."""
        sizes = {
            "segment_bytes": segment_bytes or self.hot.segment_bytes,
            "queue_file_units": queue_file_units or self.hot.queue_file_units,
        }
        return HotOptions(
            **{name: value for name, value in sizes.items() if value is not None},
            flush_interval_ms=self.hot.flush_interval_ms,
            flush_dirty_bytes=self.hot.flush_dirty_bytes,
            checkpoint_interval_ms=self.hot.checkpoint_interval_ms,
            max_body_bytes=self.hot.max_body_bytes,
            default_queues=self.hot.default_queues,
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
        )

    def retention_options(self) -> RetentionOptions:
        """When segments are rolled and hot copies go."""
        return RetentionOptions(self.hot.roll_age_ms, self.hot.retention_ms, self.hot.max_bytes)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequestError(f"cannot read the settings file: {error.strerror}", path=str(path)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the settings file is not TOML: {error}", path=str(path)) from error


def _read_environment() -> dict[str, object]:
    source = EnvSettingsSource(Settings)
    values = dict(source())
    for name, variable in ENV_ALIASES.items():
        value = source.env_vars.get(variable.lower())
        if value:
            group, _, key = name.rpartition(".")
            _merge(values, {group: {key: value}})
    return values


def _merge(into: dict[str, object], values: Mapping[str, object]) -> None:
    for name, value in values.items():
        current = into.get(name)
        if isinstance(current, dict) and isinstance(value, Mapping):
            _merge(current, value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


def _describe(error: ValidationError) -> str:
    """Every wrong setting in one line, named as in the documentation."""
    found = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            found.append(f"there is no setting {name!r}")
        else:
            text = problem["msg"][:1].lower() + problem["msg"][1:]
            found.append(f"setting {name} = {problem['input']!r}: {text}")
    return "; ".join(found)
