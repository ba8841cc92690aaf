"""Records against vectors made by RocketMQ's own classes."""

from __future__ import annotations

import dataclasses
import struct

import pytest

from tests.support.stores.hot_stores import array, record
from tierlog.tiering.base.errors import BadMagicError, ChecksumMismatchError, TornRecordError
from tierlog.tiering.format.hashing import tag_hash
from tierlog.tiering.format.record import (
    BLANK,
    BLANK_BYTES,
    FIXED_BYTES_V1,
    IPV6_EXTRA_BYTES,
    MAGIC_BLANK,
    MAGIC_FILLER,
    MAGIC_V1,
    MAGIC_V2,
    Record,
    RecordVersion,
    body_crc,
    decode_record,
    encode_host,
    encode_record,
)
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan

BORN_V4 = encode_host(bytes([10, 1, 2, 3]), 54321)
STORE_V4 = encode_host(bytes([127, 0, 0, 1]), 10911)
V6 = bytes.fromhex("20010db8") + bytes(11)
BORN_V6, STORE_V6 = encode_host(V6 + b"\x01", 54321), encode_host(V6 + b"\x02", 10911)
CRC = b"__CRC32#\x01%s\x02"
P = b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F0000010000000000000000000A0001\x02TAGS\x01TagA\x02"
T = 1_700_000_000_000


def vector(**changes: object) -> Record:
    common: dict[str, object] = {
        "queue_id": 3, "born_ms": T, "born_host": BORN_V4, "store_ms": T + 123, "store_host": STORE_V4,
        "body": b"Hello", "topic": "TopicTest", "properties_text": P,
    }  # fmt: skip
    return record(**{**common, **changes})


A1 = """
000000a8daa320a777d1898200000003000000000000000000000000000000000000000000000000
0000018bcfe568000a0102030000d4310000018bcfe5687b7f00000100002a9f0000000000000000
000000000000000548656c6c6f09546f70696354657374003f4b455953016b31206b3202554e4951
5f4b4559013746303030303031303030303030303030303030303030303030304130303031025441
4753015461674102
"""
A2 = """
000000c0daa320a777d189820000000300000000000000000000000100000000000000a800000030
0000018bcfe5680020010db80000000000000000000000010000d4310000018bcfe569c820010db8
00000000000000000000000200002a9f0000000000000000000000000000000548656c6c6f09546f
70696354657374003f4b455953016b31206b3202554e49515f4b4559013746303030303031303030
3030303030303030303030303030303041303030310254414753015461674102
"""
A3 = """
000000bcdaa320a777d1898200000003000000000000000000000007000000000000100000000000
0000018bcfe568000a0102030000d4310000018bcfe56b157f00000100002a9f0000000000000000
000000000000000548656c6c6f09546f7069635465737400534b455953016b31206b3202554e4951
5f4b4559013746303030303031303030303030303030303030303030303030304130303031025441
47530154616741025f5f435243333223013934393835353234323102
"""
A4 = """
0000007ddaa320a777d1898200000003000000000000000000000000000000000000000000000000
0000018bcfe568000a0102030000d4310000018bcfe56b157f00000100002a9f0000000000000000
000000000000000548656c6c6f09546f7069635465737400145f5f43524333322301383237373230
3930323102
"""
A5 = """
00000087daa320a777d1898200000003000000000000000000000000000000000000000000000000
0000018bcfe568000a0102030000d4310000018bcfe56b157f00000100002a9f0000000000000000
000000000000000548656c6c6f09546f70696354657374001e544147530154616741025f5f435243
333223013037363037373135373102
"""
A6 = """
000000dedaa320ab0000000000000003000000000000000000000000000000000000000000000000
0000018bcfe568000a0102030000d4310000018bcfe5687b7f00000100002a9f0000000000000000
00000000000000000082545454545454545454545454545454545454545454545454545454545454
54545454545454545454545454545454545454545454545454545454545454545454545454545454
54545454545454545454545454545454545454545454545454545454545454545454545454545454
54545454545454545454545454545454545454540000
"""

