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

from tiering.cold.object_store import ObjectStore
from tiering.errors import CorruptionError, NotFoundError, ObjectNotFoundError, PreconditionFailedError
from tiering.format.manifest import Tombstone, tombstone_from_json
from tiering.paths import ColdKeys

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Matched:
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
    matched: Matched | None = None
    """None if the process was killed before it was counted."""
    to_rewrite: tuple[int, ...] | None = None
    """Archived segments in which a match was found when the erasure was asked for."""
    done_to: int = 0
    """Every archived segment below was looked at, and rewritten if it held a match."""
    rewritten: tuple[RewrittenSegment, ...] = ()

    def with_rows(self, rows: tuple[RewrittenSegment, ...], by: str, done_to: int = 0) -> Receipt:
        """With these rows instead of those by the same process whose commit is not known to have landed."""
        names = {row.new for row in rows}
        kept = (row for row in self.rewritten if row.at_ms is not None or row.by != by)
        known = tuple(row for row in kept if row.new not in names)
        return replace(self, rewritten=known + rows, done_to=max(done_to, self.done_to))

    def settled(self, landed: Collection[str], lost: Collection[str], at_ms: int) -> Receipt:
        """With the undecided rows of these new names completed, or dropped."""
        rows = (
            replace(row, at_ms=at_ms) if row.at_ms is None and row.new in landed else row
            for row in self.rewritten
            if row.at_ms is not None or row.new not in lost
        )
        return replace(self, rewritten=tuple(rows))

    @property
    def undecided(self) -> tuple[RewrittenSegment, ...]:
        """Rows whose commit is not known to have landed."""
        return tuple(row for row in self.rewritten if row.at_ms is None)

    def encode(self) -> bytes:
        """The object."""
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, *, path: str) -> Receipt:
        """Inverse of :meth:`encode`; :class:`CorruptionError` for anything else."""
        try:
            value: Any = json.loads(data)
            matched, to_rewrite = value["matched"], value["to_rewrite"]
            return cls(
                tombstone_from_json(value["tombstone"]), int(value["asked_ms"]),
                matched and Matched(int(matched["hot"]), int(matched["cold"]), bool(matched["complete"])),
                None if to_rewrite is None else tuple(map(int, to_rewrite)), int(value["done_to"]),
                tuple(
                    RewrittenSegment(
                        row["segment"], row["old"], row["new"], row["records"], row["at_ms"], row.get("by", "")
                    )
                    for row in value["rewritten"]
                ),
            )  # fmt: skip
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise CorruptionError(f"the receipt is damaged ({error})", path=path) from error


class ReceiptStore:
    """Receipts of one store. Used by one thread at a time."""

    def __init__(self, objects: ObjectStore, keys: ColdKeys) -> None:
        self._objects = objects
        self._keys = keys
        self._etags: dict[str, str] = {}

    def load(self, tombstone_id: str) -> Receipt:
        """The receipt; :class:`NotFoundError` if there is none with this id."""
        key = self._keys.receipt(tombstone_id)
        try:
            data, info = self._objects.get(key)
        except ObjectNotFoundError as error:
            raise NotFoundError(f"there is no receipt {tombstone_id!r}") from error
        self._etags[tombstone_id] = info.etag
        return Receipt.decode(data, path=key)

    def find(self, tombstone_id: str) -> Receipt | None:
        """The receipt, None if there is none."""
        try:
            return self.load(tombstone_id)
        except NotFoundError:
            return None

    def save(self, receipt: Receipt) -> None:
        """Store it new, or in the place of the one that was loaded or saved last; repeatable after any failure.

        Raises :class:`PreconditionFailedError` if somebody else wrote it since: load it again.
        """
        name, data = receipt.tombstone.tombstone_id, receipt.encode()
        etag = self._etags.pop(name, None)
        info = self._objects.put(self._keys.receipt(name), data, if_absent=etag is None, if_match=etag)
        self._etags[name] = info.etag

    def begin(self, receipt: Receipt) -> Receipt:
        """Store it new, or in the place of a damaged one; what is stored now if somebody else was faster."""
        try:
            self.save(receipt)
        except PreconditionFailedError:
            return self.load(receipt.tombstone.tombstone_id)
        return receipt

    def update(self, receipt: Receipt, change: Callable[[Receipt], Receipt]) -> Receipt:
        """Store what ``change`` makes of a receipt, or of what somebody else has made of it since; what is stored now.

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
