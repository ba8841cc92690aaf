"""The folder an index file lies in is its state; this module is the only one that moves a file on, or out of the way.

``writing`` -> ``sealed`` -> ``compacted`` -> ``uploaded``. Names are begin times in ms, decimal. A file that is full
stays in ``writing`` until it is sealed.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from enum import StrEnum
from pathlib import Path

from tierlog.tiering.base.fs import FileSystem

_NAME = re.compile(r"0|[1-9]\d{0,18}")
_SECOND_MS = 1000
_LOG = logging.getLogger("tierlog")
#: Begin times above this would overflow a reader's arithmetic; a nonsense clock is cut here.
MAX_BEGIN_MS = 1 << 61


class IndexState(StrEnum):
    """States in the order a file goes through them."""

    WRITING = "writing"
    SEALED = "sealed"
    COMPACTED = "compacted"
    UPLOADED = "uploaded"


class IndexFolders:
    """The state folders of one store, and the begin times in use across them."""

    def __init__(self, fs: FileSystem, root: Path, quarantine: Path) -> None:
        """``quarantine`` is on the same file system; it is made when it is needed."""
        self._fs = fs
        self._root = root
        self._quarantine = quarantine
        #: How many damaged files were moved to the quarantine.
        self.set_aside_count = 0
        self._guard = threading.Lock()
        self._last_claim = (-1, -1)
        for state in IndexState:
            fs.make_dirs(root / state)
        self._used = {begin for state in IndexState for begin in self.list(state)}

    def path(self, state: IndexState, begin_ms: int) -> Path:
        """Returns the path of the file of a begin time in a state."""
        return self._root / state / str(begin_ms)

    def list(self, state: IndexState) -> list[int]:
        """Begin times of the files in a state, ascending; other names are left alone."""
        names = self._fs.list_dir(self._root / state)
        return sorted(int(name) for name in names if _NAME.fullmatch(name))

    def claim(self, store_ms: int) -> int:
        """Claims a begin time that no other file has: ``store_ms`` floored to a second, plus seconds until free."""
        with self._guard:
            wanted = begin_ms = min(max(store_ms, 0), MAX_BEGIN_MS) // _SECOND_MS * _SECOND_MS
            if wanted == self._last_claim[0]:  # where thousands begin in one second, most of them are taken
                begin_ms = self._last_claim[1]
            while begin_ms in self._used:
                begin_ms += _SECOND_MS
            self._last_claim = (wanted, begin_ms)
            self._used.add(begin_ms)
            return begin_ms

    def release(self, begin_ms: int) -> None:
        """Lets a begin time be used again."""
        with self._guard:
            self._used.discard(begin_ms)

    def move(self, begin_ms: int, source: IndexState, target: IndexState) -> Path:
        """Moves a file whose contents are durable on to another state, its new name durable at return."""
        path = self.path(target, begin_ms)
        if self._fs.exists(self.path(source, begin_ms)):  # or a call that failed had come as far as the rename
            self._fs.rename(self.path(source, begin_ms), path)
        self._fs.flush_dir(path.parent)
        self._fs.flush_dir(self._root / source)
        return path

    def set_aside(self, state: IndexState, begin_ms: int) -> Path | None:
        """Moves a damaged file durably to the quarantine, where nothing reads it; its new path, None if it was gone.

        Killed before it: the file is found to be damaged again. In the middle: it is in either folder or in both.
        """
        path = self.path(state, begin_ms)
        if not self._fs.exists(path):
            return None
        self._fs.make_dirs(self._quarantine)
        taken = set(self._fs.list_dir(self._quarantine))
        numbered = (f"index-{state}-{begin_ms}-{number}" for number in itertools.count(1))
        target = self._quarantine / next(name for name in numbered if name not in taken)
        self._fs.rename(path, target)
        self._fs.flush_dir(self._quarantine)
        self._fs.flush_dir(path.parent)
        self.set_aside_count += 1
        _LOG.error("index file %s is damaged: it lies in %s now, and its range is derived again", path, target)
        return target

    def remove(self, state: IndexState, begin_ms: int) -> None:
        """Unlinks a file durably; one already gone is no error, and costs no flush."""
        path = self.path(state, begin_ms)
        if self._fs.exists(path):
            self._fs.unlink(path)
            self._fs.flush_dir(path.parent)
