"""The protocol's text and what is made of it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tierlog.service.rocketmq.grpc.proto_text import read_proto
from tierlog.service.rocketmq.grpc.protocol import CALLS, SERVICE, enums, messages

#: Written by ``described`` from the descriptors that the Python client 5.1.2 was built with.
CLIENTS = Path(__file__).with_name("protocol_of_clients.json")


def described(file: Any) -> dict[str, Any]:
    """Everything about a file's descriptor that is seen on the wire."""

    def fields(message: Any) -> dict[str, Any]:
        found = {
            field.name: [
                field.number, field.type, field.label, field.type_name.removeprefix(".apache.rocketmq.v2."),
                field.proto3_optional,
                message.oneof_decl[field.oneof_index].name
                if field.HasField("oneof_index") and not field.proto3_optional else None,
            ]
            for field in message.field
        }  # fmt: skip
        return {"fields": found, "inside": {inner.name: fields(inner) for inner in message.nested_type}} | {
            "enums": {enum.name: {value.name: value.number for value in enum.value} for enum in message.enum_type}
        }

    return {
        "messages": {message.name: fields(message) for message in file.message_type},
        "enums": {enum.name: {value.name: value.number for value in enum.value} for enum in file.enum_type},
        "calls": {
            f"{file.package}.{service.name}/{method.name}": [
                method.input_type, method.output_type, method.client_streaming, method.server_streaming,
            ]
            for service in file.service
            for method in service.method
        },
    }  # fmt: skip


def test_the_protocol_is_that_of_the_clients() -> None:
    text = files("tierlog.service.rocketmq.grpc").joinpath("messaging.proto").read_text(encoding="utf-8")
    ours, theirs = described(read_proto(text, "messaging.proto")), json.loads(CLIENTS.read_text(encoding="utf-8"))
    for kind in ("messages", "enums", "calls"):
        assert ours[kind] == theirs[kind]


def test_a_message_survives_its_bytes_with_every_kind_of_field() -> None:
    message = messages.Message(body=b"\0\xff", user_properties={"a": "b", "c": ""})
    message.topic.name = "orders"
    of = message.system_properties
    of.tag, of.message_type, of.queue_id, of.queue_offset = "", enums.MessageType.FIFO, -1, 1 << 40
    of.keys.extend(["k1", "k2"])
    of.born_timestamp.seconds, of.born_timestamp.nanos = 1_700_000_000, 123_000_000
    again = messages.Message.FromString(message.SerializeToString())
    assert again == message
    assert again.system_properties.HasField("tag"), "an empty tag is one"
    assert not again.system_properties.HasField("receipt_handle")


def test_one_content_of_an_answer_takes_the_place_of_another() -> None:
    answer = messages.ReceiveMessageResponse(status=messages.Status(code=enums.Code.OK))
    answer.message.body = b"x"
    assert answer.WhichOneof("content") == "message"


def test_every_call_of_the_service_is_known_with_its_streams() -> None:
    assert SERVICE == "apache.rocketmq.v2.MessagingService"
    streams = {call.name: (call.request_streams, call.response_streams) for call in CALLS}
    assert {name for name, both in streams.items() if both != (False, False)} == {
        "ReceiveMessage", "PullMessage", "Telemetry",
    }  # fmt: skip
    assert streams["Telemetry"] == (True, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('syntax = "proto3";\nextend A {}', "line 2: 'extend'"),
        ("message A {\n  int32 a := 1;\n}", "line 2: ':'"),
        ("service S {\n  option x = 1;\n}", "line 2: 'option'"),
    ],
)
def test_what_the_reader_does_not_know_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_proto(text, "a.proto")
