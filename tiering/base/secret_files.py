"""Whether a file with a secret is open to others than who reads it: said once a process, and nothing is refused."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_LOG = logging.getLogger("tierlog")
_OTHERS, _GROUP = 0o007, 0o070
_told: set[Path] = set()


def warn_if_open(path: Path, what: str) -> None:
    """Warns if anybody may read or write ``path``, or its group may though the file is our own.

    A secret that Kubernetes mounts is root's, and the process reads it by its group.
    """
    try:
        found = os.stat(path)
    except OSError:
        return  # whoever reads it says why that fails
    mask = _OTHERS | (_GROUP if found.st_uid == os.geteuid() else 0)
    if found.st_mode & mask and path not in _told:
        _told.add(path)
        _LOG.warning("others on this machine may read %s: chmod 600 %s", what, path)
