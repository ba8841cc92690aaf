"""Tails: pieces of a log that was not archived yet, and fences."""

from __future__ import annotations

from service.dump.result import Dump, Options, columns_of, cut, decoding, text_of
from service.dump.sections import MOST_BYTES, read_head
from service.dump.source import Source
from tiering.errors import CorruptionError
from tiering.format.tail import MAGIC, VERSION, TailHead, decode_tail


def dump_tail(source: Source, options: Options) -> Dump:
    """Whose bytes of which range, every checksum verified; a row for each topic that has a record in it."""
    dump = Dump("tail", {"bytes": source.size}, "topics", columns_of("topic:text queues"))
    with dump.surviving():
        head = read_head(source, 0, source.size, MAGIC, VERSION)
        with decoding():
            said = TailHead.of_table(head.table, path=source.name)
            dump.head.update(
                store_id=text_of(said.store_id), volume_id=text_of(said.volume_id), epoch=said.epoch,
                nonce=text_of(said.nonce), tail_kind=said.kind.value, first=said.first, end=said.end,
                segment_bytes=said.segment_bytes, raw_bytes=said.payload_bytes,
            )  # fmt: skip
            rows = [{"topic": text_of(name), "queues": int(queues)} for name, queues in said.topics.items()]
        dump.rows = cut(rows, options)
        if source.size > MOST_BYTES:
            raise CorruptionError(f"{source.size} bytes are more than such an object has")
        with decoding():
            decode_tail(source.read(0, source.size), path=source.name)
    return dump
