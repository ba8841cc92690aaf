"""Errors of the key index; the rest of the tree is :mod:`tiering.base.errors`."""

from __future__ import annotations

from tierlog.tiering.base.errors import CorruptionError


class CorruptIndexError(CorruptionError):
    """An index file or object contradicts itself. It is derived data: discard it and derive it again."""


class OtherIndexFileError(CorruptIndexError):
    """A file has the name of the one that is looked for and is another, as a stop may leave it: not damaged."""


class DamagedFilterError(CorruptIndexError):
    """The key filter of an index object is damaged. Nothing is lost: look into the object itself, as without one."""
