"""How a reader of the manifest goes on where a part of it cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tiering.cold.bill import BudgetSpentError
from tiering.errors import StoreError
from tiering.format.manifest import LogEntry, PageNode

T = TypeVar("T")

#: Is told of a part of the manifest (an entry or page reference, with its range and bounds) that cannot be read.
Lost = Callable[[LogEntry | PageNode, StoreError], None]


def unless_lost(part: LogEntry | PageNode, lost: Lost | None, read: Callable[[], T]) -> T | None:
    """What ``read`` gives; None once ``lost`` was told that it fails. Without ``lost`` the failure is raised."""
    try:
        return read()
    except BudgetSpentError:
        raise
    except StoreError as error:
        if lost is None:
            raise
        lost(part, error)
        return None
