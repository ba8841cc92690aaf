"""What the C library is told."""

from __future__ import annotations

import platform

from tierlog.tiering.base.fs import share_arenas


def test_glibc_takes_a_number_of_arenas() -> None:
    assert share_arenas(2) == (platform.libc_ver()[0] == "glibc")
