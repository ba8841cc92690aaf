"""Settings of queries."""

from __future__ import annotations

from pydantic import Field

from service.setting_groups.group import SettingGroup


class QuerySettings(SettingGroup):
    """How the archive is asked for the answer to a query."""

    concurrency: int = Field(
        default=32,
        ge=1,
        le=256,
        description=(
            "Requests to the archive that one query has on their way at once. More answers sooner where many objects "
            "have to be asked, and may ask for a few whose answers are not needed; 1 = one after another."
        ),
    )
    threads: int = Field(
        default=64,
        ge=1,
        le=1024,
        description=(
            "Threads that ask the archive for all queries together; one query more than they suffice for takes turns "
            "with the others. `cold.connections` should be as many."
        ),
    )
    timeout_ms: int = Field(
        default=60_000,
        ge=0,
        description=(
            "ms after which a query that names no time of its own is answered with what is known then, `complete` "
            "false and `cut_by` `timeout`; 0 = never."
        ),
    )
