"""Client batches: the kernel is the plain parser, and whatever comes is taken or refused, never read beyond its end."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_client_records import BODIES, I32, TEXTS
from tests.support.stores.hot_stores import STORE_HOST
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.format.client_batch import ENTRY_BYTES, BatchEntry, decode_client_batch, encode_client_batch
from tierlog.tiering.format.properties import without_store_fields
from tierlog.tiering.kernels.client_batch import STORE_NAMES, STORE_STARTS, measure_client_batch
from tierlog.tiering.kernels.primitives import address_of
from tierlog.tiering.message.batch import BytesColumn
from tierlog.tiering.message.client_messages import ClientMessages

MAX_BODY_BYTES = 80
ENTRIES = st.lists(st.builds(BatchEntry, I32, BODIES, TEXTS), max_size=5)
#: Places in a batch, and what is written there: lengths are more often wrong than anything else.
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 200), st.one_of(st.binary(min_size=1, max_size=1), I32.map(lambda n: n.to_bytes(4, signed=True)))
    ),
    max_size=3,
)

CUTS = st.one_of(st.just(0), st.integers(0, 60))


def mutated(entries: list[BatchEntry], changes: list[tuple[int, bytes]], cut: int) -> bytes:
    """A batch with some bytes overwritten, and fewer at its end."""
    batch = bytearray(encode_client_batch(entries))
    for place, change in changes:
        batch[place : place + len(change)] = change
    return bytes(batch[: max(len(batch) - cut, 0)])


def values(column: BytesColumn) -> list[bytes]:
    starts = column.starts.tolist()
    return [column.data[start:end].tobytes() for start, end in pairwise(starts)]


def taken(batch: bytes) -> list[BatchEntry] | None:
    """What becomes of a batch; None if it is refused."""
    messages = ClientMessages(MAX_BODY_BYTES)
    try:
        places = messages.add_batch("orders", 0, batch, born_ms=5, born_host=STORE_HOST)
    except InvalidRequestError:
        assert len(messages) == 0
        return None
    assert places == range(len(messages))
    found = messages.to_batch(now_ms=0, max_body_bytes=MAX_BODY_BYTES)
    assert found.client is not None
    return [
        BatchEntry(*entry)
        for entry in zip(found.client["flag"].tolist(), values(found.body), values(found.properties), strict=True)
    ]


def plainly_taken(batch: bytes) -> list[BatchEntry] | None:
    """The same by the plain parser and the rules in words."""
    try:
        entries = decode_client_batch(batch)
    except InvalidRequestError:
        return None
    texts = [without_store_fields(entry.properties_text) for entry in entries]
    texts = [text + b"\x02" if text.endswith(b"\0") else text for text in texts]
    found = [BatchEntry(flag, body, text) for (flag, body, _), text in zip(entries, texts, strict=True)]
    is_right = entries and all(
        1 <= len(body) <= MAX_BODY_BYTES
        and not (text[-20:-11] == b"__CRC32#\x01" and text.endswith(b"\x02"))
        and bytes(512) not in text
        for _, body, text in found
    )
    return found if is_right else None


@settings(max_examples=200)
@given(ENTRIES)
def test_what_was_encoded_is_decoded(entries: list[BatchEntry]) -> None:
    assert decode_client_batch(encode_client_batch(entries)) == entries


@settings(max_examples=300)
@given(ENTRIES)
def test_a_good_batch_is_taken_as_the_plain_parser_takes_it(entries: list[BatchEntry]) -> None:
    batch = encode_client_batch(entries)
    assert taken(batch) == plainly_taken(batch)


@settings(max_examples=300)
@given(ENTRIES, CHANGES, CUTS, st.binary(max_size=8))
def test_a_mutated_batch_is_taken_or_refused_as_the_plain_parser_says(
    entries: list[BatchEntry], changes: list[tuple[int, bytes]], cut: int, more: bytes
) -> None:
    broken = mutated(entries, changes, cut) + more
    assert taken(broken) == plainly_taken(broken)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused_as_the_plain_parser_says(batch: bytes) -> None:
    assert taken(batch) == plainly_taken(batch)


@pytest.fixture(scope="module")
def last_page() -> Iterator[int]:
    """Where a page ends behind which nothing may be read: whoever does is killed."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    first = ctypes.c_char.from_buffer(pages)
    end = ctypes.addressof(first) + mmap.PAGESIZE
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(end, mmap.PAGESIZE, 0) == 0
    yield end
    assert protect(end, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    del first
    pages.close()


@settings(max_examples=400)
@given(st.one_of(st.binary(max_size=200), st.builds(mutated, ENTRIES, CHANGES, CUTS)))
def test_nothing_behind_the_batch_is_read(last_page: int, batch: bytes) -> None:
    ctypes.memmove(last_page - len(batch), batch, len(batch))
    done = np.zeros(2, np.int64)
    count = measure_client_batch(
        batch=last_page - len(batch), length=len(batch), most_body=MAX_BODY_BYTES, store=address_of(STORE_NAMES),
        store_starts=address_of(STORE_STARTS), store_count=len(STORE_STARTS) - 1, done=address_of(done),
    )  # fmt: skip
    assert -1 <= count <= len(batch) // ENTRY_BYTES
    assert count < 0 or int(done.sum()) + count * ENTRY_BYTES == len(batch)
