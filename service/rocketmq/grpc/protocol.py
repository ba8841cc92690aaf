"""Message classes, enums and calls of ``apache.rocketmq.v2``, made of ``messaging.proto`` when this is imported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tierlog.service.rocketmq.grpc.proto_text import read_proto

_FILE = "messaging.proto"
_PACKAGE = "apache.rocketmq.v2"


@dataclass(frozen=True, slots=True)
class CallKind:
    """One call of the service: its name, the classes of its two sides, and which of them are streams."""

    name: str
    request: Any
    response: Any
    request_streams: bool
    response_streams: bool


def _pool() -> DescriptorPool:
    # a pool of our own: a program may have a client's classes of the same names beside these
    pool = DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    text = files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    pool.AddSerializedFile(read_proto(text, _FILE).SerializeToString())
    return pool


_FOUND = _pool().FindFileByName(_FILE)
#: The classes of all messages, by their names; they are made at runtime, so that no type checker knows their fields.
messages: Any = SimpleNamespace(
    **{name: GetMessageClass(found) for name, found in _FOUND.message_types_by_name.items()}
)
#: The enums, by their names.
enums: Any = SimpleNamespace(
    **{
        name: IntEnum(name, {value.name: value.number for value in found.values})
        for name, found in _FOUND.enum_types_by_name.items()
    }
)
_SERVICE = _FOUND.services_by_name["MessagingService"]
#: Its name on the wire: a call is ``/SERVICE/CALL``.
SERVICE: str = _SERVICE.full_name
CALLS = tuple(
    CallKind(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for method in _SERVICE.methods
)
