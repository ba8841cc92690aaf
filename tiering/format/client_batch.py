"""Client batch, as RocketMQ's clients send many messages to one queue in one request. Big-endian, signed.

The entries lie one behind the other, and nothing else does:

====== ==== ===== ================= ======================================================
offset size type  field             meaning
====== ==== ===== ================= ======================================================
0      4    int32 size              whole entry, this field included
4      4    int32 magic             not looked at
8      4    int32 body_crc          not looked at: the record has one of its own
12     4    int32 flag              the application's, opaque
16     4    int32 body_length       n
20     n    bytes body
20+n   2    int16 properties_length p
22+n   p    bytes properties        as in the record, see ``tiering.format.properties``
====== ==== ===== ================= ======================================================

Checksum: none that counts. A batch in which one length contradicts another is refused as a whole.
Torn write: it is never stored as it came; every entry becomes a record.
Written by: clients. Read by: ``tiering.kernels.client_batch``, this module, which is its oracle.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from tierlog.tiering.base.errors import InvalidRequestError

_HEAD = struct.Struct(">iiiii")
_I16 = struct.Struct(">h")
#: An entry without body and properties.
ENTRY_BYTES = _HEAD.size + _I16.size


class BatchEntry(NamedTuple):
    """One message of a client batch."""

    flag: int
    body: bytes
    properties_text: bytes


def decode_client_batch(batch: bytes) -> list[BatchEntry]:
    """Takes a batch apart; :class:`InvalidRequestError`, which names the entry, if its lengths contradict."""
    entries: list[BatchEntry] = []
    at = 0
    while at < len(batch):
        place = len(entries)
        if len(batch) - at < ENTRY_BYTES:
            raise _contradicts(place)
        size, _, _, flag, body_bytes = _HEAD.unpack_from(batch, at)
        body_at = at + _HEAD.size
        if size < ENTRY_BYTES or size > len(batch) - at or not 0 <= body_bytes <= size - ENTRY_BYTES:
            raise _contradicts(place)
        (text_bytes,) = _I16.unpack_from(batch, body_at + body_bytes)
        if ENTRY_BYTES + body_bytes + text_bytes != size or text_bytes < 0:
            raise _contradicts(place)
        end = at + size
        entries.append(BatchEntry(flag, batch[body_at : body_at + body_bytes], batch[end - text_bytes : end]))
        at = end
    return entries


def encode_client_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Returns a batch as clients write it."""
    return b"".join(
        b"%b%b%b%b"
        % (
            _HEAD.pack(ENTRY_BYTES + len(body) + len(text), 0, 0, flag, len(body)),
            body,
            _I16.pack(len(text)),
            text,
        )
        for flag, body, text in entries
    )


def _contradicts(place: int) -> InvalidRequestError:
    return InvalidRequestError(f"message {place}: the batch contradicts its own lengths there", position=place)
