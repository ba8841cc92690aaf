"""A file system that has no descriptor to spare for chosen calls, around a real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tierlog.tiering.base.errors import OutOfResourcesError
from tierlog.tiering.base.fs import FileSystem

#: Calls that open something, if only for a moment.
OPENING = (
    "list_dir", "make_dirs", "create", "allocate", "open", "open_read", "read", "map_read", "map_write", "map_private",
    "flush_dir",
)  # fmt: skip


class ScarceFileSystem:
    """Passes calls on; of those that open something it refuses the ones that ``refuses`` chooses by their number."""

    def __init__(self, inner: FileSystem) -> None:
        self.inner = inner
        self.refuses: Callable[[int], bool] = lambda number: False
        #: How many calls opened something, refused ones included.
        self.calls = 0
        #: How many were refused.
        self.refused = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self.inner, name)
        if name not in OPENING:
            return call

        def counted(path: Path, *arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.refuses(self.calls):
                self.refused += 1
                raise OutOfResourcesError("too many open files", path=str(path))
            return call(path, *arguments, **named)

        return counted
