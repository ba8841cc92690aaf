"""Reads the small JSON files in ``tierlog/``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tiering.errors import CorruptionError, StoreError
from tiering.fs import FileSystem

_Content = TypeVar("_Content")


def read_json(fs: FileSystem, path: Path, decode: Callable[[Any], _Content]) -> _Content:
    """What ``decode`` makes of a file's document; :class:`CorruptionError` if it is no JSON or ``decode`` stumbles."""
    try:
        return decode(json.loads(fs.read(path)))
    except StoreError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        problem = f"the file is damaged ({type(error).__name__}: {str(error)[:200]})"
        raise CorruptionError(problem, path=str(path)) from error
