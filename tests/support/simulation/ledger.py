"""What must be true after every change of the bucket, checked from outside with a reader of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.support.simulation.server import Client, Server
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.cold.manifest.store import ManifestChange
from tierlog.tiering.format.manifest import (
    REMEMBERED_COMMITS,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    decode_page,
    decode_removed,
)
from tierlog.tiering.format.queue_rows import decode_queue_rows_head, decode_rows_page

Row = tuple[int, ...]


class BrokenPromiseError(AssertionError):
    """Something happened that must never happen."""


@dataclass(eq=False)
class Intent:
    """What one call of a committer means to change; how often it landed."""

    kind: str
    change: ManifestChange
    epoch: int | None
    landed: int = 0


@dataclass
class Named:
    """Everything a head leads to."""

    log: dict[int, LogEntry] = field(default_factory=dict)
    index: dict[str, IndexEntry] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    objects: set[str] = field(default_factory=set)
    removed: dict[str, int] = field(default_factory=dict)
    removed_pages: set[str] = field(default_factory=set)


def rows_of(base: int, segment_bytes: int) -> list[Row]:
    """The queue rows of a simulated segment."""
    number = base // segment_bytes
    found = [(1, 0, base, number * 10, 10, *[number] * 4)]
    if number % 3 == 0:
        found.append((2, 1, base, number, 1, *[number] * 4))
    return found


class Ledger:
    """Watches a server. Raises :class:`BrokenPromiseError` in whoever breaks one."""

    def __init__(self, server: Server, keys: ColdKeys, grace_ms: int, segment_bytes: int) -> None:
        self._server = server
        self._keys = keys
        self._grace_ms = grace_ms
        self._segment_bytes = segment_bytes
        self._pages: dict[str, list[Any]] = {}
        self._rows: dict[str, list[Row]] = {}
        self._stored: dict[str, bytes] = {}
        #: When names left the manifest, and whether the commit was held up between its page of them and its head.
        self.left: dict[str, tuple[int, bool]] = {}
        self.head: Head | None = None
        self.named = Named()
        self.heads = 0
        server.on_put = self._on_put
        server.on_delete = self._on_delete

    def judge_missing(self, key: str, read_at_ms: int) -> None:
        """A reader met an object that is gone; ``read_at_ms`` is when it asked for its head."""
        left_ms, held_up = self.left.get(key, (0, False))
        self._hold(key in self.left, f"{key} was never in the manifest or never left it")
        spent_ms = self._server.scheduler.now_ms - read_at_ms
        in_grace = spent_ms < 3 * self._grace_ms // 4 and not held_up
        self._hold(not in_grace, f"{key} left at {left_ms} and was gone {spent_ms} ms after its reader's look")

    def _hold(self, true: bool, what: str) -> None:
        if not true:
            raise BrokenPromiseError(what)

    def _now_ms(self) -> int:
        return self._server.scheduler.now_ms

    def _on_delete(self, key: str) -> None:
        self._hold(key != self._keys.head, "the head was deleted")
        self._hold(key not in self.named.objects, f"{key} was deleted while it is named")
        left = self.left.get(key)
        if left is not None:
            early = self._now_ms() - left[0] < 3 * self._grace_ms // 4 and not left[1]
            self._hold(not early, f"{key} was deleted {self._now_ms() - left[0]} ms after it left the manifest")
        elif key in self._server.objects._objects:
            age_ms = self._now_ms() - self._server.objects._objects[key][1].modified_ms
            self._hold(age_ms >= self._grace_ms, f"{key} was deleted as nobody's at an age of {age_ms} ms")

    def _on_put(self, client: Client, key: str, data: bytes, note: object) -> None:
        if key == self._keys.head:
            assert isinstance(note, Intent)
            self._on_head(Head.decode(data, path=key), note)
        else:
            self._hold(self._stored.setdefault(key, data) == data, f"{key} was used for two contents")

    def _on_head(self, head: Head, intent: Intent) -> None:
        before, self.heads = self.head, self.heads + 1
        intent.landed += 1
        self._hold(intent.landed == 1, f"one {intent.kind} landed twice")
        named = self._walk(head)
        missing = [key for key in sorted(named.objects) if key not in self._server.objects._objects]
        self._hold(not missing, f"named without an object: {missing}")
        both = named.objects & set(named.removed)
        self._hold(not both, f"named, and on the removed list: {sorted(both)}")
        self._check_order(head, named)
        if before is None:
            self._hold(intent.kind == "claim" and head.version == 1, "the head was made by something else than a claim")
        else:
            self._check_chain(before, head, intent)
            self._check_names(before, head, named, intent)
        self.head, self.named = head, named

    def _check_chain(self, before: Head, head: Head, intent: Intent) -> None:
        self._hold(head.version == before.version + 1, f"version {before.version} was followed by {head.version}")
        chain = (*before.commit_ids, head.commit_id)[-REMEMBERED_COMMITS:]
        self._hold(head.commit_ids == chain, "commit ids do not chain")
        takes = intent.kind in ("claim", "take_over")
        self._hold(head.epoch == before.epoch + takes, f"epoch {before.epoch} was followed by {head.epoch}")
        self._hold(takes or (head.volume_id, head.open_id) == (before.volume_id, before.open_id), "owner changed")
        if intent.epoch is not None and not takes:
            self._hold(intent.epoch == before.epoch, f"a writer of epoch {intent.epoch} committed in {before.epoch}")
        for name in ("archived_to", "indexed_to", "cold_min"):
            rises = getattr(before, name) <= getattr(head, name)
            self._hold(rises, f"{name} stepped back from {getattr(before, name)} to {getattr(head, name)}")
        self._hold(head.indexed_to <= head.archived_to, "indexed beyond what is archived")

    def _check_order(self, head: Head, named: Named) -> None:
        """Every segment is there once, from the expiry to the watermark, with its rows; index ranges do not overlap."""
        expected = set(range(head.cold_min, head.archived_to, self._segment_bytes))
        for first, following in head.log_gaps:
            expected -= set(range(first, following, self._segment_bytes))
        self._hold(set(named.log) == expected, f"segments {sorted(set(named.log) ^ expected)} are lost or too many")
        rows = sorted(row for base in named.log for row in rows_of(base, self._segment_bytes))
        self._hold(sorted(named.rows) == rows, "queue rows are not those of the segments")
        reached = None
        for entry in sorted(named.index.values(), key=lambda entry: entry.first):
            self._hold(reached is None or reached <= entry.first, f"{entry.key} covers what another covers")
            reached = entry.next

    def _check_names(self, before: Head, head: Head, named: Named, intent: Intent) -> None:
        change, old = intent.change, self.named
        log, index = dict(old.log), dict(old.index)
        for entry in change.remove:
            gone = log.pop(entry.base, None) if isinstance(entry, LogEntry) else index.pop(entry.key, None)
            self._hold(gone is not None and gone.key == entry.key, f"{entry.key} was removed and was not there")
        for added in change.log:
            self._hold(added.base not in log, f"segment {added.base} was published twice")
            log[added.base] = added
        index |= {entry.key: entry for entry in change.index}
        log = {base: entry for base, entry in log.items() if entry.next > head.cold_min}
        index = {key: entry for key, entry in index.items() if entry.next > head.cold_min}
        self._hold(
            {base: entry.key for base, entry in log.items()} == {base: entry.key for base, entry in named.log.items()},
            "segments came or went that no commit named",
        )
        self._hold(set(index) == set(named.index), "index objects came or went that no commit named")
        left = old.objects - named.objects - old.removed_pages
        unlisted = left - set(named.removed)
        self._hold(not unlisted, f"left without a trace: {sorted(unlisted)}")
        for key in left:
            held_up = self._now_ms() - named.removed[key] > self._grace_ms // 4
            self.left[key] = self._now_ms(), held_up
        for key in old.removed_pages - named.removed_pages:
            self.left[key] = 0, False

    def _walk(self, head: Head) -> Named:
        named = Named()
        log, index = list(head.log), list(head.index)
        companions: list[ObjectRef] = []
        for kind, tree, entries in (("log", head.log_tree, log), ("index", head.index_tree, index)):
            for node in tree:
                named.objects.add(node.ref.key)
                for leaf in self._page(kind, node):
                    named.objects.add(leaf.ref.key)
                    companions += [leaf.rows] if leaf.rows is not None else []
                    entries += self._page(kind, leaf)
        companions += [entry.rows for entry in log if entry.rows is not None]
        for ref in companions:
            named.rows += self._rows_in(ref)
        named.objects |= {ref.key for ref in (*companions, head.state, head.gaps) if ref is not None}
        for entry in log:
            self._hold(entry.base not in named.log, f"segment {entry.base} is named twice")
            named.log[entry.base] = entry
        for each in index:
            self._hold(each.key not in named.index, f"{each.key} is named twice")
            named.index[each.key] = each
        named.objects |= {entry.key for entry in log} | {each.key for each in index}
        for page in head.removed:
            named.removed_pages.add(page.ref.key)
            named.removed |= dict.fromkeys(self._removed(page.ref), page.at_ms)
        named.objects |= named.removed_pages
        return named

    def _data(self, ref: ObjectRef) -> bytes:
        found = self._server.objects._objects.get(ref.key)
        self._hold(found is not None, f"named without an object: {ref.key}")
        assert found is not None
        return found[0]

    def _page(self, kind: str, node: PageNode) -> list[Any]:
        key = node.ref.key
        if key not in self._pages:
            self._pages[key] = decode_page(self._data(node.ref), kind, node.level, path=key)
        return self._pages[key]

    def _removed(self, ref: ObjectRef) -> list[str]:
        if ref.key not in self._pages:
            self._pages[ref.key] = decode_removed(self._data(ref), path=ref.key)
        return self._pages[ref.key]

    def _rows_in(self, ref: ObjectRef) -> list[Row]:
        if ref.key not in self._rows:
            data = self._data(ref)
            pages = decode_queue_rows_head(data, path=ref.key).pages
            self._rows[ref.key] = [
                tuple(int(value) for value in row)
                for page in pages
                for row in decode_rows_page(data[page.position : page.position + page.length], page, path=ref.key)
            ]
        return self._rows[ref.key]
