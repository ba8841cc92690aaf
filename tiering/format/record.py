"""Commit-log record, as Apache RocketMQ writes it. Big-endian, signed. Plain-Python codec, the oracle of the kernels.

=========== ==== ===== =================== ==========================================================
offset      size type  field               meaning
=========== ==== ===== =================== ==========================================================
0           4    int32 size                whole record, this field included
4           4    int32 magic               version 1, version 2 or blank
8           4    int32 body_crc            CRC-32 of the stored body & 0x7FFFFFFF; 0 for an empty body
12          4    int32 queue_id
16          4    int32 flag                the application's, opaque
20          8    int64 queue_offset        ordinal in the queue
28          8    int64 physical_offset     position of byte 0 in the whole log
36          4    int32 sys_flag            see ``SysFlag``
40          8    int64 born_ms             client's clock
48          b    bytes born_host           IP (4 or 16) then port as int32: b = 8 or 20
48+b        8    int64 store_ms            store's clock
56+b        s    bytes store_host          as born_host: s = 8 or 20
56+b+s      4    int32 reconsume_times
60+b+s      8    int64 prepared_offset
68+b+s      4    int32 body_length         n
72+b+s      n    bytes body
72+b+s+n    1/2  int   topic_length        one byte in version 1 (at most 127), two in version 2
...         t    bytes topic               UTF-8
...         2    int16 properties_length   p
...         p    bytes properties          UTF-8, see ``tiering.format.properties``
=========== ==== ===== =================== ==========================================================

Checksum: the body's, and the whole record's where its property text ends in one (below). A record is valid if its size
equals the size recomputed from its parts, its checksums match and its stored physical offset equals its position (the
last check is ours: stale records left behind by a truncation must not pass). The blank record at the end of a segment
is int32 (bytes left, itself included) and the blank magic; the rest of the segment is undefined. The last 8 bytes of a
segment never hold message data.
Torn write: the record fails one of the checks and the log ends before it.
Written by: ``tiering.kernels.encode``. Read by: ``tiering.kernels.scan``, this module.

The checksum of a whole record, as RocketMQ 5.2 and later writes it, is a property that ends the record:

====== ==== ====== ============ =====================================================================
offset size type   field        meaning
====== ==== ====== ============ =====================================================================
0      8    bytes  name         ``__CRC32#``
8      1    byte   separator    0x01
9      10   bytes  digits       decimal CRC, **least significant digit first**, filled up with ``0``
19     1    byte   end          0x02
====== ==== ====== ============ =====================================================================

Total 20, the last bytes of the record and part of its property text. The CRC is CRC-32 & 0x7FFFFFFF over everything
before them, with queue offset, physical offset and store time in place. A property text that does not end in 0x02
gets one first. Absent in most records: the broker's setting ``enabledAppendPropCRC`` and ours ``hot.record_checksum``
are off unless switched on.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from tierlog.tiering.base.errors import BadMagicError, ChecksumMismatchError, TornRecordError
from tierlog.tiering.format.properties import RECORD_CHECKSUM, decode_properties

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
#: Ours: stands for a removed record in the archive, same length, all else zero (design section 5).
MAGIC_FILLER = 0x544C4746

BLANK_BYTES = 8
#: Version 1 with IPv4 hosts, without body, topic and properties.
FIXED_BYTES_V1 = 91
IPV6_EXTRA_BYTES = 12
MAX_TOPIC_BYTES_V1 = 127
MAX_PROPERTIES_BYTES = 32_767

_HEAD = struct.Struct(">iiiiiqqiq")
#: All before the body, with IPv4 hosts.
HEAD_V4 = struct.Struct(">iiiiiqqiq8sq8siqi")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_U16 = struct.Struct(">H")
BLANK = struct.Struct(">ii")
CHECKSUM_BYTES = 20
_START = RECORD_CHECKSUM.encode() + b"\x01"
_DIGITS = 10


class SysFlag(IntFlag):
    """Bits of ``sys_flag`` that the store itself looks at."""

    COMPRESSED = 0x1
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20


# as plain numbers: an enum's `&` costs as much as the rest of decoding a header, and its `|` alters a negative number
_BORN_HOST_V6, _STORE_HOST_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
TRANSACTION_MASK = 0xC
#: Set of prepared and rolled-back transactions, which are in no queue.
NO_QUEUE_UNIT = int(SysFlag.TRANSACTION_PREPARED)


class RecordVersion(IntEnum):
    """Widths of the topic length."""

    V1 = 1
    V2 = 2


@dataclass(frozen=True, slots=True)
class Record:
    """One decoded record."""

    size: int
    version: RecordVersion
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    topic: str
    properties_text: bytes

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_text)

    @property
    def has_queue_unit(self) -> bool:
        """Prepared and rolled-back transactions are in no queue."""
        return not self.sys_flag & NO_QUEUE_UNIT

    @property
    def message_id(self) -> str:
        """RocketMQ's offset id: store host, port and physical offset in upper-case hex."""
        return encode_message_id(self.store_host, self.physical_offset)


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """RocketMQ's offset id of a record."""
    return (store_host + _I64.pack(physical_offset)).hex().upper()


