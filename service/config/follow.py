"""Settings of a follower of running RocketMQ brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator

from tierlog.service.config.group import SettingGroup, host_and_port


class FollowSettings(SettingGroup):
    """`tierlog follow`: which brokers, and how closely (docs/adopting_rocketmq.md)."""

    namesrv: str = Field(
        default="",
        description="Nameservers of the cluster, `host:port`, separated by `;`; the flag `--namesrv` does the same.",
    )
    broker: str = Field(
        default="",
        description="Names of the brokers to follow, separated by spaces; the flag `--broker` does the same.",
    )
    mode: Literal["observer", "replica"] = Field(
        default="observer",
        description=(
            "`observer`: no producer waits for this process. `replica`: the broker is told what is durable here, so "
            "that a `SYNC_MASTER` counts it as a slave and its producers wait for it."
        ),
    )
    ha: str | None = Field(
        default=None,
        description="`host:port` where slaves connect, for one broker; unset = as the broker says.",
    )
    store: Path | None = Field(
        default=None,
        description=(
            "Store directory of the broker, for one broker on this machine: its files are read instead of asking it "
            "as a slave does. Nothing is written there, unless `follow.hold` is set."
        ),
    )
    hold: bool = Field(
        default=False,
        description=(
            "With `follow.store`: gives closed segments that are not durable here yet a second name in the folder "
            "`tierlog-held` of the broker's directory, so that they outlive the broker's removal."
        ),
    )
    max_held_bytes: int = Field(
        default=16 << 30,
        ge=0,
        description="Bytes of segments that are kept from the broker's removal at most, by `follow.store`.",
    )
    access_key: str | None = Field(
        default=None, description="With what requests to nameserver and broker are signed; unset = not signed."
    )
    secret_key: SecretStr | None = Field(
        default=None, description="The secret of `follow.access_key`; better in a file: `follow.secret_key_file`."
    )
    secret_key_file: Path | None = Field(default=None, description="A file with the secret of `follow.access_key`.")
    system_topics: bool = Field(
        default=False,
        description=(
            "Whether half messages, delayed messages and timers of the broker are archived too; false leaves a filler "
            "in their place there. Decided when such a topic is seen first."
        ),
    )
    flush_bytes: int = Field(
        default=4 << 20,
        ge=1,
        description=(
            "Bytes after which what came is flushed although more is waiting. Larger values need fewer flushes while "
            "catching up, and let a `SYNC_MASTER`'s producers wait longer."
        ),
    )
    flush_interval_ms: int = Field(
        default=200, ge=1, le=60_000, description="ms after which what came is flushed although more is waiting."
    )
    copy_interval_ms: int = Field(
        default=10_000,
        ge=100,
        le=3_600_000,
        description="ms between copies of the broker's topics, groups and their offsets.",
    )
    tail_interval_ms: int = Field(
        default=60_000,
        ge=1_000,
        le=60_000,
        description=(
            "ms after which a message is in the archive at the latest, in a tail if its segment is not full. A shorter "
            "interval costs more PUT requests."
        ),
    )
    behind_ms: int = Field(
        default=60_000,
        ge=100,
        le=86_400_000,
        description="ms of lag above which `/readyz` says that the follower is behind.",
    )
    retry_ms: int = Field(
        default=500, ge=1, le=60_000, description="ms before the first new try to reach a broker; doubled each time."
    )
    max_retry_ms: int = Field(
        default=30_000, ge=1, le=3_600_000, description="ms between tries to reach a broker at most."
    )
    promote: bool = Field(
        default=False,
        description=(
            "Whether the store takes messages itself once its broker has stopped for good and all of its log is here; "
            "the flag `--promote` does the same."
        ),
    )
    promote_after_ms: int = Field(
        default=30_000,
        ge=1_000,
        le=86_400_000,
        description="ms for which the broker has to be gone, and nothing to have come, before the store is promoted.",
    )

    listen: str | None = Field(
        default=None,
        description=(
            "`host:port` where the process answers RocketMQ's tools and clients for what the brokers no longer have; "
            "unset = it does not, and no nameserver knows it; the flag `--listen` does the same."
        ),
    )
    advertise: str | None = Field(
        default=None,
        description=(
            "`host` that the nameservers are told, with the port of `follow.listen`; unset = where it listens, or this "
            "machine's first address if that is every address."
        ),
    )
    answer_ms: int = Field(
        default=6_000,
        ge=100,
        le=60_000,
        description="ms after which a look-up is answered with what is certain by then; clients wait for 9 to 12 s.",
    )
    replay: bool = Field(
        default=True,
        description=(
            "Whether a topic `archive%TOPIC` is registered for each topic, from which consumers read all that is kept."
        ),
    )

    _host_and_port = field_validator("ha", "listen")(host_and_port)

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses, in their order."""
        return tuple(filter(None, (part.strip() for part in self.namesrv.replace(",", ";").split(";"))))

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names, each once."""
        return tuple(dict.fromkeys(self.broker.split()))
