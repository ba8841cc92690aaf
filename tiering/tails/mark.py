"""``tierlog/tails.json``: how far the tails in the bucket may reach, known without asking the bucket.

::

    {"format": 1, "end": 81920, "confirmed": 65536}

No tail of this volume reaches beyond ``end``: it is durable before a tail is sent. All tails below ``confirmed`` exist.
A log that ends below ``end`` at opening has lost bytes that may have been acknowledged as archived (a disk that lied,
damage to the last segment); nothing else may take their places.
"""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tiering.errors import UnsupportedFormatError
from tiering.fs import FileSystem
from tiering.json_file import read_json, replace_json
from tiering.paths import StorePaths

_FORMAT = 1


class TailMark:
    """The marks of one volume. Thread safe."""

    def __init__(self, fs: FileSystem, paths: StorePaths) -> None:
        self._fs = fs
        self._paths = paths
        self._lock = threading.Lock()
        self.end = self.confirmed = 0
        if fs.exists(paths.tails_json):
            self.end, self.confirmed = read_json(fs, paths.tails_json, self._decode)

    def _decode(self, document: Any) -> tuple[int, int]:
        if document["format"] != _FORMAT:
            raise UnsupportedFormatError("tails.json is of a newer format", path=str(self._paths.tails_json))
        return int(document["end"]), int(document["confirmed"])

    def raise_to(self, end: int, confirmed: int, step: AbstractContextManager[object] | None = None) -> None:
        """Make durable that tails may reach ``end``, and note how far they are known to; inside ``step`` if given."""
        with self._lock:
            if end <= self.end:
                return
            document = {"format": _FORMAT, "end": end, "confirmed": max(confirmed, self.confirmed)}
            with step or nullcontext():
                data = (json.dumps(document) + "\n").encode()
                replace_json(self._fs, self._paths.tails_json, data, self._paths.tmp)
            self.end, self.confirmed = document["end"], document["confirmed"]
