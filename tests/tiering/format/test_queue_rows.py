"""Queue rows: sorted, paged, each page checked."""

from __future__ import annotations

import numpy as np
import pytest

from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError, StoreError
from tierlog.tiering.format.queue_rows import (
    PAGE_ROWS,
    QUEUE_ROW,
    QueueRows,
    decode_queue_rows_head,
    decode_rows_page,
    encode_queue_rows,
    pages_of,
)


def rows(count: int) -> QueueRows:
    """Rows of 5 topics with 3 queues each, mixed up."""
    found = np.zeros(count, QUEUE_ROW)
    order = np.random.default_rng(1).permutation(count)
    found["topic_id"] = 1 + order % 5
    found["queue_id"] = order // 5 % 3
    found["segment"] = order // 15 * 4096
    found["first_queue_offset"] = order // 15 * 10
    found["count"] = 10
    for number, name in enumerate(("min_store_ms", "max_store_ms", "min_born_ms", "max_born_ms")):
        found[name] = order + number
    return found


def decoded(data: bytes, topic_id: int, queue_id: int | None) -> QueueRows:
    head = decode_queue_rows_head(data, path="p")
    pieces = [
        decode_rows_page(data[page.position : page.position + page.length], page, path="p")
        for page in pages_of(head, topic_id, queue_id)
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, QUEUE_ROW)


def test_everything_comes_back_sorted() -> None:
    given = rows(3000)
    data, ref = encode_queue_rows(given, "p")
    assert ref.length == len(data)
    head = decode_queue_rows_head(data, path="p")
    assert [page.info["rows"] for page in head.pages] == [PAGE_ROWS, PAGE_ROWS, 3000 - 2 * PAGE_ROWS]
    whole = np.concatenate(
        [decode_rows_page(data[page.position :][: page.length], page, path="p") for page in head.pages]
    )
    assert whole.tolist() == sorted(given.tolist())


@pytest.mark.parametrize(("topic_id", "queue_id"), [(1, 0), (3, 2), (5, None), (9, None), (0, 0)])
def test_a_queue_is_found_in_its_pages(topic_id: int, queue_id: int | None) -> None:
    given = rows(3000)
    found = decoded(encode_queue_rows(given, "p")[0], topic_id, queue_id)
    for chosen in (found, given):
        mine = chosen[(chosen["topic_id"] == topic_id) & ((queue_id is None) | (chosen["queue_id"] == queue_id))]
        if chosen is found:
            kept = mine.tolist()
    assert kept == sorted(mine.tolist())


def test_native_byte_order_is_written_in_the_formats() -> None:
    given = rows(20)
    native = given.astype(given.dtype.newbyteorder("<"))
    assert encode_queue_rows(native, "p")[0] == encode_queue_rows(given, "p")[0]


def test_no_rows() -> None:
    data, _ = encode_queue_rows(rows(0), "p")
    assert decode_queue_rows_head(data, path="p").pages == []


def read_all(data: bytes) -> None:
    for page in decode_queue_rows_head(data, path="p").pages:
        decode_rows_page(data[page.position :][: page.length], page, path="p")


def test_every_flipped_byte_is_noticed() -> None:
    data, _ = encode_queue_rows(rows(7), "p")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises(StoreError):
            read_all(bytes(damaged))


def test_page_with_another_number_of_rows_is_refused() -> None:
    data, _ = encode_queue_rows(rows(7), "p")
    (page,) = decode_queue_rows_head(data, path="p").pages
    page.info["rows"] = 8
    with pytest.raises(CorruptionError, match="number of rows"):
        decode_rows_page(data[page.position :][: page.length], page, path="p")


def test_the_rows_of_another_object_are_noticed() -> None:
    data, _ = encode_queue_rows(rows(7), "another")
    with pytest.raises(ChecksumMismatchError, match="queue rows of another"):
        decode_queue_rows_head(data, path="p")
