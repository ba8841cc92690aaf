"""Settings of the service: where it listens, how much it does and holds at once, who may do what, and what it tells."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tierlog.service.config.group import SettingGroup

_DAY_MS = 86_400_000


class FlowSettings(SettingGroup):
    """How much is done and held at once, and how long anybody is waited for."""

    max_request_bytes: int = Field(
        default=64 << 20,
        ge=1024,
        description=(
            "Bytes. A larger request body is refused with 413 before it is read completely; a compressed body "
            "counts by its decoded size, as it is decoded."
        ),
    )
    max_request_messages: int = Field(
        default=1_000_000,
        ge=1,
        le=100_000_000,
        description=(
            "Messages in one request; more are refused with 413. However short, each counts 512 bytes against "
            "`serve.body_memory_bytes` until it is appended."
        ),
    )
    body_memory_bytes: int = Field(
        default=512 << 20,
        ge=1 << 20,
        description=(
            "Bytes of memory for the bodies of all requests together, with what is made of them: a body of JSON or "
            "NDJSON counts eight times, or 512 bytes a message if that is more. A request that does not fit waits for "
            "`serve.wait_ms` and then gets 429; a larger one than all of this is let in when it is alone."
        ),
    )
    answer_memory_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        description=(
            "Bytes of memory that answers hold together while they wait for their readers, as messages, which go out "
            "in pieces of text, or as bytes. An answer that does not fit waits for `serve.wait_ms` and then gets 429; "
            "a larger one than all of this is let in when it is alone."
        ),
    )
    wait_ms: int = Field(
        default=1_000,
        ge=0,
        le=60_000,
        description=(
            "ms that a request waits for room for its body or its answer before it gets 429. A longer wait "
            "holds more connections and threads."
        ),
    )
    receive_timeout_ms: int = Field(
        default=30_000,
        ge=10,
        le=3_600_000,
        description=(
            "ms within which a request's head, and then its body, must arrive; a body that does not gets 408. "
            "64 MiB in 30 s are 18 Mbit/s: slow clients should send smaller batches."
        ),
    )
    send_timeout_ms: int = Field(
        default=30_000,
        ge=10,
        le=3_600_000,
        description=(
            "ms. A client that takes its answer more slowly than `serve.min_send_rate` for this long is cut "
            "off, and the memory of the answer is freed."
        ),
    )
    min_send_rate: int = Field(
        default=1_000,
        ge=0,
        le=1 << 30,
        description=(
            "Bytes a second that a client must take of an answer, measured every `serve.send_timeout_ms`; 0 = "
            "one byte each time is enough."
        ),
    )
    request_timeout_ms: int = Field(
        default=60_000,
        ge=10,
        le=86_400_000,
        description=(
            "ms of work after which a request is answered with 503, whether or not its work gets done; for "
            "requests without a time limit of their own, so not for queries, downloads, `/v1/admin` and long "
            "polls."
        ),
    )
    keep_alive_ms: int = Field(
        default=30_000,
        ge=1_000,
        le=3_600_000,
        description="ms after which an idle connection is closed.",
    )
    max_connections: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description=(
            "Connections at once, unfinished TLS handshakes included; fewer if the limit of open files leaves "
            "no more beside the store. A connection beyond that replaces the one that has gone longest without "
            "a request of a known caller; if there is none, it gets 503 and is closed."
        ),
    )
    max_header_bytes: int = Field(
        default=32 << 10,
        ge=4_096,
        le=1 << 20,
        description="Bytes of a request's line and headers together; more is answered with 400.",
    )
    append_threads: int = Field(
        default=32,
        ge=2,
        le=1_024,
        description=(
            "Threads that append. A quarter of them, at least one, is kept for appends that do not wait for the "
            "archive. More threads let more requests share a flush."
        ),
    )
    max_appends: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Appends at once, those that wait for a thread or for their body included; a further one gets 429.",
    )
    read_threads: int = Field(
        default=32,
        ge=2,
        le=1_024,
        description=(
            "Threads that answer queries, pulls and what else reads. A quarter of them, one at least, is kept for "
            "reads of what is hot: a read that would wait for the archive beyond that gets 429."
        ),
    )
    max_reads: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Reads at once, those that wait for a thread included; a further one gets 429.",
    )
    max_long_polls: int = Field(
        default=2_048,
        ge=1,
        le=1_000_000,
        description="Pulls with `wait_ms` at once; a further one gets 429. They need a thread only while they read.",
    )
    max_streams: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description=(
            "Queries with `all=true` at once; a further one gets 429. Each holds `serve.stream_page_bytes` "
            "while it is sent."
        ),
    )
    stream_threads: int = Field(
        default=2,
        ge=1,
        le=1_024,
        description=(
            "Threads that read for queries with `all=true`, in turns. They keep a processor busy: more threads "
            "take time from everything else; with fewer, a slow archive delays these queries more."
        ),
    )
    stream_page_bytes: int = Field(
        default=4 << 20,
        ge=1_024,
        le=32 << 20,
        description=(
            "Bytes of messages that a query with `all=true` reads at a time, one message at least. Larger pages read "
            "a little faster and hold more memory for a slow reader."
        ),
    )
    max_forwards: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description=(
            "Requests that are forwarded to one other store of the cluster at once, long polls and downloads "
            "included; a further one gets 429. They take no place and no thread from requests that are answered "
            "here. Each is a connection, and holds at most 256 KiB while bytes flow."
        ),
    )
    admin_threads: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Threads for `/v1/admin`; four times as many requests may wait for one, a further one gets 429.",
    )


class ServeSettings(FlowSettings):
    """The address of `tierlog serve`, and its limits."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on; `0.0.0.0` is every interface."
    )
    port: int = Field(default=8080, ge=0, le=65_535, description="TCP port; 0 takes a free one and prints it.")

    @model_validator(mode="after")
    def _threads_get_work(self) -> ServeSettings:
        if self.max_appends < self.append_threads or self.max_reads < self.read_threads:
            raise ValueError("max_appends or max_reads is below its threads")
        return self

    tls_certificate: str | None = Field(
        default=None,
        description=(
            "PEM file with the HTTPS certificate and its intermediate certificates; unset = plain HTTP. Read "
            "again within 10 s of a change."
        ),
    )
    tls_key: str | None = Field(
        default=None,
        description="PEM file with the certificate's key, without a passphrase; unset = in the certificate's file.",
    )
    tls_client_ca: str | None = Field(
        default=None,
        description=(
            "PEM file with authorities; only clients with a certificate signed by one of them may connect "
            "(mutual TLS), in addition to tokens. Unset = no client certificate is needed. Read at start only."
        ),
    )

    @model_validator(mode="after")
    def _has_certificate(self) -> ServeSettings:
        if self.tls_certificate is None and (self.tls_key is not None or self.tls_client_ca is not None):
            raise ValueError("tls_key and tls_client_ca need tls_certificate")
        return self


