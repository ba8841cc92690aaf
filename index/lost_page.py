"""The entries of a manifest page that cannot be read, from the objects that it named.

Only what is certain is taken: objects that nothing else names and that never left the manifest, as many as the page's
reference says, over the very range and times that it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from index.index_object import IndexObjectReader
from tiering.checks.archive import ColdCheck
from tiering.cold.manifest_store import ManifestStore
from tiering.cold.object_stream import ObjectStream
from tiering.cold.segment.entry import entry_of_segment
from tiering.errors import CorruptionError
from tiering.format.manifest import Entry, IndexEntry, PageNode, decode_page
from tiering.types import TimeBounds


class LostPage:
    """Looks for what one page of one archive held."""

    def __init__(self, manifest: ManifestStore, check: ColdCheck) -> None:
        """``check`` has read all of the manifest that can be read."""
        self._manifest = manifest
        self._objects = manifest.objects
        self._head = check.head
        removed = {key for key, _ in manifest.removed_names(check.reader, check.head)}
        self._known = {entry.key for entry in check.log} | {entry.key for entry in check.index} | removed
        self._known |= check.page_names

    def entries(self, kind: str, lost: PageNode) -> list[Entry]:
        """What the page held, all levels below it included; :class:`CorruptionError` if that is not certain."""
        folder = "log" if kind == "log" else "index"
        if lost.level:
            pages = [page for page in self._pages(kind) if self._fits(page, lost)]
            found = [entry for page in pages for entry in page]
            count = len(pages)
        else:
            found = [entry for entry in self._objects_of(folder) if self._fits([entry], lost)]
            count = len(found)
        found.sort(key=lambda entry: entry.first)
        bounds = [entry.bounds for entry in found if entry.bounds is not None]
        if (
            count != lost.count
            or (min(entry.first for entry in found), max(entry.next for entry in found)) != (lost.first, lost.next)
            or (reduce(TimeBounds.union, bounds) if bounds else None) != lost.bounds
            or (kind == "log" and len({entry.first for entry in found}) != len(found))
        ):
            raise CorruptionError("what the page held is not certain", path=lost.ref.key)
        return found

    @staticmethod
    def _fits(entries: Sequence[Entry], lost: PageNode) -> bool:
        return all(lost.first <= entry.first and entry.next <= lost.next for entry in entries)

    def _unnamed(self, prefix: str) -> Iterator[str]:
        for info in self._objects.list(f"{self._manifest.keys.store_id}/{prefix}"):
            if info.key not in self._known:
                yield info.key

    def _pages(self, kind: str) -> Iterator[list[Entry]]:
        for key in self._unnamed(f"manifest/{kind}0-"):
            data, _ = self._objects.get(key)
            yield decode_page(data, kind, 0, path=key)

    def _objects_of(self, folder: str) -> Iterator[Entry]:
        for key in self._unnamed(f"{folder}/"):
            if folder == "log":
                yield entry_of_segment(self._objects, key, self._head.version)
            else:
                yield self._index_entry(key)

    def _index_entry(self, key: str) -> IndexEntry:
        size = self._objects.head(key).size_bytes
        reader, meta = IndexObjectReader.from_tail(lambda start, end: self._objects.get_range(key, start, end), size)
        stream = ObjectStream(self._objects, key, size)
        stream.take_rest()
        bounds = TimeBounds(*(meta[f"{end}_{axis}_ms"] for axis in ("store", "born") for end in ("min", "max")))
        level = int(key.split("/index/L")[1].split("/")[0])
        slot_from, slot_end = meta["slot_range"]
        return IndexEntry(
            key, level, meta["first"], meta["next"], meta["begin_ms"], size, stream.crc32, meta["items"],
            meta["slots"], slot_from, slot_end, meta["layout"], bounds, dict(reader.sections), self._head.version,
        )  # fmt: skip
