"""Index objects of the archive: sections, page directory and items."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping

import numpy as np

from tierlog.index.format.layout import LAYOUTS, ItemLayout, Items
from tierlog.index.format.object_sections import DIRECTORY, FILTER, META, PAGES, name_of, open_section
from tierlog.index.objects.pages import IndexPage, PageDirectory
from tierlog.index.objects.reader import IndexObjectReader
from tierlog.service.dump.result import Dump, DumpOptions, Json, columns_of, decoding, text_of, window
from tierlog.service.dump.source import MOST_BYTES, Source
from tierlog.service.dump.tiered_index import item_row
from tierlog.tiering.base.errors import CorruptionError, UnsupportedFormatError
from tierlog.tiering.format.section import HEADER, SectionRef

_ITEM_COLUMNS = columns_of("item page slot hash hash_high topic_id topic:text queue_id offset size seconds store_ms")
_PAGE_COLUMNS = columns_of("page slot hash hash_high crc:text position compressed_bytes")
#: Before compression; ours have 64 KiB.
MOST_PAGE_BYTES = 64 << 20


def dump_index_object(source: Source, options: DumpOptions) -> Dump:
    """Dumps what the meta says, and items (offsets are cold offsets) or pages."""
    dump = Dump("index-object", {"bytes": source.size})
    with dump.surviving():
        reader, meta = open_object(source, dump, options.layouts)
        dump.head = {**_described(meta), "bytes": source.size}
        directory = page_directory(reader)
        with dump.surviving("pages section"):
            open_section(PAGES, source.read(reader.sections[PAGES].position, HEADER.size))
        dump.head |= {"slots": directory.slots, "pages": len(directory), "begin_ms": directory.begin_ms}
        with dump.surviving("key filter"):
            dump.head["filter"] = _filter(reader)
        if options.part == "pages":
            dump.name, dump.columns, dump.rows = "pages", _PAGE_COLUMNS, _pages(directory, options)
        else:
            topics = meta.get("topics")
            names = topics if isinstance(topics, dict) else {}
            dump.name, dump.columns, dump.rows = "items", _ITEM_COLUMNS, _items(reader, dump, options, names)
    return dump


def open_object(
    source: Source, dump: Dump, layouts: Mapping[int, ItemLayout] = LAYOUTS
) -> tuple[IndexObjectReader, Json]:
    """Opens a reader and the meta, found from the tail, or from the first section on if the tail is damaged."""
    try:
        with decoding():
            return IndexObjectReader.from_tail(source.read, source.size, layouts=layouts)
    except (CorruptionError, UnsupportedFormatError) as error:
        dump.find(f"tail or meta: {error.message}")
    sections, meta = _walk(source)
    return IndexObjectReader(source.read, sections, layouts=layouts), meta


def page_directory(reader: IndexObjectReader) -> PageDirectory:
    """Returns the checked directory; its page size is one that may be decompressed."""
    with decoding():
        directory = reader.page_directory()
    if directory.page_bytes > MOST_PAGE_BYTES:
        raise CorruptionError(f"pages of {directory.page_bytes} bytes")
    return directory


def _walk(source: Source) -> tuple[dict[str, SectionRef], Json]:
    """Walks over sections as they follow each other; returns the meta, if it can be read."""
    sections: dict[str, SectionRef] = {}
    meta: Json = {}
    position = 0
    for name in (PAGES, DIRECTORY, FILTER, META):
        header = source.read(position, position + HEADER.size)
        if len(header) < HEADER.size:
            break
        magic, _, _, length, _ = HEADER.unpack(header)
        if name == FILTER and name_of(magic) == META:
            continue  # an object without one
        if not HEADER.size <= length <= source.size - position or (name != PAGES and length > MOST_BYTES):
            raise CorruptionError(f"section {name} says it has {length} bytes", position=position)
        if name != PAGES:
            data = source.read(position, position + length)
            sections[name] = SectionRef(position, length, length, zlib.crc32(data))
            if name == META:
                with decoding():
                    found = json.loads(open_section(META, data))
                    meta = found if isinstance(found, dict) else {}
        else:
            sections[name] = SectionRef(position, length, length, 0)
        position += length
    return sections, meta


def _filter(reader: IndexObjectReader) -> Json | None:
    """Returns size and use of the key filter; None for an object without one."""
    ref = reader.sections.get(FILTER)
    if ref is not None and ref.length > MOST_BYTES:
        raise CorruptionError(f"section says it has {ref.length} bytes", position=ref.position)
    with decoding():
        found = reader.key_filter()
    if found is None:
        return None
    return {
        "blocks": found.blocks, "keys": found.keys, "bytes": found.size_bytes,
        "bits_per_key": round(found.bits_per_key, 2), "false_positive_rate": round(found.false_positive_rate(), 9),
    }  # fmt: skip


def _described(meta: Json) -> Json:
    """Returns the meta without what the rows show."""
    with decoding():
        text = json.dumps({name: value for name, value in meta.items() if name != "topics"}, ensure_ascii=False)
        found: Json = json.loads(text_of(text))
    return found


def _pages(directory: PageDirectory, options: DumpOptions) -> Iterator[Json]:
    for number in range(*window(options, 0, len(directory))):
        row = directory.rows[number]
        start, end = directory.span(number)
        yield {
            "page": number, "slot": int(row["slot"]), "hash": int(row["hash"]), "hash_high": int(row["hash_high"]),
            "crc": f"{int(row['crc']):08x}", "position": start, "compressed_bytes": end - start,
        }  # fmt: skip


def slot_problem(page: IndexPage, slots: int) -> str | None:
    """Returns what is wrong with the slots of a page: they must cover its items, each in the slot of its hash."""
    width = page.items.dtype.itemsize
    lengths = page.entries["length"].astype(np.int64)
    if (lengths < 0).any() or (lengths % width).any() or int(lengths.sum()) != width * len(page.items):
        return "slots and items have different lengths"
    slot_of = np.repeat(page.first_slot + np.arange(len(lengths)), lengths // width)
    if (page.items["hash"] < 0).any() or (page.items["hash"].astype(np.int64) % slots != slot_of).any():
        return "not all items lie in the slot of their hash"
    return None


def _items(reader: IndexObjectReader, dump: Dump, options: DumpOptions, topics: Json) -> Iterator[Json]:
    directory = reader.page_directory()
    start, stop = window(options, 0, 1 << 62)
    number = 0
    for page_number in range(len(directory)):
        if number >= stop:
            return
        try:
            with decoding():
                page = reader.page(page_number)
        except (CorruptionError, UnsupportedFormatError) as error:
            dump.find(f"page {page_number}: {error.message}; its items are not shown")
            continue
        problem = slot_problem(page, directory.slots)
        if problem is not None:
            dump.find(f"page {page_number}: {problem}")
        if number + len(page.items) > start:
            for row in _item_rows(page.items, directory, page_number, number, topics):
                if start <= row["item"] < stop:
                    yield row
        number += len(page.items)


def _item_rows(items: Items, directory: PageDirectory, page: int, first: int, topics: Json) -> Iterator[Json]:
    for number, values in enumerate(items.tolist(), first):
        item = dict(zip(directory.layout.compacted_fields, values, strict=True))
        row = item_row(number, item, item["hash"] % directory.slots, directory.begin_ms)
        topic = topics.get(str(item.get("topic_id")))
        yield {**row, "page": page, "topic": text_of(topic) if topic is not None else None}