class AccessSettings(SettingGroup):
    """Rights over HTTP and at the doors for RocketMQ's clients (docs/access.md). Without any token, the service answers
    on the loopback only."""

    tokens_file: str | None = Field(
        default=None,
        description=(
            "TOML file with the hashes of tokens and their rights; read again within a second of being "
            "replaced. If `access.tokens` is unset too, everybody who reaches the loopback may do everything."
        ),
    )
    tokens: str | None = Field(
        default=None,
        description=(
            "The same entries as text, for a secret in the environment: "
            "`name:sha256[/secret]:scopes:topics[:expiry]`, one per line or separated by `;`. Read at start only."
        ),
    )
    cors_origins: str = Field(
        default="",
        description=(
            "Origins of other web pages whose scripts may call the service, separated by spaces, such as "
            "`https://console.example.com`; empty = none. `*` is refused."
        ),
    )
    audit_max_bytes: int = Field(
        default=64 << 20,
        ge=1 << 16,
        description=(
            "Bytes of disk for the log of admin calls, about 500 each; above it, the oldest eighth is removed."
        ),
    )

    @field_validator("cors_origins")
    @classmethod
    def _named(cls, value: str) -> str:
        for origin in value.split():
            parts = urlsplit(origin)
            if origin == "*" or parts.scheme not in ("http", "https") or not parts.hostname or "*" in origin:
                raise ValueError("an origin is named in full, such as https://console.example.com")
            if origin != f"{parts.scheme}://{parts.netloc}" or "@" in origin:
                raise ValueError("an origin is scheme, host and perhaps port, without a path or a / at its end")
        return value

    @property
    def origins(self) -> list[str]:
        """The origins of :attr:`cors_origins`, as browsers write them."""
        return [origin.lower() for origin in self.cors_origins.split()]


