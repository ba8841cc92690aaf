"""Settings of several stores that are one cluster."""

from __future__ import annotations

from pydantic import Field, field_validator

from tierlog.service.config.group import SettingGroup
from tierlog.tiering.remote.endpoint import ServiceAddress


class ClusterSettings(SettingGroup):
    """Where the others are, and how long they are waited for (docs/cluster.md)."""

    address: str | None = Field(
        default=None,
        description=(
            "URL by which the other nodes and the queriers reach this one, such as `http://tierlog-0.tierlog:8080`. "
            "Set, the store is entered in its bucket's cluster table, and a request for another is sent on to it; "
            "unset, the store is alone. Needs a cold tier."
        ),
    )
    stores: str = Field(
        default="",
        description=(
            "For a querier: services of stores (`http://…`) and archives (`s3://…`, `file://…`) that it reads, with "
            "spaces between them; empty = all that the cluster table of `--cold` names. `--stores` says the same."
        ),
    )
    refresh_ms: int = Field(
        default=10_000,
        ge=100,
        le=3_600_000,
        description=(
            "ms after which the cluster table is looked at again, by one conditional GET (0.10 USD a month each node "
            "at the default). A new store, a new address and a route are known everywhere after so long."
        ),
    )
    ask_timeout_ms: int = Field(
        default=2_000,
        ge=10,
        le=600_000,
        description=(
            "ms that another store is waited for when a query asks it for what is still hot, or a group for its "
            "queues; the query then answers without it and says so. Also ms for a connection over which a request is "
            "sent on, and ms that a node waits at its start for the cluster table. Longer = slower answers while a "
            "store hangs, and a slower start while the bucket does."
        ),
    )
    forward_idle_ms: int = Field(
        default=600_000,
        ge=10,
        le=86_400_000,
        description=(
            "ms without a byte either way after which a request that was sent on to another node is given up with "
            "503. It has to be longer than whatever is silent while it works: a long poll, a query without a time "
            "limit, `/v1/admin/check`. Longer keeps places (`serve.max_forwards`) while a node hangs."
        ),
    )
    retry_ms: int = Field(
        default=1_000,
        ge=0,
        le=600_000,
        description=(
            "ms for which a store that did not answer is not asked again by queries: they say at once that it is down."
        ),
    )
    staleness_ms: int = Field(
        default=10_000,
        ge=0,
        le=3_600_000,
        description=(
            "ms that a querier may go on reading an archive by the head it has, where no store tells it a newer one. "
            "Shorter = more GETs, only while queries come."
        ),
    )

    max_groups: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Consumer groups that the stores have ever had together: where there are so many homes of groups in the "
            "bucket, another is refused with 409. A new group costs a LIST request for each 1,000 of them."
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
