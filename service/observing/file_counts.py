"""How many files there are and how large, by kind, tier and state; an archive is not listed for it."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from index.classic.format import file_bytes
from index.classic.index import ClassicIndex
from index.local_index import LocalIndex
from tiering.cold.archive_totals import Total, Totals
from tiering.format.manifest import Head
from tiering.hot.store import HotStore


class FileState(NamedTuple):
    """What ``tierlog files`` says of a file in three of its columns."""

    kind: str
    tier: str
    state: str


def count_files(
    hot: HotStore, index: LocalIndex, classic: ClassicIndex | None, head: Head | None, held: Totals | None
) -> dict[FileState, Total]:
    """Files of both tiers; those of the archive are left out while ``held`` is not known."""
    found: defaultdict[FileState, Total] = defaultdict(Total)
    for state in ("active", "rolled", "archived"):
        found[FileState("segment", "hot", state)] = Total()
    archived_to = head.archived_to if head else 0
    segments = [segment for segment in hot.log.segments() if segment.base_offset >= hot.border]
    for segment in segments:
        state = "archived" if segment.base_offset < archived_to else "rolled"
        place = FileState("segment", "hot", "active" if segment is segments[-1] else state)
        found[place] += Total(1, len(segment.data))
    for entry in index.files():
        found[FileState("index", "hot", entry.state.value)] += Total(1, entry.bytes)
    for file in () if classic is None else classic.files():
        place = FileState("classic index", "hot", "full" if file.is_full else "writing")
        found[place] += Total(1, file_bytes(file.slots, file.items))
    if held is not None:
        found[FileState("segment", "cold", "published")] = held.segments
        found[FileState("index", "cold", "published")] = held.index_objects
    return dict(found)
