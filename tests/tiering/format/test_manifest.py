"""The manifest's documents: round trips, unknown keys, newer versions, damage."""

from __future__ import annotations

import dataclasses

import pytest

from tierlog.tiering.base.errors import BadMagicError, CorruptionError, StoreError, UnsupportedFormatError
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format import manifest, store_state
from tierlog.tiering.format.manifest import (
    MAGIC_HEAD,
    MAGIC_PAGE,
    Head,
    IndexEntry,
    LogEntry,
    ObjectRef,
    PageNode,
    QueueGap,
    RemovedPage,
    Tombstone,
    TopicExpiry,
    decode_gaps,
    decode_page,
    decode_removed,
    encode_gaps,
    encode_page,
    encode_removed,
)
from tierlog.tiering.format.section import SectionRef, compress_json, decompress_json, encode_section, whole_section
from tierlog.tiering.format.store_state import (
    MAGIC_STATE,
    CommittedOffset,
    GroupRecord,
    StoreState,
    Takeover,
    TopicState,
)

BOUNDS = TimeBounds(10, 20, 5, 25)
SECTIONS = {"directory": SectionRef(100, 50, 28, 7), "seek_table": SectionRef(150, 30, 30, 8)}
ROWS = ObjectRef("s/manifest/rows", 99, 0xFFFFFFFF, 40)
LOG = LogEntry("s/log/0.zst", 0, 4096, 500, 123, 4000, 20, BOUNDS, SECTIONS, ROWS, 3)
EMPTY_LOG = LogEntry("s/log/1.zst", 4096, 4096, 90, 1, 0, 0, None, SECTIONS, None, 4)
INDEX = IndexEntry("s/index/L0/1", 0, 0, 8192, 1000, 600, 77, 12, 100, 25, 50, "tierlog", BOUNDS, SECTIONS, 5)
NODE = PageNode(ROWS, 1, 2, 0, 8192, BOUNDS, None)
HEAD = Head(
    "store", "volume", "open", 3, 9, "c9", ("c7", "c8", "c9"), 8192, 4096, 0, ROWS, ROWS, ((0, 4096),),
    (LOG, EMPTY_LOG), (INDEX,), (NODE,), (dataclasses.replace(NODE, rows=ROWS, bounds=None),),
    (RemovedPage(ROWS, 17, 3),), (Tombstone("t1", "orders", "ab", "cd", 1, None, 8192, 9),), (TopicExpiry(1, 5),),
)  # fmt: skip


def test_head_round_trip() -> None:
    assert Head.decode(HEAD.encode(), path="head") == HEAD
    smallest = Head("s", "v", "o", 1, 1, "c", ("c",), 0, 0, 0)
    assert Head.decode(smallest.encode(), path="head") == smallest


@pytest.mark.parametrize(
    ("kind", "level", "items"),
    [("log", 0, [LOG, EMPTY_LOG]), ("index", 0, [INDEX]), ("log", 1, [NODE]), ("index", 1, [])],
)
def test_page_round_trip(kind: str, level: int, items: list[LogEntry | IndexEntry | PageNode]) -> None:
    assert decode_page(encode_page(kind, level, items), kind, level, path="page") == items


def test_an_index_entry_tells_that_times_fall_and_is_as_long_as_ever_where_they_rise() -> None:
    falling = dataclasses.replace(INDEX, times_fall=True)
    assert decode_page(encode_page("index", 0, [falling, INDEX]), "index", 0, path="page") == [falling, INDEX]
    assert "times_fall" not in INDEX.to_json()


def test_names_and_gaps_round_trip() -> None:
    names = ["s/log/1.zst", "s/manifest/log0-1"]
    assert decode_removed(encode_removed(names), path="p") == names
    gaps = (QueueGap(1, 0, 5, 1 << 32), QueueGap(2, 7, 0, 1 << 44))
    assert decode_gaps(encode_gaps(gaps), path="p") == gaps


def test_state_round_trip() -> None:
    state = StoreState(
        (
            TopicState(1, "orders", 2, ends=(17, 1 << 45)),
            TopicState(7, "%RETRY%x", 1, archive=False, cold_retention_ms=9, hold=True),
        ),
        (GroupRecord("billing", 7, (CommittedOffset("orders", 0, 17), CommittedOffset("orders", 1, 3))),),
        "volume", 1 << 44, 9, 1 << 32, 65_536, (Takeover("old", 4096),),
    )  # fmt: skip
    assert StoreState.decode(state.encode(), path="state") == state


def test_unknown_keys_are_ignored() -> None:
    table, (page,) = whole_section(HEAD.encode(), MAGIC_HEAD, 1, path="head")
    body = decompress_json(page)
    body["from the future"] = {"a": [1]}
    body["log"][0]["compacted"] = True
    body["index"][0]["filter"] = None
    body["log_tree"][0]["height"] = 3
    table = {name: value for name, value in table.items() if name != "pages"} | {"new": 1}
    data, _ = encode_section(MAGIC_HEAD, 1, table, [(compress_json(body), {"new": 2})])
    assert Head.decode(data, path="head") == HEAD
    state, _ = encode_section(MAGIC_STATE, 1, {"topics": [{"topic_id": 1, "name": "a", "queues": 2, "x": 0}], "y": 1})
    assert StoreState.decode(state, path="state") == StoreState((TopicState(1, "a", 2),))


def test_the_state_of_a_followed_log_is_refused_by_versions_that_would_restore_it_as_their_own() -> None:
    for state, version in ((StoreState(), 1), (StoreState(followed=True), 3), (StoreState(was_followed=True), 3)):
        data = state.encode()
        assert int.from_bytes(data[8:12], "big") == version
        assert StoreState.decode(data, path="p") == state


def test_newer_version_is_said_to_be_newer() -> None:
    for magic, version, decode in (
        (MAGIC_HEAD, manifest.VERSION, lambda data: Head.decode(data, path="p")),
        (MAGIC_PAGE, manifest.VERSION, lambda data: decode_page(data, "log", 0, path="p")),
        (MAGIC_STATE, store_state.VERSION, lambda data: StoreState.decode(data, path="p")),
    ):
        data, _ = encode_section(magic, version + 1, {"topics": []}, [(compress_json([]), {})])
        with pytest.raises(UnsupportedFormatError):
            decode(data)


def test_one_document_is_not_taken_for_another() -> None:
    with pytest.raises(BadMagicError):
        Head.decode(StoreState().encode(), path="p")
    with pytest.raises(BadMagicError):
        StoreState.decode(HEAD.encode(), path="p")


def test_every_flipped_or_cut_byte_of_a_head_is_noticed() -> None:
    data = HEAD.encode()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(StoreError):
            Head.decode(bytes(damaged), path="p")
        with pytest.raises(CorruptionError):
            Head.decode(data[:place], path="p")


def test_ranges_of_entries() -> None:
    assert (EMPTY_LOG.first, EMPTY_LOG.next) == (4096, 8192)
    assert ObjectRef.from_json(None) is None
