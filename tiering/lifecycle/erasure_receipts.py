"""The receipt of an erasure: what was asked, what it matched, which objects were written again in its course.

One JSON object per erasure, ``<store id>/receipts/<tombstone id>.json``, outside the manifest and never swept, so that
completion can be proved from the bucket alone after the volume is gone. The store's own process writes it, and a job
that carries the erasure out beside it, by compare-and-swap. Unknown keys are ignored.

::

    {"tombstone": {…}, "asked_ms": 0, "matched": {"hot": 1, "cold": 3, "complete": true}, "to_rewrite": [0, 4096],
     "done_to": 8192, "rewritten": [{"segment": 0, "old": "…", "new": "…", "records": 3, "at_ms": 0, "by": "…"}]}

``rewritten`` is written before the commit that puts ``new`` in the place of ``old``, with ``at_ms`` null, and completed
after it. Killed in between: the row stays until ``old`` has left the manifest, by whomever; then it is completed if
``new`` was ever named, else dropped. ``by`` is whose row it is, so that of two writers none drops the other's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tierlog.tiering.base.errors import CorruptionError, NotFoundError, ObjectNotFoundError, PreconditionFailedError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.format.manifest import Tombstone, tombstone_from_json
from tierlog.tiering.lifecycle.store_view import StoreView, is_held
from tierlog.tiering.objects.object_store import ObjectStore

_TRIES = 8


@dataclass(frozen=True, slots=True)
class MatchedRecords:
    """Messages that readers saw when the erasure was asked for; not ``complete`` if some places could not be read."""

    hot: int
    cold: int
    complete: bool


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """One segment written again: ``records`` became fillers, for this erasure and others open at the time."""

    segment: int
    old: str
    new: str
    records: int
    at_ms: int | None = None
    """Server time at which ``old`` left the manifest; None until that is known."""
    by: str = ""
    """The process that wrote it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The stored part of a receipt."""

    tombstone: Tombstone
    asked_ms: int
    matched: MatchedRecords | None = None
    """None if the process was killed before it was counted."""
    to_rewrite: tuple[int, ...] | None = None
    """Archived segments in which a match was found when the erasure was asked for."""
    done_to: int = 0
    """Every archived segment below was looked at, and rewritten if it held a match."""
    rewritten: tuple[RewrittenSegment, ...] = ()

    def with_rows(self, rows: tuple[RewrittenSegment, ...], by: str, done_to: int = 0) -> Receipt:
        """The receipt with these rows instead of those by the same process whose commit is not known to have landed."""
        names = {row.new for row in rows}
        kept = (row for row in self.rewritten if row.at_ms is not None or row.by != by)
        known = tuple(row for row in kept if row.new not in names)
        return replace(self, rewritten=known + rows, done_to=max(done_to, self.done_to))

    def with_settled_rows(self, landed: Collection[str], lost: Collection[str], at_ms: int) -> Receipt:
        """Returns the receipt with the undecided rows of these new names completed, or dropped."""
        rows = (
            replace(row, at_ms=at_ms) if row.at_ms is None and row.new in landed else row
            for row in self.rewritten
            if row.at_ms is not None or row.new not in lost
        )
        return replace(self, rewritten=tuple(rows))

    @property
    def undecided_rows(self) -> tuple[RewrittenSegment, ...]:
        """Rows whose commit is not known to have landed."""
        return tuple(row for row in self.rewritten if row.at_ms is None)

    def encode(self) -> bytes:
        """Returns the object."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> Receipt:
        """Inverse of :meth:`encode`; :class:`CorruptionError` for anything else."""
        try:
            value: Any = json.loads(data)
            matched, to_rewrite = value["matched"], value["to_rewrite"]
            return cls(
                tombstone=tombstone_from_json(value["tombstone"]),
                asked_ms=int(value["asked_ms"]),
                matched=matched
                and MatchedRecords(int(matched["hot"]), int(matched["cold"]), bool(matched["complete"])),
                to_rewrite=None if to_rewrite is None else tuple(map(int, to_rewrite)),
                done_to=int(value["done_to"]),
                rewritten=tuple(
                    RewrittenSegment(
                        segment=row["segment"],
                        old=row["old"],
                        new=row["new"],
                        records=row["records"],
                        at_ms=row["at_ms"],
                        by=row.get("by", ""),
                    )
                    for row in value["rewritten"]
                ),
            )
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorruptionError(f"the receipt is damaged ({error})", path=path) from error


