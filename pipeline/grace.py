"""The grace period of an archive's stores, which jobs that name objects have to be told if it is not the default.

What nobody names is swept a grace period after it was stored, so each commit comes within a quarter of it.
"""

from __future__ import annotations

import argparse

from tiering.errors import InvalidRequestError
from tiering.options import ColdOptions

_HOUR_MS = 3_600_000


def add_grace_argument(parser: argparse.ArgumentParser) -> None:
    """``--grace-hours``."""
    parser.add_argument(
        "--grace-hours", type=float, default=ColdOptions().grace_ms / _HOUR_MS, metavar="N",
        help="the stores' cold.grace_ms; what is stored is committed within a quarter of it (%(default)s)",
    )  # fmt: skip


def grace_ms_of(arguments: argparse.Namespace) -> int:
    """In ms; :class:`InvalidRequestError` if there is none."""
    grace_ms = int(arguments.grace_hours * _HOUR_MS)
    if grace_ms <= 0:
        raise InvalidRequestError("the grace period is longer than nothing")
    return grace_ms
