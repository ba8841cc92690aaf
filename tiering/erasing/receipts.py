"""Receipts of erasures as operators see them: what was written again, what is gone, what may still hold bytes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tiering.cold.manifest_store import ManifestStore
from tiering.erasing.receipt import Receipt, ReceiptStore
from tiering.errors import CorruptionError
from tiering.store_view import StoreView, is_held


class Receipts:
    """Reads receipts of one store and compares them with what is there now. Thread safe."""

    def __init__(self, view: StoreView, manifest: ManifestStore, volume_id: str) -> None:
        self._view = view
        self._manifest = manifest
        self._volume_id = volume_id
        self.store_id = manifest.keys.store_id

    def all(self) -> list[dict[str, Any]]:
        """Every erasure that was ever begun, the oldest first; behind them, receipts that cannot be read."""
        store = ReceiptStore(self._manifest.objects, self._manifest.keys)
        found: list[Receipt] = []
        damaged: list[dict[str, Any]] = []
        for name in list(store.ids()):
            try:
                found.append(store.load(name))
            except CorruptionError as error:
                damaged.append(
                    {"tombstone_id": name, "store_id": self.store_id, "state": "damaged", "error": str(error)}
                )
        found.sort(key=lambda receipt: receipt.asked_ms)
        return [*map(self.describe, found), *damaged]

    def get(self, tombstone_id: str) -> dict[str, Any]:
        """One; :class:`NotFoundError` if there is none with this id."""
        return self.describe(ReceiptStore(self._manifest.objects, self._manifest.keys).load(tombstone_id))

    def describe(self, receipt: Receipt) -> dict[str, Any]:
        """The receipt with its state now. Lists the segments' objects if some were rewritten."""
        stone, head = receipt.tombstone, self._manifest.refresh()
        there = self._still_there([row.old for row in receipt.rewritten])
        is_open = any(each.tombstone_id == stone.tombstone_id for each in head.tombstones)
        begin = self._view.log_begin
        tails = self._tails_below(stone.end)
        is_gone = not there and not tails and begin >= stone.end
        return {
            **_asked(receipt, self.store_id),
            "state": self._state(receipt, is_open=is_open, is_gone=is_gone),
            "looked_at_bytes": min(receipt.done_to, stone.end),
            "segments_rewritten": [
                {
                    "segment": row.segment, "object": row.new, "replaced_object": row.old, "records": row.records,
                    "replaced_ms": row.at_ms, "deleted": row.old not in there,
                    "delete_after_ms": None if row.at_ms is None else row.at_ms + self._manifest.options.grace_ms,
                }
                for row in receipt.rewritten
            ],
            "may_still_hold_bytes": self._may_hold(receipt, there, tails, begin, is_open=is_open),
        }  # fmt: skip

    def _state(self, receipt: Receipt, *, is_open: bool, is_gone: bool) -> str:
        if not is_open:
            return "complete" if is_gone else "rewritten"
        return "held" if is_held(self._view, receipt.tombstone.topic) else "hidden"

    def _may_hold(
        self, receipt: Receipt, there: Collection[str], tails: int, begin: int, *, is_open: bool
    ) -> list[str]:
        """Places, each in words with a hint at when it will be empty."""
        stone, found = receipt.tombstone, []
        if is_open and receipt.done_to < stone.end:
            found.append(f"archived segments from {receipt.done_to} to {stone.end}, until they are written again")
        if there:
            found.append(f"{len(there)} replaced objects, until they are deleted after grace")
        if tails:
            found.append(f"{tails} tails of the write-ahead log, until they are archived and deleted after grace")
        if begin < stone.end:
            found.append(f"hot volume {self._volume_id}, until its segments below {stone.end} are removed")
        if receipt.rewritten:
            found.append("versions of the replaced objects, if the bucket keeps versions")
        found.append("backups and copies that were made outside tierlog")
        return found

    def _tails_below(self, end: int) -> int:
        """How many objects of the write-ahead log in the bucket begin below a physical offset."""
        keys, found = self._manifest.keys, 0
        for info in self._manifest.objects.list(keys.tails):
            first = keys.first_of_tail(info.key)
            if first is None or first >= end:
                break
            found += 1
        return found

    def _still_there(self, keys: list[str]) -> set[str]:
        """Which of these objects exist: one listing over their range, a request for 1,000 objects."""
        if not keys:
            return set()
        wanted, last, found = set(keys), max(keys), set()
        after = min(keys)[:-1]  # no key ends between a name and its first letters
        for info in self._manifest.objects.list(self._manifest.keys.segments, after):
            if info.key > last:
                break
            if info.key in wanted:
                found.add(info.key)
        return found


def _asked(receipt: Receipt, store_id: str) -> dict[str, Any]:
    stone, matched = receipt.tombstone, receipt.matched
    return {
        "tombstone_id": stone.tombstone_id,
        "store_id": store_id,
        "topic": stone.topic,
        "by_key": stone.key_hash is not None,
        "from_ms": stone.from_ms,
        "to_ms": stone.to_ms,
        "below_offset": stone.end,
        "asked_ms": receipt.asked_ms,
        "matched": matched and {"hot": matched.hot, "cold": matched.cold, "complete": matched.complete},
        "segments_to_rewrite": None if receipt.to_rewrite is None else list(receipt.to_rewrite),
    }


def plan_of(receipt: Receipt, store_id: str) -> dict[str, Any]:
    """What a dry run tells."""
    return {**_asked(receipt, store_id), "tombstone_id": None, "state": "dry run"}
