"""Where built tools of the tests are kept between runs, outside of the checkout."""

from __future__ import annotations

import os
from pathlib import Path


class ToolMissingError(Exception):
    """A program that only the machine's owner can install is not there."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/tierlog-test-tools``, below ``~/.cache`` unless set; it may not exist yet."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "tierlog-test-tools"