def encode_host(ip: bytes, port: int) -> bytes:
    """Returns an address field: 4 or 16 bytes of IP and the port."""
    return ip + _I32.pack(port)


def peer_host(host: str, port: int) -> bytes:
    """Returns the address field of a connection's other end; zeros for one that has no IP address.

    An IPv4 address that a socket of IPv6 shows is stored as what it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return encode_host(bytes(4), 0)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return encode_host(address.packed, port)


def parse_host(text: str) -> bytes:
    """Returns the address field that :func:`host_text` writes so; ValueError for another text."""
    host, _, port = text.rpartition(":")
    address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    if (address.version == 6) != host.startswith("[") or not (
        port.isascii() and port.isdigit() and int(port) < 1 << 16
    ):
        raise ValueError(f"{text[:100]!r} is no address with a port")
    return encode_host(address.packed, int(port))


def host_text(host: bytes) -> str:
    """Writes an address field as ``ip:port``, with an IPv6 address in brackets."""
    ip, port = ipaddress.ip_address(host[:-4]), int.from_bytes(host[-4:], "big", signed=True)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def body_crc(body: bytes) -> int:
    """Returns the stored CRC of a body."""
    return zlib.crc32(body) & 0x7FFFFFFF if body else 0


def encode_record(record: Record, *, checksum: bool = False) -> bytes:
    """Returns the record's bytes; size, version and body CRC are taken from the parts, not from the fields.

    ``checksum`` adds the property that sums the whole record.
    """
    if checksum:
        text = reserve_checksum(record.properties_text)
        return fill_checksum(encode_record(replace(record, properties_text=text)))
    topic = record.topic.encode()
    wide = record.version is RecordVersion.V2
    sys_flag = record.sys_flag & ~(_BORN_HOST_V6 | _STORE_HOST_V6)
    sys_flag |= _BORN_HOST_V6 if len(record.born_host) == 20 else 0
    sys_flag |= _STORE_HOST_V6 if len(record.store_host) == 20 else 0
    tail = b"".join(
        (
            record.born_host,
            _I64.pack(record.store_ms),
            record.store_host,
            _I32.pack(record.reconsume_times),
            _I64.pack(record.prepared_offset),
            _I32.pack(len(record.body)),
            record.body,
            _U16.pack(len(topic)) if wide else bytes((len(topic),)),
            topic,
            _U16.pack(len(record.properties_text)),
            record.properties_text,
        )
    )
    head = _HEAD.pack(
        _HEAD.size + len(tail),
        MAGIC_V2 if wide else MAGIC_V1,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        sys_flag,
        record.born_ms,
    )
    return head + tail


def decode_record(
    data: bytes | memoryview,
    position: int = 0,
    *,
    physical_offset: int | None = None,
    is_moved: bool = False,
    verify: bool = True,
) -> Record:
    """Decodes and checks the record at ``position``.

    With ``physical_offset`` the stored one must equal it. ``is_moved``: the stored one was replaced after the record
    had been summed, as RocketMQ does in its cold copies, so a record checksum says nothing. Without ``verify`` no
    checksum is compared. Raises
    :class:`BadMagicError` for anything that is no record (blank records and fillers included),
    :class:`TornRecordError` for one that contradicts its lengths, :class:`ChecksumMismatchError` for a wrong body CRC
    or record checksum.
    """
    # fixed part: what says whether this is a record, and where it ends
    view = memoryview(data)
    if len(view) - position < _HEAD.size:
        raise TornRecordError("record cut short", position=position)
    size, magic, crc, queue_id, flag, queue_offset, stored_offset, sys_flag, born_ms = _HEAD.unpack_from(view, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise BadMagicError("not a record", position=position)
    if physical_offset is not None and stored_offset != physical_offset:
        raise TornRecordError(f"record says offset {stored_offset}, expected {physical_offset}", position=position)
    if size < FIXED_BYTES_V1 or position + size > len(view):
        raise TornRecordError(f"record size {size} does not fit", position=position)
    # variable parts, in the order of the table
    end = position + size
    at = position + _HEAD.size

    def take(length: int) -> memoryview:
        nonlocal at
        if length < 0 or at + length > end:
            raise TornRecordError("record contradicts its own lengths", position=position)
        at += length
        return view[at - length : at]

    born_host = bytes(take(20 if sys_flag & _BORN_HOST_V6 else 8))
    store_ms = _I64.unpack(take(8))[0]
    store_host = bytes(take(20 if sys_flag & _STORE_HOST_V6 else 8))
    reconsume_times = _I32.unpack(take(4))[0]
    prepared_offset = _I64.unpack(take(8))[0]
    body = bytes(take(_I32.unpack(take(4))[0]))
    if magic == MAGIC_V2:
        topic_length = _U16.unpack(take(2))[0]
    else:
        topic_length = take(1)[0]
    topic = bytes(take(topic_length))
    properties_text = bytes(take(_U16.unpack(take(2))[0]))
    # lengths and checksums
    if at != end:
        raise TornRecordError("record size differs from its parts", position=position)
    if verify and body and crc != body_crc(body):
        raise ChecksumMismatchError("body checksum differs", position=position)
    if verify and not is_moved and not is_intact(view[position:end], len(properties_text)):
        raise ChecksumMismatchError("record checksum differs", position=position)
    # the topic is the only text that has to be valid
    try:
        topic_text = topic.decode()
    except UnicodeDecodeError as error:
        raise TornRecordError("topic is not UTF-8", position=position) from error
    # in the order of the fields: seventeen keywords would take 0.7 us more of some 6
    fields = (
        size, RecordVersion.V2 if magic == MAGIC_V2 else RecordVersion.V1, crc, queue_id, flag, queue_offset,
        stored_offset, sys_flag, born_ms, born_host, store_ms, store_host, reconsume_times, prepared_offset, body,
        topic_text, properties_text,
    )  # fmt: skip
    return Record(*fields)


def reserve_checksum(properties_text: bytes) -> bytes:
    """Property text with room for the checksum at its end."""
    closing = b"" if properties_text.endswith(b"\x02") or not properties_text else b"\x02"
    return properties_text + closing + _START + bytes(_DIGITS) + b"\x02"


def fill_checksum(record: bytes) -> bytes:
    """Returns a record whose text has the room, with the checksum in it."""
    covered = record[:-CHECKSUM_BYTES]
    return covered + _START + _digits(covered) + b"\x02"


def has_checksum(record: bytes | memoryview, properties_length: int) -> bool:
    """Whether a record, given with the length of its property text, ends in a checksum."""
    tail = bytes(record[-CHECKSUM_BYTES:])
    return properties_length >= CHECKSUM_BYTES and tail.startswith(_START) and tail.endswith(b"\x02")


def is_intact(record: bytes | memoryview, properties_length: int) -> bool:
    """Whether a record's checksum fits, or there is none."""
    if not has_checksum(record, properties_length):
        return True
    return bytes(record[-_DIGITS - 1 : -1]) == _digits(record[:-CHECKSUM_BYTES])


def _digits(covered: bytes | memoryview) -> bytes:
    return str(zlib.crc32(covered) & 0x7FFFFFFF)[::-1].ljust(_DIGITS, "0").encode()
