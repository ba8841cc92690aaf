"""Settings of appends that may be sent again."""

from __future__ import annotations

from pydantic import Field

from service.setting_groups.group import SettingGroup

_DAY_MS = 86_400_000


class ProduceSettings(SettingGroup):
    """What is remembered of appends with an `Idempotency-Key`, so that one sent again appends nothing twice."""

    window_ms: int = Field(
        default=_DAY_MS,
        ge=1_000,
        le=366 * _DAY_MS,
        description=(
            "ms that it is known which messages a producer has sent; a request sent again later appends them again. "
            "Should be longer than the longest task of a Spark job that writes here."
        ),
    )
    window_requests: int = Field(
        default=100_000,
        ge=1,
        le=100_000_000,
        description=(
            "Requests that this is known of, the newest, whatever the time; about 400 bytes of memory each, and 60 of "
            "a file that is written again every 30 s while such requests come in."
        ),
    )
