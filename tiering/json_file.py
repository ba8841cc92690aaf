"""Reads and replaces the small JSON files in ``tierlog/``: each is an object whose last member is its own checksum.

::

    {"format": 1, …, "crc32": 305419896}

The number is the CRC-32 of all bytes before the ``, "crc32"``. A file without it, as an older version or a person
wrote it, is taken as it is; JSON that is damaged mostly is JSON no more.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tiering.errors import ChecksumMismatchError, CorruptionError, StoreError
from tiering.fs import FileSystem, replace_file

_Content = TypeVar("_Content")
_NAME = "crc32"
_END = re.compile(rb', "crc32": (\d{1,10})\}\s*\Z')


def read_json(fs: FileSystem, path: Path, decode: Callable[[Any], _Content]) -> _Content:
    """What ``decode`` makes of a file's document, which it gets without the checksum.

    Raises :class:`CorruptionError` if that differs, if the file is no JSON or if ``decode`` stumbles.
    """
    data = fs.read(path)
    end = _END.search(data)
    if end is not None and zlib.crc32(data[: end.start()]) != int(end[1]):
        raise ChecksumMismatchError("the file is damaged (its checksum differs)", path=str(path))
    try:
        document = json.loads(data)
        if isinstance(document, dict):
            document.pop(_NAME, None)
        return decode(document)
    except StoreError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        problem = f"the file is damaged ({type(error).__name__}: {str(error)[:200]})"
        raise CorruptionError(problem, path=str(path)) from error


def replace_json(fs: FileSystem, path: Path, text: bytes, tmp_dir: Path) -> None:
    """Durably replace a file by a JSON object with members, to which the checksum is added; see ``replace_file``."""
    body = text.rstrip()[:-1].rstrip()
    replace_file(fs, path, body + b', "%s": %d}\n' % (_NAME.encode(), zlib.crc32(body)), tmp_dir)
