"""What lies below the prefix of an archive."""

from __future__ import annotations

from collections.abc import Iterable

from tiering.cold.object_store import ObjectStore
from tiering.paths import store_of_head


def stores_below(objects: ObjectStore) -> Iterable[str]:
    """Store ids below the prefix, found by one listing request a store: each jump skips a store's other objects."""
    after = ""
    while True:
        key = next((info.key for info in objects.list("", after)), None)
        if key is None:
            return
        folder = key.partition("/")[0]
        for info in objects.list(f"{folder}/head"):
            if store_of_head(info.key) is not None:
                yield folder
            break
        after = f"{folder}/\U0010ffff"