class ReceiptStore:
    """Receipts of one store. Used by one thread at a time."""

    def __init__(self, objects: ObjectStore, keys: ColdKeys) -> None:
        self._objects = objects
        self._keys = keys
        self._etags: dict[str, str] = {}

    def load(self, tombstone_id: str) -> Receipt:
        """Returns the receipt; :class:`NotFoundError` if there is none with this id."""
        key = self._keys.receipt(tombstone_id)
        try:
            data, info = self._objects.get(key)
        except ObjectNotFoundError as error:
            raise NotFoundError(f"there is no receipt {tombstone_id!r}") from error
        self._etags[tombstone_id] = info.etag
        return Receipt.decode(data, path=key)

    def find(self, tombstone_id: str) -> Receipt | None:
        """Returns the receipt, None if there is none."""
        try:
            return self.load(tombstone_id)
        except NotFoundError:
            return None

    def save(self, receipt: Receipt) -> None:
        """Stores it new, or in the place of the one that was loaded or saved last; repeatable after any failure.

        Raises :class:`PreconditionFailedError` if somebody else wrote it since: load it again.
        """
        name, data = receipt.tombstone.tombstone_id, receipt.encode()
        etag = self._etags.pop(name, None)
        info = self._objects.put(self._keys.receipt(name), data, if_absent=etag is None, if_match=etag)
        self._etags[name] = info.etag

    def begin(self, receipt: Receipt) -> Receipt:
        """Stores it new, or in the place of a damaged one; what is stored now if somebody else was faster."""
        try:
            self.save(receipt)
        except PreconditionFailedError:
            return self.load(receipt.tombstone.tombstone_id)
        return receipt

    def update(self, receipt: Receipt, change: Callable[[Receipt], Receipt]) -> Receipt:
        """Stores what ``change`` makes of a receipt, or of what somebody else has made of it since; what is stored now.

        Raises :class:`PreconditionFailedError` if others keep writing it.
        """
        name = receipt.tombstone.tombstone_id
        for _ in range(_TRIES):
            changed = change(receipt)
            if changed == receipt and name in self._etags:
                return receipt
            try:
                self.save(changed)
            except PreconditionFailedError as error:
                refused = error
                receipt = self.load(name)
            else:
                return changed
        raise refused

    def ids(self) -> Iterator[str]:
        """Ids of all receipts, in their order."""
        for info in self._objects.list(self._keys.receipts):
            yield info.key[len(self._keys.receipts) :].removesuffix(".json")


class ReceiptReports:
    """Receipts as operators see them: what was written again, what is gone, what may still hold bytes. Thread safe.

    Each receipt of the store is compared with what is there now.
    """

    def __init__(self, view: StoreView, manifest: ManifestStore, volume_id: str) -> None:
        self._view = view
        self._manifest = manifest
        self._volume_id = volume_id
        self.store_id = manifest.keys.store_id

    def all(self) -> list[dict[str, Any]]:
        """Returns every erasure that was ever begun, the oldest first; behind them, receipts that cannot be read."""
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
        """Returns the report of one erasure; :class:`NotFoundError` if there is none with this id."""
        return self.describe(ReceiptStore(self._manifest.objects, self._manifest.keys).load(tombstone_id))

    def describe(self, receipt: Receipt) -> dict[str, Any]:
        """Returns the receipt with its state now. Lists the segments' objects if some were rewritten."""
        tombstone, head = receipt.tombstone, self._manifest.refresh()
        there = self._still_there([row.old for row in receipt.rewritten])
        is_open = any(each.tombstone_id == tombstone.tombstone_id for each in head.tombstones)
        begin = self._view.log_begin
        tails = self._tails_below(tombstone.end)
        is_gone = not there and not tails and begin >= tombstone.end
        return {
            **_request_json(receipt, self.store_id),
            "state": self._state(receipt, is_open=is_open, is_gone=is_gone),
            "looked_at_bytes": min(receipt.done_to, tombstone.end),
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
        tombstone, found = receipt.tombstone, []
        if is_open and receipt.done_to < tombstone.end:
            found.append(f"archived segments from {receipt.done_to} to {tombstone.end}, until they are written again")
        if there:
            found.append(f"{len(there)} replaced objects, until they are deleted after grace")
        if tails:
            found.append(f"{tails} tails of the write-ahead log, until they are archived and deleted after grace")
        if begin < tombstone.end:
            found.append(f"hot volume {self._volume_id}, until its segments below {tombstone.end} are removed")
        if receipt.rewritten:
            found.append("versions of the replaced objects, if the bucket keeps versions")
        found.append("backups and copies that were made outside tierlog")
        return found

    def _tails_below(self, end: int) -> int:
        """Returns how many objects of the write-ahead log in the bucket begin below a physical offset."""
        keys, found = self._manifest.keys, 0
        for info in self._manifest.objects.list(keys.tails):
            first = keys.first_of_tail(info.key)
            if first is None or first >= end:
                break
            found += 1
        return found

    def _still_there(self, keys: list[str]) -> set[str]:
        """Returns which of these objects exist: one listing over their range, a request for 1,000 objects."""
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


def _request_json(receipt: Receipt, store_id: str) -> dict[str, Any]:
    """What was asked for and what it matched, as operators see it."""
    tombstone, matched = receipt.tombstone, receipt.matched
    return {
        "tombstone_id": tombstone.tombstone_id,
        "store_id": store_id,
        "topic": tombstone.topic,
        "by_key": tombstone.key_hash is not None,
        "from_ms": tombstone.from_ms,
        "to_ms": tombstone.to_ms,
        "below_offset": tombstone.end,
        "asked_ms": receipt.asked_ms,
        "matched": matched and {"hot": matched.hot, "cold": matched.cold, "complete": matched.complete},
        "segments_to_rewrite": None if receipt.to_rewrite is None else list(receipt.to_rewrite),
    }


def plan_of(receipt: Receipt, store_id: str) -> dict[str, Any]:
    """Returns what a dry run tells."""
    return {**_request_json(receipt, store_id), "tombstone_id": None, "state": "dry run"}
