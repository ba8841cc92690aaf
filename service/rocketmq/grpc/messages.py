"""Messages as the protocol has them, and as records have them.

=============================== ==================================================================
of a message                    in the record
=============================== ==================================================================
``message_id``                  property ``UNIQ_KEY``: it is found by it, at every door
``keys``, ``tag``               ``KEYS`` (with a blank between two), ``TAGS``
``message_group``               ``__SHARDINGKEY``; the queue is that which REST chooses by it
``delivery_timestamp``          ``TIMER_DELIVER_MS``
``user_properties``             properties of the same names
``born_timestamp``              the born time
``born_host``                   ``__BORNHOST``, as it is a name; the born host is the peer's address
``trace_context``, ``priority`` ``TRACE_CONTEXT``, ``_SYS_MSG_PRIORITY_``
``body``                        the body as the application has it: packed with gzip, which no other
                                client could read, it is unpacked
=============================== ==================================================================

What is read is made of the record in the same way, whichever door wrote it; a body that a client of remoting
compressed is inflated.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from tierlog.service.rocketmq.grpc.codes import Code, RefusedError
from tierlog.service.rocketmq.grpc.protocol import enums, messages
from tierlog.tiering.format.properties import KEYS, NAME_END, OWN_FIELDS, SHARDING_KEY, TAGS, UNIQ_KEY, VALUE_END
from tierlog.tiering.format.record import CHECKSUM_BYTES, MAX_PROPERTIES_BYTES
from tierlog.tiering.message.stored_message import StoredMessage

BORN_HOST, _TRACE_CONTEXT, _PRIORITY = "__BORNHOST", "TRACE_CONTEXT", "_SYS_MSG_PRIORITY_"
_DELIVER_MS = "TIMER_DELIVER_MS"
PREPARED, PRODUCER_GROUP, _IMMUNITY_S = "TRAN_MSG", "PGROUP", "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Longest time for which nobody asks about a transaction.
_MOST_IMMUNE_S = 3_600
_DEAD_TOPIC, _DEAD_ID = "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"
_DELAYS = ("DELAY", _DELIVER_MS, "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
#: Names that RocketMQ keeps for itself: nobody sets them as a user's property, and none is shown as one.
SYSTEM_NAMES = OWN_FIELDS | {
    UNIQ_KEY, SHARDING_KEY, BORN_HOST, _TRACE_CONTEXT, _PRIORITY, _DEAD_TOPIC, _DEAD_ID, *_DELAYS,
    PREPARED, PRODUCER_GROUP, _IMMUNITY_S,
    "TRACE_ON", "MSG_REGION", "WAIT", "RETRY_TOPIC", "ORIGIN_GROUP", "REAL_TOPIC", "REAL_QID",
    "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG",
    "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO", "EXTEND_UNIQ_INFO", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT",
    "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL",
    "BORN_TIMESTAMP", "__transactionId__", "TRANSACTION_CHECK_TIMES",
}  # fmt: skip
#: What Java takes for a control character.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
MAX_PROPERTIES = 128
_MAX_GROUP_BYTES = 64
_MAX_TEXT_BYTES = MAX_PROPERTIES_BYTES - CHECKSUM_BYTES
#: zlib finds out itself whether it is gzip or its own form.
_ANY_FORM = 47


class SentMessage(NamedTuple):
    """What a client sent, as a record takes it."""

    topic: str
    body: bytes
    properties: bytes
    born_ms: int
    message_id: str
    message_group: str
    has_delay: bool
    is_prepared: bool = False


def sent_message(message: Any, topic: str, *, now_ms: int, max_body_bytes: int) -> SentMessage:
    """Checks a message and lays it out; :class:`RefusedError` with the code of the first thing that is wrong."""
    of = message.system_properties
    has_delay = of.HasField("delivery_timestamp")
    is_prepared = of.message_type == enums.MessageType.TRANSACTION
    properties = _property_text(message, milliseconds(of.delivery_timestamp) if has_delay else None)
    if is_prepared:
        properties += _prepared_text(of, topic)
    born_ms = milliseconds(of.born_timestamp) if of.HasField("born_timestamp") else now_ms
    body = _body(message, max_body_bytes)
    return SentMessage(topic, body, properties, born_ms, of.message_id, of.message_group, has_delay, is_prepared)


def _property_text(message: Any, deliver_ms: int | None) -> bytes:
    of, users = message.system_properties, message.user_properties
    found = dict(users)
    _check_user_properties(found)
    _check_text(of.tag, Code.ILLEGAL_MESSAGE_TAG, "tag")
    if "|" in of.tag:
        raise RefusedError(Code.ILLEGAL_MESSAGE_TAG, "a tag has no '|', which separates tags in filters")
    keys = " ".join(of.keys)
    for key in of.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "key")
    if not of.message_id.strip():
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, "a message has an id, which its producer makes")
    _check_text(of.message_id, Code.ILLEGAL_MESSAGE_ID, "message id")
    _check_text(of.message_group, Code.ILLEGAL_MESSAGE_GROUP, "message group")
    if len(of.message_group.encode()) > _MAX_GROUP_BYTES:
        raise RefusedError(Code.ILLEGAL_MESSAGE_GROUP, f"a message group has {_MAX_GROUP_BYTES} bytes at most")
    _check_text(of.born_host, Code.BAD_REQUEST, "born host")
    _check_text(of.trace_context, Code.BAD_REQUEST, "trace context")
    found |= {
        KEYS: keys, TAGS: of.tag, UNIQ_KEY: of.message_id, SHARDING_KEY: of.message_group, BORN_HOST: of.born_host,
        _TRACE_CONTEXT: of.trace_context,
    }  # fmt: skip
    if deliver_ms is not None:
        found[_DELIVER_MS] = str(deliver_ms)
    if of.HasField("priority"):
        found[_PRIORITY] = str(of.priority)
    text = "".join([f"{name}{NAME_END}{value}{VALUE_END}" for name, value in found.items() if value]).encode()
    if len(text) > _MAX_TEXT_BYTES:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"keys, tag and properties take {len(text)} of {_MAX_TEXT_BYTES} bytes"
        )
    return text


def _prepared_text(of: Any, topic: str) -> bytes:
    """What says that a message waits for the end of its transaction, and who is asked about it: gRPC's producers have
    no group, and are asked by the topic that they send to."""
    found = {PREPARED: "true", PRODUCER_GROUP: topic}
    if of.HasField("orphaned_transaction_recovery_duration"):
        seconds = of.orphaned_transaction_recovery_duration.seconds
        if not 0 <= seconds <= _MOST_IMMUNE_S:
            raise RefusedError(Code.BAD_REQUEST, f"a transaction may be left alone for {_MOST_IMMUNE_S} s at most")
        found[_IMMUNITY_S] = str(seconds)
    return "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in found.items()).encode()


def _check_user_properties(found: Mapping[str, str]) -> None:
    if len(found) > MAX_PROPERTIES:
        raise RefusedError(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(found)} properties; a message has {MAX_PROPERTIES} at most"
        )
    for name, value in found.items():
        if not name or not value:
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} has an empty name or value")
        if name in SYSTEM_NAMES:
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} has a meaning of its own")
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} has a control character")


def _check_text(text: str, code: int, what: str) -> None:
    if text and (not text.strip() or _CONTROL.search(text)):
        raise RefusedError(code, f"the {what} is blank or has a control character")


def _body(message: Any, max_body_bytes: int) -> bytes:
    body: bytes = message.body
    of = message.system_properties
    if len(body) > max_body_bytes:
        raise _too_large(max_body_bytes)
    if not body:
        raise RefusedError(Code.MESSAGE_BODY_EMPTY, "a message has a body")
    if of.HasField("body_digest") and not _has_digest(body, of.body_digest):
        raise RefusedError(Code.MESSAGE_CORRUPTED, "the body is not what its digest says")
    if of.body_encoding != enums.Encoding.GZIP:
        return body
    stream = zlib.decompressobj(_ANY_FORM)
    try:
        found = stream.decompress(body, max_body_bytes + 1)
    except zlib.error:
        raise RefusedError(Code.MESSAGE_CORRUPTED, "the body is not what gzip makes") from None
    if len(found) > max_body_bytes:
        raise _too_large(max_body_bytes)
    if not stream.eof:
        raise RefusedError(Code.MESSAGE_CORRUPTED, "the body is cut short")
    return found


def _too_large(max_body_bytes: int) -> RefusedError:
    return RefusedError(Code.MESSAGE_BODY_TOO_LARGE, f"a body has {max_body_bytes} bytes at most")


def _has_digest(body: bytes, digest: Any) -> bool:
    """Whether it is the body's digest. Clients write a CRC as a hexadecimal number with and without leading zeros, or
    as a decimal one."""
    text = digest.checksum
    match digest.type:
        case enums.DigestType.CRC32:
            crc = zlib.crc32(body)
            return bool(text.lstrip("0").upper() == f"{crc:X}".lstrip("0") or text == str(crc))
        case enums.DigestType.MD5:
            return bool(text.upper() == _md5(body))
        case enums.DigestType.SHA1:
            return bool(text.upper() == hashlib.sha1(body, usedforsecurity=False).hexdigest().upper())
    return True


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


# read


def shown_message(stored: StoredMessage, topic: Any) -> Any:
    """Makes what a client gets of a stored message; ``topic`` is the one that it asked for.

    The digest is an MD5, the one kind that all clients write alike: of a CRC some expect leading zeros, some none, and
    some a decimal number, and throw away what has another.
    """
    record, properties = stored.record, stored.record.properties
    body, _ = stored.readable_body()
    message = messages.Message(
        topic=topic,
        body=body,
        user_properties={name: value for name, value in properties.items() if name not in SYSTEM_NAMES},
    )
    of = message.system_properties
    if TAGS in properties:
        of.tag = properties[TAGS]
    of.keys.extend(stored.keys)
    of.message_id = properties.get(UNIQ_KEY) or record.message_id
    of.body_digest.type, of.body_digest.checksum = enums.DigestType.MD5, _md5(body)
    of.body_encoding = enums.Encoding.IDENTITY
    of.message_type = _message_type(properties)
    set_milliseconds(of.born_timestamp, record.born_ms)
    set_milliseconds(of.store_timestamp, record.store_ms)
    of.born_host = properties.get(BORN_HOST) or host_text(record.born_host)
    of.store_host = address_text(record.store_host)
    of.queue_id, of.queue_offset = record.queue_id, record.queue_offset
    of.delivery_attempt = record.reconsume_times + 1
    if SHARDING_KEY in properties:
        of.message_group = properties[SHARDING_KEY]
    if _TRACE_CONTEXT in properties:
        of.trace_context = properties[_TRACE_CONTEXT]
    if properties.get(_PRIORITY, "").isdecimal():
        of.priority = min(int(properties[_PRIORITY][:10]), (1 << 31) - 1)
    deliver_ms = properties.get(_DELIVER_MS, "")
    if deliver_ms.isascii() and deliver_ms.isdecimal() and len(deliver_ms) < 15:
        set_milliseconds(of.delivery_timestamp, int(deliver_ms))
    if _DEAD_TOPIC in properties and _DEAD_ID in properties:
        of.dead_letter_queue.topic, of.dead_letter_queue.message_id = properties[_DEAD_TOPIC], properties[_DEAD_ID]
    return message


def _message_type(properties: Mapping[str, str]) -> int:
    kinds: Any = enums.MessageType
    if properties.get(PREPARED) == "true":
        return int(kinds.TRANSACTION)
    if any(name in properties for name in _DELAYS):
        return int(kinds.DELAY)
    return int(kinds.FIFO if SHARDING_KEY in properties else kinds.NORMAL)


# times and addresses


def milliseconds(time: Any) -> int:
    """Returns a timestamp or duration of the protocol in ms."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def set_milliseconds(time: Any, ms: int) -> None:
    """Sets a timestamp or duration of the protocol."""
    time.seconds, time.nanos = ms // 1000, ms % 1000 * 1_000_000


def host_text(host: bytes) -> str:
    """Returns the address in a record's host field, without the port; empty for none."""
    address = ipaddress.ip_address(host[:-4])
    return "" if address.is_unspecified else str(address)


def address_text(host: bytes) -> str:
    """Returns a record's host field as ``address:port``."""
    port = int.from_bytes(host[-4:], "big", signed=True)
    return f"[{ipaddress.ip_address(host[:-4])}]:{port}" if len(host) > 8 else f"{host_text(host)}:{port}"
