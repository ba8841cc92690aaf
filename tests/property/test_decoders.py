"""Every decoder, fed arbitrary bytes and valid bytes that were changed: an error of ours or a value, and nothing large.

Where a checksum stands in front, the changed bytes are tried with it mended as well: what lies behind a checksum is
trusted to be ours, so any exception may come then, but no crash, no endless loop and no allocation by a bad length.
"""

from __future__ import annotations

import json
import struct
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.index.index_bytes import mended
from tests.support.index.index_puts import PUTS_A11, batch_of
from tests.support.oracles.plain_index import PlainChainedFile
from tests.support.stores.hot_stores import array, record
from tests.support.stores.tails import data_head
from tierlog.index.format.header import END_MAGIC, FileHeader
from tierlog.index.format.layout import ROCKETMQ, TIERLOG, IndexItem
from tierlog.index.format.object_sections import META, TAIL, TAIL_BYTES, open_section
from tierlog.index.format.trailer import COVER_BYTES, TRAILER_BYTES, TRAILER_MAGIC, CoverRecord, Trailer
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.local.compaction import compact
from tierlog.index.objects.builder import IndexMeta, build_index_object
from tierlog.index.objects.pages import IndexPage, PageDirectory
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.types import TimeBounds
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.compression import decompress
from tierlog.tiering.format.manifest import Head, decode_page, encode_page
from tierlog.tiering.format.properties import KEYS, TAGS, decode_properties, encode_properties
from tierlog.tiering.format.queue_rows import QUEUE_ROW, decode_queue_rows_head, decode_rows_page, encode_queue_rows
from tierlog.tiering.format.queue_unit import UNIT_DTYPE, QueueUnit
from tierlog.tiering.format.record import decode_record, encode_record, is_intact
from tierlog.tiering.format.section import HEADER, compress_json, decompress_json
from tierlog.tiering.format.sorted_segment import (
    decode_map_page,
    decode_seek_table,
    decompress_frame,
    encode_map_page,
    encode_seek_table,
)
from tierlog.tiering.format.store_state import CommittedOffset, GroupRecord, StoreState, Takeover, TopicState
from tierlog.tiering.format.tail import decode_tail, encode_tail
from tierlog.tiering.kernels.scan import TopicTable, scan, scan_all

FS = LocalFileSystem()
TOPICS = TopicTable(["orders", "a"])
#: What one call may allocate at most; inputs are a few KiB.
MOST_BYTES = 24 << 20
BOUNDS = TimeBounds(1, 2, 3, 4)
Bytes = Callable[[bytes], bytes]


def with_crc(data: bytes, start: int, end: int, at: int) -> bytes:
    """The bytes with the CRC-32 of a piece put where it belongs, if there is room for it."""
    if len(data) < max(end, at + 4) or start < 0 or at < 0:
        return data
    return data[:at] + struct.pack(">I", zlib.crc32(data[start:end])) + data[at + 4 :]


def mend_section(data: bytes) -> bytes:
    """A section whose header checksum fits what is there now."""
    if len(data) < HEADER.size:
        return data
    end = HEADER.size + int.from_bytes(data[12:16])
    crc = zlib.crc32(data[HEADER.size : end], zlib.crc32(data[: HEADER.size - 4]))
    return data[: HEADER.size - 4] + struct.pack(">I", crc) + data[HEADER.size :]


def mend_cover(data: bytes) -> bytes:
    return with_crc(data, 0, COVER_BYTES - 4, COVER_BYTES - 4)


def mend_trailer(data: bytes) -> bytes:
    """A trailer whose own checksums fit."""
    at = len(data) - TRAILER_BYTES
    if at < 0:
        return data
    return with_crc(data[:at] + mend_cover(data[at:]), at, at + 68, at + 68)[:-8] + TRAILER_MAGIC


