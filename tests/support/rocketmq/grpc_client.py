"""A plain client of ``apache.rocketmq.v2`` that sends what it is told to, well-formed or not."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping
from typing import Any, Self

import grpc

from tierlog.service.rocketmq.grpc.messages import milliseconds, set_milliseconds
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE, enums, messages

CALLS_BY_NAME = {call.name: call for call in CALLS}
Code: Any = enums.Code
_TIMEOUT_S = 30.0


class GrpcClient:
    """One client with a connection of its own. Every call takes the fields of its request, or a request."""

    def __init__(
        self,
        address: str,
        *,
        client_id: str | None = "tests@1",
        metadata: Mapping[str, str] | None = None,
        credentials: Any = None,
    ) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        named = {} if client_id is None else {"x-mq-client-id": client_id}
        self.metadata = tuple({**named, **(metadata or {})}.items())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()

    def call(self, name: str, request: Any = None, *, timeout_s: float = _TIMEOUT_S, **fields: Any) -> Any:
        """Returns the answer of a call, or the list of them if it streams."""
        kind = CALLS_BY_NAME[name]
        make = self.channel.unary_stream if kind.response_streams else self.channel.unary_unary
        run = make(
            f"/{SERVICE}/{name}",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        found = run(kind.request(**fields) if request is None else request, timeout=timeout_s, metadata=self.metadata)
        return list(found) if kind.response_streams else found

    def begin(self, name: str, *, timeout_s: float = _TIMEOUT_S, **fields: Any) -> Any:
        """Begins a call that streams, and returns it: it is iterated, or cancelled."""
        kind = CALLS_BY_NAME[name]
        run = self.channel.unary_stream(
            f"/{SERVICE}/{name}",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        return run(kind.request(**fields), timeout=timeout_s, metadata=self.metadata)

    def telemetry(self) -> Telemetry:
        """Opens a stream of commands."""
        return Telemetry(self)

    # what most tests do

    def send(self, *sent: Any) -> Any:
        return self.call("SendMessage", messages=sent)

    def receive(
        self, group: str = "g", topic: str = "orders", *, wait_ms: int = 0, limit: int = 32, **fields: Any
    ) -> tuple[Any, list[Any]]:
        """The status of a call and its messages."""
        return received(list(self.begin("ReceiveMessage", **receiving(group, topic, wait_ms, limit, **fields))))

    def ack(self, *given: Any, group: str = "g", topic: str = "orders") -> Any:
        entries = [
            messages.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in given
        ]
        return self.call("AckMessage", group=resource(group), topic=resource(topic), entries=entries)


class Telemetry:
    """A stream of commands in both directions."""

    def __init__(self, client: GrpcClient) -> None:
        kind = CALLS_BY_NAME["Telemetry"]
        self._commands: queue.Queue[Any] = queue.Queue()
        run = client.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )
        self.answers = run(iter(self._commands.get, None), metadata=client.metadata, timeout=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._commands.put(None)
        self.answers.cancel()

    def ask(self, **fields: Any) -> Any:
        """Sends a command and returns the next one of the service."""
        self._commands.put(messages.TelemetryCommand(**fields))
        return next(self.answers)


def resource(name: str) -> Any:
    return messages.Resource(name=name)


def message(
    body: bytes = b"body",
    *,
    topic: str = "orders",
    message_id: str = "01",
    born_ms: int | None = None,
    **properties: Any,
) -> Any:
    """A message whose properties of the system are those given, and ``user``."""
    user = properties.pop("user", {})
    made = messages.Message(topic=resource(topic), body=body, user_properties=user)
    deliver_ms = properties.pop("deliver_ms", None)
    made.system_properties.MergeFrom(messages.SystemProperties(message_id=message_id, **properties))
    if born_ms is not None:
        set_milliseconds(made.system_properties.born_timestamp, born_ms)
    if deliver_ms is not None:
        set_milliseconds(made.system_properties.delivery_timestamp, deliver_ms)
    return made


def message_queue(topic: str = "orders", queue_id: int = -1) -> Any:
    return messages.MessageQueue(topic=resource(topic), id=queue_id)


def receiving(
    group: str, topic: str, wait_ms: int, limit: int, *, queue_id: int = -1, invisible_ms: int = 10_000, tag: str = "*",
    **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a ReceiveMessage."""
    made = {
        "group": resource(group),
        "message_queue": message_queue(topic, queue_id),
        "filter_expression": messages.FilterExpression(type=enums.FilterType.TAG, expression=tag),
        "batch_size": limit,
    }
    request = messages.ReceiveMessageRequest()
    set_milliseconds(request.invisible_duration, invisible_ms)
    set_milliseconds(request.long_polling_timeout, wait_ms)
    made |= {"invisible_duration": request.invisible_duration, "long_polling_timeout": request.long_polling_timeout}
    return made | fields


def received(answers: list[Any]) -> tuple[Any, list[Any]]:
    """The status and the messages of a stream, whose order is checked: a status, messages, the time of delivery."""
    kinds = [answer.WhichOneof("content") for answer in answers]
    found = [answer.message for answer in answers if answer.WhichOneof("content") == "message"]
    if answers[0].status.code != Code.OK:
        assert kinds == ["status"], kinds
    else:
        assert kinds == ["status", *["message"] * len(found), "delivery_timestamp"], kinds
        assert milliseconds(answers[-1].delivery_timestamp) > 0
    return answers[0].status, found


def bodies(given: list[Any]) -> Iterator[bytes]:
    return (one.body for one in given)
