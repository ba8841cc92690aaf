"""Settings of several stores that are one cluster."""

from __future__ import annotations

from pydantic import Field, field_validator

from tierlog.service.config.group import SettingGroup
from tierlog.tiering.remote.endpoint import ServiceAddress


class ClusterSettings(SettingGroup):
    """The other stores of the cluster, and how long to wait for them (docs/cluster.md)."""

    address: str | None = Field(
        default=None,
        description=(
            "URL by which the other nodes and the queriers reach this one, such as "
            "`http://tierlog-0.tierlog:8080`. If set, the store is entered in its bucket's cluster table, and "
            "requests for other stores are forwarded; unset = the store is alone. Needs a cold tier."
        ),
    )
    stores: str = Field(
        default="",
        description=(
            "For a querier: services of stores (`http://…`) and archives (`s3://…`, `file://…`) to read, "
            "separated by spaces; empty = all in the cluster table of `--cold`. The flag `--stores` does the "
            "same."
        ),
    )
    refresh_ms: int = Field(
        default=10_000,
        ge=100,
        le=3_600_000,
        description=(
            "ms between reads of the cluster table, each one conditional GET (0.10 USD a month for each node at "
            "the default). A new store, address or route is known everywhere after this time."
        ),
    )
    ask_timeout_ms: int = Field(
        default=2_000,
        ge=10,
        le=600_000,
        description=(
            "ms to wait for another store when a query asks it for hot messages, or a group for its queues; the "
            "query then answers without it and says so. Also the ms to wait for a connection when a request is "
            "forwarded, and for the cluster table when a node starts. A longer time means slower answers while "
            "a store hangs, and a slower start while the bucket does."
        ),
    )
    forward_idle_ms: int = Field(
        default=600_000,
        ge=10,
        le=86_400_000,
        description=(
            "ms without a byte in either direction after which a forwarded request is given up with 503. It has "
            "to be longer than anything that is silent while it works: a long poll, a query without a time "
            "limit, `/v1/admin/check`. A longer time keeps places (`serve.max_forwards`) occupied while a node "
            "hangs."
        ),
    )
    retry_ms: int = Field(
        default=1_000,
        ge=0,
        le=600_000,
        description=(
            "ms for which queries do not ask a store again that gave no answer: they report at once that it is down."
        ),
    )
    staleness_ms: int = Field(
        default=10_000,
        ge=0,
        le=3_600_000,
        description=(
            "Maximum age in ms of the archive's head that a querier reads by, where no store tells it a newer "
            "one. A shorter time costs more GETs, only while queries come."
        ),
    )

    max_groups: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of consumer groups that the stores have ever had together: with this many homes of "
            "groups in the bucket, another group is refused with 409. A new group costs a LIST request for each "
            "1,000 of them."
        ),
    )

    @field_validator("address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None:
            ServiceAddress.parse(value)
        return value

    @property
    def sources(self) -> list[str]:
        """The URLs of :attr:`stores`."""
        return self.stores.split()