def mend_object(data: bytes) -> bytes:
    """An index object whose tail and meta section have checksums that fit."""
    length = int.from_bytes(data[-TAIL_BYTES : -TAIL_BYTES + 4], signed=True) if len(data) > TAIL_BYTES else 0
    start = len(data) - TAIL_BYTES - length
    if length <= 0 or start < 0:
        return data
    meta = mend_section(data[start:-TAIL_BYTES])
    return data[:start] + meta + TAIL.pack(length, zlib.crc32(meta), b"TLIDXTAI")


def on_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def decode(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            path.write_bytes(data)
            return read(path)

    return decode


def read_sealed(path: Path) -> object:
    file = ChainedIndexFile.open_sealed(FS, path)
    return [len(file.lookup(low, high)) for low in (0, 1, 1 << 30) for high in (None, 7)], len(file.all_items())


def read_compacted(path: Path) -> object:
    file = CompactedIndexFile.open(FS, path)
    return [len(file.lookup(low, 7)) for low in range(5)], len(file.slot_table())


def read_bare(path: Path) -> object:
    file = CompactedIndexFile.open_bare(FS, path, ROCKETMQ, 5)
    return [len(file.lookup(low)) for low in range(5)]


def read_object(data: bytes) -> object:
    reader, _ = IndexObjectReader.from_tail(lambda start, end: data[start:end], len(data))
    return [len(reader.lookup(low, 7)) for low in range(5)]


def read_rows(data: bytes) -> object:
    head = decode_queue_rows_head(data, path="p")
    return [decode_rows_page(data[page.position :][: page.length], page, path="p") for page in head.pages]


def read_plain(data: bytes) -> object:
    file = PlainChainedFile(ROCKETMQ, 5, 20, 0)
    file.data[: len(data)] = data[: len(file.data)]
    return [file.lookup(low) for low in range(5)]


def index_files() -> dict[str, bytes]:
    """Valid index files of every kind, small."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files: dict[str, bytes] = {}
        for layout in (TIERLOG, ROCKETMQ):
            chained = ChainedIndexFile.create(
                FS, path / layout.name, layout, slots=5, items=20, begin_ms=1_700_000_000_000, first_physical=0
            )
            batch = batch_of(PUTS_A11)
            chained.put(batch, 0, len(batch))
            chained.seal(4096)
            compact(FS, chained, path / f"{layout.name}-compacted", path / "tmp")
            files[f"chained {layout.name}"] = (path / layout.name).read_bytes()
            files[f"compacted {layout.name}"] = (path / f"{layout.name}-compacted").read_bytes()
        reader = CompactedIndexFile.open(FS, path / "tierlog-compacted")
        meta = IndexMeta("s", 4096, {0: "TopicTest", 1: "TopicB"})
        built = build_index_object(reader, lambda offsets: offsets, meta)
        files["object"] = built.data
        start, length = built.sections["directory"].position, built.sections["directory"].length
        files["directory"] = open_section("directory", built.data[start : start + length])
        directory = PageDirectory.decode(files["directory"])
        at = built.sections["pages"].position + HEADER.size
        files["page"] = built.data[at + directory.span(0)[0] : at + directory.span(0)[1]]
        start = built.sections[META].position
        files["meta"] = built.data[start : start + built.sections[META].length]
        return files


FILES = index_files()
TEXT = encode_properties({KEYS: "k1 k2", TAGS: "t"})
RECORD = encode_record(record(properties_text=TEXT))
RECORDS = RECORD + encode_record(record(properties_text=TEXT, physical_offset=len(RECORD)), checksum=True)
ROWS = np.ones(9, QUEUE_ROW)
HEAD = Head("s", "v", "o", 1, 1, "c", ("c",), 0, 0, 0)
STATE = StoreState(
    (TopicState(1, "a", 2, ends=(3, 4)),), (GroupRecord("g", 1, (CommittedOffset("a", 0, 3),)),), "v",
    takeovers=(Takeover("u", 5),),
)  # fmt: skip
FRAME = compress_json(["x" * 40, {"a": 1}])
SIZES = np.array([100, 200, 300], np.int64)


@dataclass(frozen=True)
class Decoder:
    """How to read some bytes, valid ones, and how to make their checksums fit again."""

    decode: Callable[[bytes], object]
    valid: bytes
    mend: Bytes | None = None


DECODERS = {
    "record": Decoder(decode_record, RECORDS),
    "record checksum": Decoder(lambda data: is_intact(data, len(data)), RECORDS),
    "properties": Decoder(decode_properties, encode_properties({KEYS: "a b", "n": "v"})),
    "scan": Decoder(lambda data: scan(array(data), 0, len(data), 0, TOPICS, check_crc=True, check_torn=True), RECORDS),
    "scan without checksums": Decoder(lambda data: scan_all(array(data), len(data), 0, TOPICS), RECORDS),
    "scan of few rows": Decoder(
        lambda data: scan(array(data), 0, len(data), 0, TOPICS, check_crc=False, max_rows=1), RECORDS
    ),
    "queue unit": Decoder(lambda data: QueueUnit.decode(data.ljust(20, b"\0")), bytes(UNIT_DTYPE.itemsize)),
    "checkpoint": Decoder(Checkpoint.decode, Checkpoint(1, 2, 3, 4, 5).encode()[:64]),
    "head": Decoder(lambda data: Head.decode(data, path="p"), HEAD.encode(), mend_section),
    "manifest page": Decoder(
        lambda data: decode_page(data, "log", 0, path="p"), encode_page("log", 0, []), mend_section
    ),
    "state": Decoder(
        lambda data: StoreState.decode(data, path="p"), STATE.encode(), mend_section
    ),
    "tail": Decoder(
        lambda data: decode_tail(data, path="p"), encode_tail(data_head(0, b"records"), b"records"), mend_section
    ),
    "queue rows": Decoder(read_rows, encode_queue_rows(ROWS, "p")[0], mend_section),
    "JSON page": Decoder(decompress_json, FRAME),
    "zstd frame": Decoder(lambda data: decompress(data, 4096, "frame"), FRAME),
    "record frame": Decoder(lambda data: decompress_frame(data, 52, path="p", position=0), FRAME),
    "map page": Decoder(lambda data: decode_map_page(data, 3, 0, 0), encode_map_page(SIZES, np.cumsum(SIZES))),
    "seek table": Decoder(lambda data: decode_seek_table(data, path="p"), encode_seek_table([(9, 99, 1), (8, 88, 2)])),
    "index header": Decoder(FileHeader.decode, FileHeader(END_MAGIC, 1, 2, 3, 4).encode()),
    "cover": Decoder(CoverRecord.decode, CoverRecord(0, 9, 5, 20, 2).encode(), mend_cover),
    "trailer": Decoder(Trailer.decode, Trailer(CoverRecord(0, 9, 5, 20, 2), BOUNDS, 0).encode(), mend_trailer),
    "chained item": Decoder(
        lambda data: TIERLOG.decode_chained(data.ljust(36, b"\0")), TIERLOG.encode_chained(IndexItem())
    ),
    "compacted item": Decoder(lambda data: TIERLOG.decode_compacted(data.ljust(32, b"\0")), bytes(32)),
    "plain chained file": Decoder(read_plain, FILES["chained rocketmq"]),
    "sealed file": Decoder(on_file(read_sealed), FILES["chained tierlog"], mended),
    "compacted file": Decoder(on_file(read_compacted), FILES["compacted tierlog"], mended),
    "compacted file of RocketMQ": Decoder(on_file(read_bare), FILES["compacted rocketmq"]),
    "page directory": Decoder(PageDirectory.decode, FILES["directory"]),
    "index page": Decoder(lambda data: IndexPage.decode(data, TIERLOG, 65_536).lookup(0, 0, 0), FILES["page"]),
    "meta section": Decoder(lambda data: open_section(META, data), FILES["meta"], mend_section),
    "index object": Decoder(read_object, FILES["object"], mend_object),
}  # fmt: skip

_EXTREMES = [0, 1, -1, 8, 0x7F, 0x7FFFFFFF, -0x80000000, 1 << 20, (1 << 62) - 1, -(1 << 62)]


@st.composite
def changes(draw: st.DrawFn) -> Bytes:
    """One change: flipped bits, an extreme number of 2, 4 or 8 bytes in either order, a cut, a zeroed run."""
    kind = draw(st.sampled_from(["flip", "number", "number", "cut", "zero", "double", "junk"]))
    place = draw(st.floats(0, 1, exclude_max=True))
    amount = draw(st.integers(1, 64))
    mask, value = draw(st.integers(1, 255)), draw(st.sampled_from(_EXTREMES))
    width, order = draw(st.sampled_from([2, 4, 4, 8])), draw(st.sampled_from(["big", "big", "little"]))
    junk = draw(st.binary(max_size=40))

    def change(data: bytes) -> bytes:
        at = int(place * len(data))
        if kind == "flip" and data:
            return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        if kind == "number":
            number = (value % (1 << 8 * width)).to_bytes(width, "big" if order == "big" else "little")
            return (data[:at] + number + data[at + width :])[: max(len(data), width)]
        if kind == "cut":
            return data[:at]
        if kind == "zero":
            return data[:at] + bytes(min(amount, len(data) - at)) + data[at + amount :]
        if kind == "double":
            return data[:at] + data[max(0, at - amount) : at] + data[at:]
        return data[:at] + junk + data[at:]

    return change


def bounded(decode: Callable[[bytes], object], data: bytes, allowed: type[Exception]) -> None:
    """Decode; an allowed error or a value, within :data:`MOST_BYTES`."""
    tracemalloc.start()
    try:
        decode(data)
    except MemoryError:
        raise
    except allowed:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < MOST_BYTES


QUICK = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", DECODERS)
def test_valid_bytes_are_read(name: str) -> None:
    DECODERS[name].decode(DECODERS[name].valid)
    if mend := DECODERS[name].mend:
        assert mend(DECODERS[name].valid) == DECODERS[name].valid, "mending changes nothing that fits"


@pytest.mark.parametrize("name", DECODERS)
@QUICK
@given(data=st.data())
def test_changed_bytes_give_an_error_of_ours_or_a_value(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    changed = decoder.valid
    for change in data.draw(st.lists(changes(), min_size=1, max_size=4)):
        changed = change(changed)
    bounded(decoder.decode, changed, StoreError)
    if decoder.mend is not None:
        bounded(decoder.decode, decoder.mend(changed), Exception)


@pytest.mark.parametrize("name", DECODERS)
@QUICK
@given(junk=st.binary(max_size=600))
def test_arbitrary_bytes_give_an_error_of_ours_or_a_value(name: str, junk: bytes) -> None:
    bounded(DECODERS[name].decode, junk, StoreError)


@pytest.mark.parametrize("size", [1 << 33, 1 << 40, (1 << 62) - 1])
@pytest.mark.parametrize("name", ["JSON page", "zstd frame", "record frame", "map page", "index page"])
def test_a_frame_that_says_it_is_huge_allocates_nothing(name: str, size: int) -> None:
    frame = struct.pack("<IBQ", 0xFD2FB528, 0b1110_0000, size) + bytes([1, 0, 0])
    with pytest.raises(StoreError):
        bounded(DECODERS[name].decode, frame, NotImplementedError)


def test_json_behind_a_checksum_may_be_anything_but_nothing_large_comes_of_it() -> None:
    """Tables are trusted once their checksum fits; a nonsense number in one must still not be allocated."""
    values: list[object] = [-1, 1 << 62, "x", None, [], {}]
    for value in values:
        table = json.dumps({"pages": [{"position": 0, "length": value, "crc32": 0, "rows": value}]}).encode()
        body = HEADER.pack(b"TLQROWS1", 1, len(table), HEADER.size + len(table), 0) + table
        bounded(read_rows, mend_section(body), Exception)
