"""Takes client batches apart into columns. ``tiering.format.client_batch`` is the oracle.

What is refused, and whatever is out of the ordinary, is left to the oracle and to the rules of
``tiering.message.client_messages``: these kernels only tell that there is such a thing.
"""

from __future__ import annotations

import numpy as np

from tierlog.tiering.format.client_batch import ENTRY_BYTES
from tierlog.tiering.format.properties import STORE_FIELDS
from tierlog.tiering.kernels.batch_layout import CHECKSUM_NAME, is_own
from tierlog.tiering.kernels.encode import CLIENT_FIELDS_BYTES
from tierlog.tiering.kernels.primitives import (
    called,
    copy,
    copy_short,
    find_byte,
    int64,
    load_be16,
    load_be32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
)
from tierlog.tiering.kernels.structs import load_fields, struct_kernel

_STORE = [name.encode() for name in sorted(STORE_FIELDS)]
#: Names of properties that are the store's: bytes, and where each begins, and the last ends.
STORE_NAMES = np.frombuffer(b"".join(_STORE), np.uint8)
STORE_STARTS = np.cumsum([0, *map(len, _STORE)])

_SECTOR_BYTES = 512


@called
def _is_ordinary(text, end, store, store_starts, store_count):
    """Whether a property text has nothing of the store's, and no zeros that recovery could take for lost bytes."""
    if end > text and load_u8(end - 1) == 0:
        return False
    if end - text >= 20 and load_i64(end - 20) == CHECKSUM_NAME and load_u8(end - 12) == 1:
        return False
    if end - text >= _SECTOR_BYTES and find_byte(text, end, 0) < end:
        return False
    start = text
    while start < end:
        at = find_byte(start, end, 2)
        if is_own(store, store_starts, store_count, start, find_byte(start, at, 1) - start):
            return False
        start = at + 1
    return True


@struct_kernel("batch length most_body store store_starts store_count done")
def measure_client_batch(job):
    """Returns how many entries a batch of ``length`` bytes has; -1 if one is wrong or out of the ordinary.

    A body has 1 to ``most_body`` bytes. done: bytes of all bodies, of all property texts.
    """
    batch, length, most_body, store, store_starts, store_count, done = load_fields(job, 7)
    count = int64(0)
    bodies = int64(0)
    texts = int64(0)
    at = batch
    end = batch + length
    while at < end:
        # lengths: none is used before it is known to lie in the batch
        if end - at < ENTRY_BYTES:
            return int64(-1)
        size = load_be32(at)
        body_length = load_be32(at + 16)
        if size < ENTRY_BYTES or size > end - at or body_length < 1 or body_length > size - ENTRY_BYTES:
            return int64(-1)
        text = at + ENTRY_BYTES + body_length
        text_length = load_be16(text - 2)
        if text_length > 32767 or text + text_length != at + size or body_length > most_body:
            return int64(-1)
        # what the text says
        if not _is_ordinary(text, text + text_length, store, store_starts, store_count):
            return int64(-1)
        count += 1
        bodies += body_length
        texts += text_length
        at += size
    store_i64(done, bodies)
    store_i64(done + 8, texts)
    return count


@struct_kernel("batch count client body body_starts text text_starts")
def take_client_batch(job):
    """Lays a batch that was measured out in columns; of the ``client`` rows only the flag is written."""
    batch, count, client, body, body_starts, text, text_starts = load_fields(job, 7)
    at = batch
    body_end = body
    text_end = text
    for i in range(count):
        size = load_be32(at)
        body_length = load_be32(at + 16)
        text_length = size - ENTRY_BYTES - body_length
        store_i32(client + CLIENT_FIELDS_BYTES * i, load_be32(at + 12))
        store_i64(body_starts + 8 * i, body_end - body)
        store_i64(text_starts + 8 * i, text_end - text)
        copy(body_end, at + ENTRY_BYTES - 2, body_length)
        copy_short(text_end, at + ENTRY_BYTES + body_length, text_length)
        body_end += body_length
        text_end += text_length
        at += size
    store_i64(body_starts + 8 * count, body_end - body)
    store_i64(text_starts + 8 * count, text_end - text)
