"""The kernels' CRC-32 is zlib's, whichever way the processor allows."""

from __future__ import annotations

import random
import zlib

import numba
import numpy as np
import pytest

from tierlog.tiering.kernels import cache, checksum
from tierlog.tiering.kernels.checksum import CRC_TABLES, _continued, continued_crc32, crc32

_BYTES = np.frombuffer(random.Random(1).randbytes(70_000), np.uint8)
_LENGTHS = [*range(200), *range(240, 280), 4095, 4096, 4097, 65_535, 65_536]


#: Those of this processor: what it lacks its kernels cannot even be compiled for.
_WAYS = ["tables"]
if checksum.is_compiled_for_folding():
    _WAYS.append("lanes")
if checksum.is_compiled_for_wide_folding():
    _WAYS.append("wide")


@pytest.mark.parametrize("way", _WAYS)
def test_it_is_zlibs_for_every_length_and_alignment(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    can_fold, is_wide = way != "tables", way == "wide"
    monkeypatch.setattr(checksum, "is_compiled_for_folding", lambda: can_fold)
    monkeypatch.setattr(checksum, "is_compiled_for_wide_folding", lambda: is_wide)
    compiled = numba.njit(error_model="numpy")(_continued.py_func)  # which both kernels are
    for length in _LENGTHS:
        for start in (0, 1, 7):
            expected = zlib.crc32(_BYTES[start : start + length].tobytes())
            assert compiled(CRC_TABLES, _BYTES.ctypes.data + start, length, 0) == expected, (length, start)


@numba.njit
def _crc32(address, length):  # type: ignore[no-untyped-def]
    return crc32(CRC_TABLES, address, length)


@pytest.mark.parametrize("cut", [0, 1, 15, 64, 100, 4096, 69_999, 70_000])
def test_it_goes_on_where_it_stopped(cut: int) -> None:
    address, whole = _BYTES.ctypes.data, zlib.crc32(_BYTES.tobytes())
    before = continued_crc32(CRC_TABLES, address, cut, 0)
    assert before == zlib.crc32(_BYTES[:cut].tobytes()) == _crc32(address, cut)
    assert continued_crc32(CRC_TABLES, address + cut, len(_BYTES) - cut, before) == whole


def test_kernels_fold_only_where_the_processor_that_they_are_for_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_NAME", "CPU_FEATURES"):
        monkeypatch.setattr(numba.config, name, getattr(numba.config, name))
    cache.use_target(cache.Processor("x86-64-v3", ()))
    assert not checksum.is_compiled_for_folding()
    cache.use_target(cache.BASELINES["x86_64"])
    assert checksum.is_compiled_for_folding()
    assert not checksum.is_compiled_for_wide_folding()
    cache.use_target(cache.BASELINES["aarch64"])
    assert not checksum.is_compiled_for_folding()
