"""Settings of what the service tells about itself: log lines, traces, and how much of it metrics show."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.setting_groups.group import SettingGroup


class LogSettings(SettingGroup):
    """Log lines, which go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description=(
            "The least severe lines that are written. `info` has a line for every request but those for health and "
            "metrics, about 30 microseconds each; `warning` has what an operator should see."
        ),
    )
    format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="`json`: an object a line; `text`: for people; `auto`: text on a terminal, else json.",
    )
    access_every: int = Field(
        default=1,
        ge=0,
        description=(
            "Of requests that went well, every how many has a line; 0 = none. Those answered with 400 or more always "
            "have one."
        ),
    )


class TracingSettings(SettingGroup):
    """Traces for an OpenTelemetry collector; needs `tierlog[tracing]`."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description=(
            "URL of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318` (`/v1/traces` is added to "
            "it); unset = no traces, and nothing is loaded for them. A dead one loses traces and holds nothing up."
        ),
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description=(
            "Share of requests that are traced, unless the caller's `traceparent` has decided. A request that is "
            "takes about 0.1 ms more, and up to a few kB on the way to the collector."
        ),
    )
    service_name: str = Field(
        default="tierlog", min_length=1, description="What traces say which service they are of (`service.name`)."
    )


class MetricsSettings(SettingGroup):
    """What `/metrics` shows."""

    max_groups: int = Field(
        default=100,
        ge=0,
        le=1_000,
        description=(
            "Consumer groups whose lag is shown, the first by name, a series each; 0 = none. More cost every scrape "
            "and whoever stores them."
        ),
    )