class ProduceSettings(SettingGroup):
    """Appends: the memory of those with an `Idempotency-Key`, so that one sent again appends nothing twice; delays."""

    window_ms: int = Field(
        default=_DAY_MS,
        ge=1_000,
        le=366 * _DAY_MS,
        description=(
            "ms for which a producer's messages are remembered; a request that is repeated later appends them "
            "again. Should be longer than the longest task of a Spark job that writes here."
        ),
    )
    window_requests: int = Field(
        default=100_000,
        ge=1,
        le=100_000_000,
        description=(
            "Number of newest requests to remember, whatever their age; about 400 bytes of memory each, and 60 "
            "bytes of a file that is rewritten every 30 s while such requests come in."
        ),
    )
    max_delay_ms: int = Field(
        default=40 * _DAY_MS,
        ge=1,
        le=3_660 * _DAY_MS,
        description=(
            "ms by which a message may be delayed; one that asks for more is refused. Each that waits takes 20 bytes "
            "of memory."
        ),
    )
    born_host: bool = Field(
        default=False,
        description=(
            "Whether the record of a message that comes over HTTP holds the address and port of the other end of its "
            "connection, as its born host, which is archived with it. Behind a proxy that is the proxy, and of a "
            "request that another node forwarded, that node: no header is believed. Messages of RocketMQ's clients "
            "hold theirs in any case. With IPv6, a record is 12 bytes longer."
        ),
    )


class LogSettings(SettingGroup):
    """Log lines, which go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description=(
            "Least severe level that is logged. `info` logs every request but those for health and metrics, "
            "about 30 microseconds each; `warning` logs what an operator should see."
        ),
    )
    format: Literal["auto", "json", "text"] = Field(
        default="auto",
        description="`json`: one object per line; `text`: for people; `auto`: text on a terminal, else json.",
    )
    access_every: int = Field(
        default=1,
        ge=0,
        description=(
            "Log one line per N successful requests (0 = none). Requests answered with 400 or more are always logged."
        ),
    )


class TracingSettings(SettingGroup):
    """Traces for an OpenTelemetry collector; needs `tierlog[tracing]`."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description=(
            "URL of a collector that takes OTLP over HTTP, such as `http://127.0.0.1:4318` (`/v1/traces` is "
            "added to it); unset = no traces, and nothing is loaded for them. While the collector is down, "
            "traces are lost and nothing waits."
        ),
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description=(
            "Share of requests that are traced, unless the caller's `traceparent` has decided. A traced request "
            "takes about 0.1 ms more, and up to a few kB on the way to the collector."
        ),
    )
    service_name: str = Field(
        default="tierlog", min_length=1, description="Name of the service in traces (`service.name`)."
    )


class MetricsSettings(SettingGroup):
    """The contents of `/metrics`."""

    max_groups: int = Field(
        default=100,
        ge=0,
        le=1_000,
        description=(
            "Consumer groups whose lag is shown, one series each, the first by name; 0 = none. More groups make "
            "each scrape, and storing it, more expensive."
        ),
    )