A7 = """
00000071daa320a777d1898200000003000000010000000000000000000000000000000000000000
0000018bcfe568000a0102030000d4310000018bcfe5687b7f00000100002a9f0000000000000000
000000000000000548656c6c6f09546f7069635465737400084b455953016b31020000006adaa320
a776289dde000000030000000200000000000000000000000000000000000000000000018bcfe568
000a0102030000d4310000018bcfe5687b7f00000100002a9f000000000000000000000000000000
06576f726c642109546f706963546573740000
"""

VECTORS = {
    "A.1": (A1, vector(), 168, "7F00000100002A9F0000000000000000"),
    "A.2": (
        A2,
        vector(queue_offset=1, physical_offset=168, store_ms=T + 456, born_host=BORN_V6, store_host=STORE_V6),
        192,
        "20010DB800000000000000000000000200002A9F00000000000000A8",
    ),
    "A.3": (
        A3,
        vector(queue_offset=7, physical_offset=4096, store_ms=T + 789, properties_text=P + CRC % b"9498552421"),
        188,
        "7F00000100002A9F0000000000001000",
    ),
    "A.4": (
        A4,
        vector(store_ms=T + 789, properties_text=CRC % b"8277209021"),
        125,
        "7F00000100002A9F0000000000000000",
    ),
    "A.5": (
        A5,
        vector(store_ms=T + 789, properties_text=b"TAGS\x01TagA\x02" + CRC % b"0760771571"),
        135,
        "7F00000100002A9F0000000000000000",
    ),
    "A.6": (
        A6,
        vector(version=RecordVersion.V2, topic="T" * 130, body=b"", properties_text=b""),
        222,
        "7F00000100002A9F0000000000000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vector(name: str) -> None:
    text, wanted, size, message_id = VECTORS[name]
    data = bytes.fromhex(text)
    assert len(data) == size
    assert encode_record(wanted) == data
    decoded = decode_record(data, physical_offset=wanted.physical_offset)
    sys_flag = 0x30 if name == "A.2" else 0
    assert decoded == dataclasses.replace(wanted, size=size, body_crc=body_crc(wanted.body), sys_flag=sys_flag)
    assert decoded.message_id == message_id
    assert encode_record(decoded) == data


@pytest.mark.parametrize("name", VECTORS)
def test_golden_vector_read_by_the_scan(name: str) -> None:
    text, wanted, size, _ = VECTORS[name]
    data = bytes.fromhex(text)
    found = scan(
        array(data), 0, size, wanted.physical_offset, TopicTable(["TopicTest", "T" * 130]),
        check_crc=True, check_torn=True,
    )  # fmt: skip
    assert (found.stop, found.position) == (ScanStop.END, size)
    (row,) = found.rows
    numbers = [row[field] for field in ("queue_id", "queue_offset", "physical_offset", "born_ms", "store_ms", "size")]
    assert numbers == [3, wanted.queue_offset, wanted.physical_offset, T, wanted.store_ms, size]
    assert row["tag_hash"] == tag_hash(wanted.properties.get("TAGS", ""))
    for field, property_name in (("keys", "KEYS"), ("unique", "UNIQ_KEY"), ("tags", "TAGS")):
        at = int(row[f"{field}_at"])
        value = data[at : at + int(row[f"{field}_length"])].decode()
        assert value == wanted.properties.get(property_name, "")


def test_records_of_a_client_batch() -> None:
    """Vector A.7: two records before their offsets are filled in."""
    data = bytes.fromhex(A7)
    first = vector(store_ms=T + 123, flag=1, properties_text=b"KEYS\x01k1\x02")
    second = vector(store_ms=T + 123, flag=2, body=b"World!", properties_text=b"")
    assert encode_record(first) + encode_record(second) == data
    placed = data[:0x71] + encode_record(dataclasses.replace(second, queue_offset=1, physical_offset=0x71))
    found = scan(array(placed), 0, len(placed), 0, TopicTable(["TopicTest"]), check_crc=True)
    assert (found.stop, found.rows["queue_offset"].tolist(), found.rows["size"].tolist()) == (
        ScanStop.END, [0, 1], [0x71, 0x6A],
    )  # fmt: skip


def test_facts_of_the_vectors() -> None:
    decoded = decode_record(bytes.fromhex(A1))
    assert decoded.body_crc == 2010220930
    assert decoded.properties == {"KEYS": "k1 k2", "UNIQ_KEY": "7F0000010000000000000000000A0001", "TAGS": "TagA"}
    assert decode_record(bytes.fromhex(A3)).properties["__CRC32#"] == "9498552421"


def test_sizes_of_the_layout() -> None:
    smallest = record(topic="", body=b"", properties_text=b"")
    assert len(encode_record(smallest)) == FIXED_BYTES_V1 == 91
    assert len(encode_record(dataclasses.replace(smallest, version=RecordVersion.V2))) == 92
    assert len(encode_record(dataclasses.replace(smallest, born_host=BORN_V6))) == 91 + IPV6_EXTRA_BYTES
    assert [struct.pack(">i", magic).hex() for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK, MAGIC_FILLER)] == [
        "daa320a7", "daa320ab", "cbd43194", "544c4746",
    ]  # fmt: skip
    assert (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) == (-626843481, -626843477, -875286124)


def test_blank_record() -> None:
    assert BLANK.pack(8, MAGIC_BLANK).hex() == "00000008cbd43194"
    assert BLANK.pack(100, MAGIC_BLANK).hex() == "00000064cbd43194"
    assert BLANK.size == BLANK_BYTES


def test_flags_follow_the_hosts_and_other_bits_stay() -> None:
    data = encode_record(record(sys_flag=0x1 | 0x30, born_host=BORN_V6))
    assert decode_record(data).sys_flag == 0x11


@pytest.mark.parametrize(
    ("sys_flag", "is_queued"), [(0, True), (0x4, False), (0x8, True), (0xC, False), (0x31, True), (0x35, False)]
)
def test_prepared_and_rolled_back_transactions_are_in_no_queue(sys_flag: int, is_queued: bool) -> None:
    assert record(sys_flag=sys_flag).has_queue_unit is is_queued


def at(position: int, data: bytes, text: str = A1) -> bytes:
    whole = bytearray.fromhex(text)
    whole[position : position + len(data)] = data
    return bytes(whole)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", TornRecordError),
        (bytes(7), TornRecordError),
        (bytes(200), BadMagicError),
        (bytes.fromhex(A1)[:-1], TornRecordError),
        (bytes.fromhex(A1)[:47], TornRecordError),
        (at(0, b"\0\0\0\xa7"), TornRecordError),
        (at(0, b"\xff\xff\xff\xff"), TornRecordError),
        (at(4, b"\xcb\xd4\x31\x94"), BadMagicError),
        (at(4, b"TLGF"), BadMagicError),
        (at(39, b"\x10"), TornRecordError),
        (at(84, b"\xff\xff\xff\xff"), TornRecordError),
        (at(84, b"\x7f\xff\xff\xff"), TornRecordError),
        (at(88, b"h"), ChecksumMismatchError),
        (at(8, b"\0"), ChecksumMismatchError),
        (at(93, b"\xff"), TornRecordError),
        (at(94, b"\xff"), TornRecordError),
        (at(103, b"\x7f\xff"), TornRecordError),
    ],
)
def test_damage_is_named(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_record(data)


def test_stored_offset_must_be_the_position() -> None:
    data = b"12345" + bytes.fromhex(A2)
    assert decode_record(data, 5, physical_offset=168).queue_offset == 1
    with pytest.raises(TornRecordError, match="expected 169") as caught:
        decode_record(data, 5, physical_offset=169)
    assert caught.value.position == 5
