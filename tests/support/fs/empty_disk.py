"""The machine's disk, as if nothing were on it: how full others have made it must not decide about a test.

Tests about full disks bring a disk of their own. Processes that tests start are told by ``tests/conftest.py``.
"""

from __future__ import annotations

from tierlog.tiering.base.fs import LocalFileSystem

#: What the system says.
measured_free_bytes = LocalFileSystem.free_bytes


def disk_is_empty() -> None:
    """Has every local file system of this process find all of its volume free."""
    LocalFileSystem.free_bytes = LocalFileSystem.total_bytes  # type: ignore[method-assign]
