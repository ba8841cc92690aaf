"""The checkpoint file against bytes that RocketMQ's own classes wrote."""

from __future__ import annotations

from tierlog.tiering.format.checkpoint import CHECKPOINT_BYTES, Checkpoint


def test_golden_checkpoint() -> None:
    data = Checkpoint(physic_ms=1700000000123).encode()
    assert data == bytes.fromhex("0000018bcfe5687b") + bytes(4088)
    assert len(data) == CHECKPOINT_BYTES == 4096


def test_round_trip_and_places() -> None:
    checkpoint = Checkpoint(1, 2, 3, -4, 5)
    data = checkpoint.encode()
    assert [int.from_bytes(data[at : at + 8], signed=True) for at in range(0, 40, 8)] == [1, 2, 3, -4, 5]
    assert Checkpoint.decode(data) == checkpoint


def test_older_and_cut_files_have_fewer_fields() -> None:
    data = Checkpoint(1, 2, 3, 4, 5).encode()
    assert Checkpoint.decode(data[:24]) == Checkpoint(1, 2, 3)
    assert Checkpoint.decode(b"") == Checkpoint()
