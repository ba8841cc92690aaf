"""The checksum of a whole record: RocketMQ's vectors, both readers, and the setting that writes it."""

from __future__ import annotations

import pytest

from tests.support.stores.engines import tiny_settings
from tests.support.stores.hot_stores import HotWorld, append, array, record
from tierlog.tiering.base.errors import ChecksumMismatchError, InvalidRequestError, MessageTooLargeError
from tierlog.tiering.base.types import Durability, Tier
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.properties import encode_properties
from tierlog.tiering.format.record import (
    CHECKSUM_BYTES,
    MAX_PROPERTIES_BYTES,
    decode_record,
    encode_host,
    encode_record,
    has_checksum,
    is_intact,
)
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan
from tierlog.tiering.message.batch import Message, MessageBatch
from tierlog.tiering.message.stored_message import StoredMessage

T = 1_700_000_000_000
P = b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010000000000000000000A0001\x02TAGS\x01TagA\x02"


@pytest.mark.parametrize(
    ("place", "text", "digits"),
    [
        ((7, 4096), P, b"9498552421"),  # A.3
        ((0, 0), b"", b"8277209021"),  # A.4
        ((0, 0), b"TAGS\x01TagA", b"0760771571"),  # A.5: the text gets its closing 0x02
    ],
)
def test_golden_vector(place: tuple[int, int], text: bytes, digits: bytes) -> None:
    queue_offset, physical_offset = place
    plain = record(
        queue_id=3, born_ms=T, born_host=encode_host(bytes([10, 1, 2, 3]), 54321), store_ms=T + 789, body=b"Hello",
        store_host=encode_host(bytes([127, 0, 0, 1]), 10911), topic="TopicTest", properties_text=text,
        queue_offset=queue_offset, physical_offset=physical_offset,
    )  # fmt: skip
    data = encode_record(plain, checksum=True)
    closing = b"" if text.endswith(b"\x02") or not text else b"\x02"
    assert data.endswith(text + closing + b"__CRC32#\x01" + digits + b"\x02")
    assert decode_record(data).properties["__CRC32#"] == digits.decode()


def summed(**changes: object) -> bytes:
    return encode_record(record(properties_text=b"n\x01v\x02", **changes), checksum=True)


def scan_stop(data: bytes, *, check_crc: bool = True) -> ScanStop:
    return scan(array(data), 0, len(data), 0, TopicTable(["orders"]), check_crc=check_crc).stop


def test_no_changed_byte_passes() -> None:
    """Without the checksum most changes of the header are invisible: flag, born time, hosts, properties."""
    data = summed()
    seen = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        if has_checksum(bytes(damaged), len(b"n\x01v\x02") + CHECKSUM_BYTES):
            seen += 1
            assert scan_stop(bytes(damaged)) is not ScanStop.END, place
            assert not is_intact(bytes(damaged), len(b"n\x01v\x02") + CHECKSUM_BYTES)
    assert seen == len(data) - 10  # a changed name or separator makes it another property, which nobody verifies


def test_a_changed_born_time_is_a_checksum_error() -> None:
    damaged = bytearray(summed())
    damaged[47] ^= 1
    with pytest.raises(ChecksumMismatchError, match="record checksum"):
        decode_record(bytes(damaged))
    assert scan_stop(bytes(damaged)) is ScanStop.INVALID
    assert scan_stop(bytes(damaged), check_crc=False) is ScanStop.END


def test_a_number_with_few_digits_is_filled_with_zeros() -> None:
    found = next(data for n in range(100_000) if (data := summed(born_ms=n)).endswith(b"0\x02"))
    assert scan_stop(found) is ScanStop.END
    assert decode_record(found).properties["__CRC32#"].endswith("0")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"n\x01v\x02",
        b"__CRC32#\x01123\x02",
        b"__CRC32#\x010123456789\x02n\x01v\x02",
        b"__CRC32#\x01012345678901\x02",
    ],
)
def test_a_record_without_one_is_valid(text: bytes) -> None:
    data = encode_record(record(properties_text=text))
    assert scan_stop(data) is ScanStop.END
    decode_record(data)


def test_a_wrong_one_of_the_right_form_is_damage() -> None:
    data = encode_record(record(properties_text=b"__CRC32#\x010123456789\x02"))
    assert scan_stop(data) is ScanStop.INVALID
    with pytest.raises(ChecksumMismatchError):
        decode_record(data)


# the setting


def test_every_record_ends_in_one_and_no_reader_shows_it() -> None:
    world = HotWorld(record_checksum=True)
    hot = world.open()
    result = append(hot, Message("a", b"x"), Message("a", b"y" * 300, keys=["k"], tag="t", properties={"n": "v"}))
    sizes = [91 + 1 + 1 + 20, 91 + 300 + 1 + len(encode_properties({"KEYS": "k", "TAGS": "t", "n": "v"})) + 20]
    with hot.snapshot() as snapshot:
        for offset, size in zip(result.physical_offset.tolist(), sizes, strict=True):
            found = snapshot.record(offset)
            assert found.size == size
            assert "__CRC32#" in found.properties
            assert "__CRC32#" not in StoredMessage(found, "s", Tier.HOT).properties
    hot = world.open_again(hot)
    assert check_store(hot) == []
    assert hot.log.end == sum(sizes)


def test_a_changed_property_byte_ends_the_log_at_recovery() -> None:
    world = HotWorld(record_checksum=True)
    hot = world.open()
    append(hot, Message("a", b"x"), Message("a", b"y", properties={"name": "value"}))
    file = world.fs.open(world.paths.segment(0))
    end = hot.log.end
    file.write_at(end - 25, b"#")  # inside the value
    file.close()
    assert 0 < world.open().log.end < end


def test_it_counts_for_the_limit_of_property_text() -> None:
    value = "v" * (MAX_PROPERTIES_BYTES - 3 - CHECKSUM_BYTES)
    batch = MessageBatch.of(
        [Message("a", b"x"), Message("a", b"x", properties={"n": value + "v"})], now_ms=0, max_body_bytes=9
    )
    assert batch.record_sizes(16).tolist()[1] == 91 + 1 + 1 + MAX_PROPERTIES_BYTES - CHECKSUM_BYTES + 1
    hot = HotWorld(record_checksum=True, segment_bytes=65_536).open()
    with pytest.raises(MessageTooLargeError, match=r"message 1: .* 32768 bytes") as caught:
        hot.append(batch, Durability.FLUSHED)
    assert caught.value.position == 1
    assert hot.log.end == 0
    append(hot, Message("a", b"x", properties={"n": value}))


def test_clients_may_not_send_it() -> None:
    with pytest.raises(InvalidRequestError, match="written by the store"):
        MessageBatch.of([Message("a", b"x", properties={"__CRC32#": "1"})], now_ms=0, max_body_bytes=9)


def test_it_is_off_unless_switched_on() -> None:
    assert not tiny_settings().hot_options().record_checksum
    assert tiny_settings(hot__record_checksum=True).hot_options().record_checksum
