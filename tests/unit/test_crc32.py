"""The kernels' CRC-32 is zlib's, whichever way the processor allows."""

from __future__ import annotations

import random
import zlib

import numba
import numpy as np
import pytest

from tiering.kernels import cache, folding
from tiering.kernels.checksum import CRC_TABLES, crc32

_BYTES = np.frombuffer(random.Random(1).randbytes(70_000), np.uint8)
_LENGTHS = [*range(200), *range(240, 280), 4095, 4096, 4097, 65_535, 65_536]


@pytest.mark.parametrize("can_fold", [True, False])
def test_it_is_zlibs_for_every_length_and_alignment(monkeypatch: pytest.MonkeyPatch, *, can_fold: bool) -> None:
    if can_fold and not folding.is_compiled_for_folding():
        pytest.skip("this processor cannot fold")
    monkeypatch.setattr(folding, "is_compiled_for_folding", lambda: can_fold)
    compiled = numba.njit(error_model="numpy")(crc32.py_func)
    for length in _LENGTHS:
        for start in (0, 1, 7):
            expected = zlib.crc32(_BYTES[start : start + length].tobytes())
            assert compiled(CRC_TABLES, _BYTES.ctypes.data + start, length) == expected, (length, start)


def test_kernels_fold_only_where_the_processor_that_they_are_for_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPU_NAME", "CPU_FEATURES"):
        monkeypatch.setattr(numba.config, name, getattr(numba.config, name))
    cache.use_target(cache.Target("x86-64-v3", ()))
    assert not folding.is_compiled_for_folding()
    cache.use_target(cache.BASELINES["x86_64"])
    assert folding.is_compiled_for_folding()
    cache.use_target(cache.BASELINES["aarch64"])
    assert not folding.is_compiled_for_folding()
