"""Settings of the doors for RocketMQ's clients, which are shut unless they are told where to listen."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from tierlog.service.config.group import SettingGroup, host_and_port


class RocketmqSettings(SettingGroup):
    """Doors for clients of Apache RocketMQ; needs a store."""

    listen: str | None = Field(
        default=None,
        description=(
            "`host:port` of the remoting door, such as `127.0.0.1:9876`: RocketMQ's clients find the nameserver and "
            "the broker there; unset = shut."
        ),
    )
    grpc_listen: str | None = Field(
        default=None,
        description=(
            "`host:port` of the gRPC door, such as `127.0.0.1:8081`, for clients of `apache.rocketmq.v2`; "
            "unset = shut. It needs `tierlog[grpc]`."
        ),
    )
    advertise: str | None = Field(
        default=None,
        description=(
            "`host` that clients are told to reach the doors at, with the doors' ports; unset = where a door "
            "listens, or this machine's first address if that is every address."
        ),
    )
    cluster: str = Field(
        default="DefaultCluster",
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="Name of the cluster that RocketMQ's tools are told.",
    )
    max_connections: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description=(
            "Connections of each door at once; a further one is closed. Of the gRPC door, also the clients that are "
            "known. gRPC's library counts its connections itself, so that doors cannot share a bound."
        ),
    )
    max_frame_bytes: int = Field(
        default=16 << 20,
        ge=64 << 10,
        le=1 << 30,
        description="Bytes of one frame or gRPC message; a connection that sends a longer one is closed.",
    )
    max_attempts: int = Field(
        default=16,
        ge=1,
        le=1_000,
        description=(
            "How often a message is delivered to a group that did not say otherwise, before it goes to the group's "
            "dead-letter topic `%DLQ%group`."
        ),
    )

    request_mode: Literal["pull", "pop"] = Field(
        default="pull",
        description=(
            "How consumers of the remoting door get messages that leave it to the broker to share out queues "
            "(`clientRebalance = false`), where `mqadmin setConsumeMode` has not said it for the topic and group: "
            "`pull` gives each queue to one of them; `pop` gives each message to one of them, so that a slow one holds "
            "up no others. All other consumers pull."
        ),
    )
    fifo_groups: str = Field(
        default="",
        description=(
            "Consumer groups of the gRPC door that get the messages of a message group in their order, each when the "
            "one before is done: names or shell patterns, separated by blanks."
        ),
    )

    long_poll_ms: int = Field(
        default=20_000,
        ge=1_000,
        le=60_000,
        description=(
            "ms that a call of the gRPC door waits for messages at most, which push consumers are told. Those of Java "
            "and Node end only when their last call does; a shorter time has more calls."
        ),
    )
    consume_at: str | None = Field(
        default=None,
        description=(
            "Of a gateway: `host:port` of the store's own gRPC door, which consumers are sent to; unset = the gateway "
            "takes messages only."
        ),
    )

    _host_and_port = field_validator("listen", "grpc_listen", "consume_at")(host_and_port)
