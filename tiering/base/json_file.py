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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tierlog.tiering.base.errors import ChecksumMismatchError, CorruptionError, StoreError, UnsupportedFormatError
from tierlog.tiering.base.fs import FileSystem, replace_file

T = TypeVar("T")
_NAME = "crc32"
_END = re.compile(rb', "crc32": (\d{1,10})\}\s*\Z')


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """One kind of these files and the meaning of its members. A damaged file is an error, never an empty one."""

    #: Makes the content of the document, which it gets without the checksum.
    decode: Callable[[Any], T]
    #: The members behind ``format``, or the whole object as text where a file is laid out in a way of its own.
    encode: Callable[[T], Mapping[str, object] | bytes]
    #: The formats that can be read; members are written in the first. Empty for a file that does not name its format.
    formats: tuple[int, ...] = (1,)

    def read(self, fs: FileSystem, path: Path) -> T | None:
        """Returns what a file says, or None if there is none.

        Raises :class:`CorruptionError` if its checksum differs, if it is no JSON or if ``decode`` stumbles, and
        :class:`UnsupportedFormatError` for a newer format.
        """
        if not fs.exists(path):
            return None
        data = fs.read(path)
        end = _END.search(data)
        if end is not None and zlib.crc32(data[: end.start()]) != int(end[1]):
            raise ChecksumMismatchError("the file is damaged (its checksum differs)", path=str(path))
        try:
            document = json.loads(data)
            if isinstance(document, dict):
                document.pop(_NAME, None)
            if self.formats and document["format"] not in self.formats:
                raise UnsupportedFormatError(f"{path.name} is of a newer format", path=str(path))
            return self.decode(document)
        except StoreError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            problem = f"the file is damaged ({type(error).__name__}: {str(error)[:200]})"
            raise CorruptionError(problem, path=str(path)) from error

    def replace(self, fs: FileSystem, path: Path, content: T, tmp_dir: Path) -> None:
        """Durably replaces a file, or makes it; see ``replace_file``."""
        text = self.encode(content)
        if not isinstance(text, bytes):
            text = json.dumps({"format": self.formats[0], **text} if self.formats else text).encode()
        body = text.rstrip()[:-1].rstrip()
        replace_file(fs, path, body + b', "%s": %d}\n' % (_NAME.encode(), zlib.crc32(body)), tmp_dir)
