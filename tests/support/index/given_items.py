"""Items that were made or put together, as the builder of an index object takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tierlog.index.format.layout import TIERLOG, ItemLayout, Items
from tierlog.tiering.base.types import TimeBounds


@dataclass(frozen=True)
class GivenItems:
    """A compacted file without header and slots; the items lie as they were given."""

    items: Items
    slots: int
    layout: ItemLayout = TIERLOG
    begin_ms: int = 0
    first: int = 0
    next: int = 1 << 40
    bounds: TimeBounds | None = None

    def verify(self) -> None:
        """Nothing has come from a disk."""

    def all_items(self) -> Items:
        """As they were given."""
        return self.items


def by_slot(items: Items, slots: int) -> Items:
    """In the order of slots; inside each as they were."""
    return items[np.argsort(items["hash"] % slots, kind="stable")]
