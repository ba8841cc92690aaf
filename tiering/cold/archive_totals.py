"""How much an archive holds, by kind, without listing it: sums of manifest pages, each read once.

Pages are immutable and their names are used once, so a sum that was taken holds as long as the page is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiering.cold.archive_catalogue import ArchiveCatalogue
from tiering.cold.reading import ArchiveReader
from tiering.format.manifest import Entry, Head, PageNode


@dataclass(frozen=True, slots=True)
class Total:
    """Objects of one kind."""

    count: int = 0
    bytes: int = 0

    def __add__(self, other: Total) -> Total:
        """Both together."""
        return Total(self.count + other.count, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Totals:
    """What one head leads to."""

    segments: Total
    index_objects: Total


class ArchiveTotals:
    """Sums of the pages below the heads of one archive. :meth:`of` is thread safe, :meth:`learn` for one thread."""

    def __init__(self, catalogue: ArchiveCatalogue) -> None:
        self._catalogue = catalogue
        #: Of each page that a head names: the sums of the pages below it, by their names.
        self._pages: dict[str, dict[str, Total]] = {}
        self._learned: Head | None = None

    def of(self, head: Head) -> Totals | None:
        """The sums of a head, without a request; None while pages of it were not read."""
        segments, objects = self._known(head.log_tree), self._known(head.index_tree)
        if segments is None or objects is None:
            return None
        return Totals(segments + _sum(head.log), objects + _sum(head.index))

    def learn(self, reader: ArchiveReader, head: Head) -> None:
        """Read what is not known of a head yet: every page of a new process, else what the last commits wrote."""
        if head is self._learned:
            return
        leaves = {key: total for sums in self._pages.values() for key, total in sums.items()}
        pages: dict[str, dict[str, Total]] = {}
        for kind, tree in (("log", head.log_tree), ("index", head.index_tree)):
            for node in tree:
                known = self._pages.get(node.ref.key)
                pages[node.ref.key] = known if known is not None else self._sums(reader, kind, node, leaves)
        self._pages, self._learned = pages, head

    def _sums(self, reader: ArchiveReader, kind: str, node: PageNode, leaves: dict[str, Total]) -> dict[str, Total]:
        found: dict[str, Total] = {}
        for leaf in self._catalogue.page(reader, node, kind):
            total = leaves.get(leaf.ref.key)
            found[leaf.ref.key] = total or _sum(self._catalogue.page(reader, leaf, kind))
        return found

    def _known(self, tree: tuple[PageNode, ...]) -> Total | None:
        pages, total = self._pages, Total()
        for node in tree:
            sums = pages.get(node.ref.key)
            if sums is None:
                return None
            for each in sums.values():
                total += each
        return total


def _sum(entries: Sequence[Entry]) -> Total:
    return Total(len(entries), sum(entry.size_bytes for entry in entries))
