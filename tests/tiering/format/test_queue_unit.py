"""Consume-queue units against bytes that RocketMQ's own classes wrote."""

from __future__ import annotations

import numpy as np

from tierlog.tiering.format.queue_unit import PREFILL, UNIT_BYTES, UNIT_DTYPE, QueueUnit

VECTOR = bytes.fromhex("0000000000000150000000a8000000000027a807")


def test_golden_unit() -> None:
    unit = QueueUnit(336, 168, 2598919)
    assert unit.encode() == VECTOR
    assert QueueUnit.decode(VECTOR) == unit
    assert QueueUnit.decode(b"xx" + VECTOR, 2) == unit


def test_golden_prefill() -> None:
    assert PREFILL.hex() == "00000000000000007fffffff0000000000000000"
    assert QueueUnit.decode(PREFILL) == QueueUnit(0, 0x7FFFFFFF, 0)


def test_array_form_is_the_same_bytes() -> None:
    units = np.zeros(1, UNIT_DTYPE)
    units[0] = (336, 168, 2598919)
    assert units.tobytes() == VECTOR
    assert UNIT_DTYPE.itemsize == UNIT_BYTES == 20


def test_negative_tag_hash() -> None:
    assert QueueUnit.decode(QueueUnit(1, 2, -2147483648).encode()).tag_hash == -2147483648
