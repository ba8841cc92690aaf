"""A file system that refuses chosen operations, around a real one."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.stores.hold import Hold
from tierlog.tiering.base.errors import DiskFailedError, StoreError
from tierlog.tiering.base.fs import ByteArray, File, FileSystem


@dataclass
class _Fault:
    operation: str
    pattern: str
    error: StoreError
    after_bytes: int | None = None
    times: int | None = None
    hold: Hold | None = None


class _FaultyFile:
    def __init__(self, owner: FaultyFileSystem, path: Path, inner: File) -> None:
        self._owner = owner
        self._path = path
        self._inner = inner

    def write_at(self, position: int, data: bytes | bytearray | memoryview | ByteArray) -> None:
        fault = self._owner.fault("write_at", self._path)
        if fault is not None:
            if fault.after_bytes:
                self._inner.write_at(position, bytes(data)[: fault.after_bytes])
            raise fault.error
        self._inner.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        return self._inner.read_at(position, length)

    def zero(self, start: int, end: int) -> None:
        self._owner.check("zero", self._path)
        self._inner.zero(start, end)

    def first_hole(self, position: int) -> int:
        return self._inner.first_hole(position)

    def flush(self) -> None:
        self._owner.check("flush", self._path)
        self._inner.flush()

    def close(self) -> None:
        self._inner.close()


class FaultyFileSystem:
    """Passes calls on and refuses those that the test has chosen, by operation and shell pattern of the path."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self._faults: list[_Fault] = []
        #: (operation, path) of every refused call.
        self.refused: list[tuple[str, Path]] = []

    def refuse(
        self,
        operation: str,
        pattern: str = "*",
        *,
        error: StoreError | None = None,
        after_bytes: int | None = None,
        times: int | None = None,
    ) -> None:
        """From now on refuse, ``times`` times or for ever; a write may leave its first ``after_bytes`` behind."""
        error = error or DiskFailedError("scripted failure")
        self._faults.append(_Fault(operation, pattern, error, after_bytes, times))

    def hold(self, operation: str, pattern: str = "*") -> Hold:
        """Make one call wait before anything is done, until the test releases it."""
        hold = Hold()
        self._faults.append(_Fault(operation, pattern, DiskFailedError("unused"), hold=hold))
        return hold

    def heal(self) -> None:
        """Refuse nothing more."""
        self._faults.clear()

    def fault(self, operation: str, path: Path) -> _Fault | None:
        """The fault that strikes a call, noted as refused."""
        for fault in list(self._faults):
            if fault.operation == operation and fnmatch.fnmatchcase(str(path), fault.pattern):
                if fault.hold is not None:
                    self._faults.remove(fault)
                    fault.hold.stop_here()
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self._faults.remove(fault)
                self.refused.append((operation, path))
                return fault
        return None

    def check(self, operation: str, path: Path) -> None:
        """Raise if the call is to be refused."""
        fault = self.fault(operation, path)
        if fault is not None:
            raise fault.error

    def open(self, path: Path) -> File:
        """Open; the file's own calls are checked as well."""
        self.check("open", path)
        return _FaultyFile(self, path, self.inner.open(path))

    def create(self, path: Path, size_bytes: int, *, prewrite: bool, first_bytes: int | None = None) -> None:
        """Create, unless refused."""
        self.check("create", path)
        self.inner.create(path, size_bytes, prewrite=prewrite, first_bytes=first_bytes)

    def allocate(self, path: Path, start: int, end: int) -> None:
        """Give blocks, unless refused."""
        self.check("allocate", path)
        self.inner.allocate(path, start, end)

    def flush_mapped(self, path: Path, mapped: ByteArray, start: int, end: int) -> None:
        """Flush, unless refused."""
        self.check("flush_mapped", path)
        self.inner.flush_mapped(path, mapped, start, end)

    def open_read(self, path: Path) -> File:
        """Open for reading; flushes are checked as well."""
        self.check("open_read", path)
        return _FaultyFile(self, path, self.inner.open_read(path))

    def link(self, source: Path, target: Path) -> None:
        """Give another name, unless refused for the target."""
        self.check("link", target)
        self.inner.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, unless refused for the target."""
        self.check("rename", target)
        self.inner.rename(source, target)

    def unlink(self, path: Path) -> None:
        """Unlink, unless refused."""
        self.check("unlink", path)
        self.inner.unlink(path)

    def flush_dir(self, path: Path) -> None:
        """Flush names, unless refused."""
        self.check("flush_dir", path)
        self.inner.flush_dir(path)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.inner, name)  # type: ignore[no-any-return]
