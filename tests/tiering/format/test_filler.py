"""Fillers: what stands where a record was removed."""

from __future__ import annotations

import pytest

from tests.support.stores.hot_stores import record
from tierlog.tiering.base.errors import BadMagicError, TornRecordError
from tierlog.tiering.format.filler import Filler, decode_filler, is_filler, make_filler
from tierlog.tiering.format.record import RecordVersion, decode_record, encode_record

RECORDS = [
    encode_record(record(queue_id=3, queue_offset=1 << 40, physical_offset=1 << 50, body=b"secret" * 9)),
    encode_record(record(body=b"", topic="t", version=RecordVersion.V2, sys_flag=0x4, flag=-1, reconsume_times=9)),
    encode_record(record(born_host=bytes(range(20)), store_host=bytes(range(20)), queue_id=-1)),
]


@pytest.mark.parametrize("raw", RECORDS)
def test_it_keeps_length_and_place_and_nothing_else(raw: bytes) -> None:
    filler, original = make_filler(raw), decode_record(raw)
    assert len(filler) == len(raw)
    assert filler[:8] == raw[:4] + bytes.fromhex("544C4746")
    assert (filler[12:16], filler[20:36]) == (raw[12:16], raw[20:36])
    assert not any(filler[8:12] + filler[16:20] + filler[36:])
    assert is_filler(b"x" + filler, 1)
    assert not is_filler(raw)
    assert decode_filler(b"x" + filler + b"y", 1) == Filler(
        len(raw), original.queue_id, original.queue_offset, original.physical_offset
    )
    assert make_filler(filler) == filler


def test_a_filler_is_no_record_and_a_record_no_filler() -> None:
    with pytest.raises(BadMagicError):
        decode_record(make_filler(RECORDS[0]))
    with pytest.raises(BadMagicError):
        decode_filler(RECORDS[0])
    assert not is_filler(b"")


def test_every_flipped_bit_is_noticed_or_in_a_kept_field() -> None:
    filler = make_filler(RECORDS[0])
    for place in range(8 * len(filler)):
        damaged = bytearray(filler)
        damaged[place // 8] ^= 1 << place % 8
        if 12 <= place // 8 < 16 or 20 <= place // 8 < 36:
            assert decode_filler(bytes(damaged)) != decode_filler(filler)
            continue
        try:
            found = decode_filler(bytes(damaged))
        except (BadMagicError, TornRecordError):
            continue
        assert found.size < len(filler), "a shorter one may end early, what follows is then no record"


@pytest.mark.parametrize("kept", [0, 7, 8, 35, 90, 100])
def test_a_cut_filler_is_torn(kept: int) -> None:
    with pytest.raises((BadMagicError, TornRecordError)):
        decode_filler(make_filler(RECORDS[0])[:kept])


def test_what_is_no_whole_record_makes_no_filler() -> None:
    for wrong in (RECORDS[0][:-1], RECORDS[0] + b"x"):
        with pytest.raises(TornRecordError):
            make_filler(wrong)
