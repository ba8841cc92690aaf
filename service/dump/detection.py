"""Detection of what a file or object is, and its dump."""

from __future__ import annotations

import re
from collections.abc import Callable

from tierlog.index.format.header import BEGIN_MAGIC, END_MAGIC
from tierlog.index.format.object_sections import PAGES_MAGIC, TAIL_MAGIC
from tierlog.index.rocketmq.classic_format import FILE_NAME
from tierlog.service.dump.classic_index import dump_classic
from tierlog.service.dump.index_object import dump_index_object
from tierlog.service.dump.kinds import KINDS, PARTS
from tierlog.service.dump.log_files import dump_log, dump_queue, dump_tail, dump_tiered_log, dump_tiered_queue
from tierlog.service.dump.manifest import dump_gaps, dump_head, dump_page, dump_queue_rows, dump_removed, dump_state
from tierlog.service.dump.result import Dump, DumpOptions
from tierlog.service.dump.sorted_segment import SEEKABLE_MAGIC, ZSTD_MAGIC, dump_sorted_segment
from tierlog.service.dump.source import Source
from tierlog.service.dump.store_files import dump_abort, dump_cached_range, dump_checkpoint, dump_json, dump_lock
from tierlog.service.dump.tiered_index import dump_chained, dump_compacted, is_compacted
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.cold.reading.disk_cache import MAGIC as MAGIC_CACHED
from tierlog.tiering.format.manifest import MAGIC_GAPS, MAGIC_HEAD, MAGIC_PAGE, MAGIC_REMOVED
from tierlog.tiering.format.queue_rows import MAGIC as MAGIC_ROWS
from tierlog.tiering.format.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from tierlog.tiering.format.store_state import MAGIC_STATE
from tierlog.tiering.format.tail import MAGIC as MAGIC_TAIL

_DUMPERS: dict[str, Callable[[Source, DumpOptions], Dump]] = {
    "commit-log": dump_log,
    "tiered-log": dump_tiered_log,
    "consume-queue": dump_queue,
    "tiered-queue": dump_tiered_queue,
    "index-classic": dump_classic,
    "index-chained": dump_chained,
    "index-compacted": dump_compacted,
    "index-object": dump_index_object,
    "sorted-segment": dump_sorted_segment,
    "manifest-head": dump_head,
    "manifest-page": dump_page,
    "queue-rows": dump_queue_rows,
    "state": dump_state,
    "tail": dump_tail,
    "removed-names": dump_removed,
    "queue-gaps": dump_gaps,
    "cached-range": dump_cached_range,
    "checkpoint": dump_checkpoint,
    "abort": dump_abort,
    "lock": dump_lock,
    "json": dump_json,
}


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


_SECTION_KINDS = {
    MAGIC_HEAD: "manifest-head", MAGIC_PAGE: "manifest-page", MAGIC_STATE: "state", MAGIC_ROWS: "queue-rows",
    PAGES_MAGIC: "index-object", MAGIC_TAIL: "tail", MAGIC_REMOVED: "removed-names", MAGIC_GAPS: "queue-gaps",
    MAGIC_CACHED: "cached-range",
}  # fmt: skip
_RECORD_MAGICS = {_int32(magic) for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)}
_INDEX_MAGICS = {_int32(BEGIN_MAGIC), _int32(END_MAGIC)}
_COLD_NAME = re.compile(r"[0-9a-f]{8}\d{20}")
_OFFSET_NAME = re.compile(r"\d{20}")
#: Another layout with the magic of today's.
_OLD_INDEX_NAMES = ("0000", "1111", "2222")
_AS_IT_IS = DumpOptions()
_NUMBER = re.compile(r"\d+")
_UNSUPPORTED = {
    "batchconsumequeue": "batch consume queues are not supported",
    "consumequeue_ext": "extension files of consume queues are not supported",
}


def dump(source: Source, options: DumpOptions, kind: str | None = None) -> Dump:
    """Dumps what a file or object holds; ``kind`` overrules what it looks like.

    Raises :class:`InvalidRequestError` if it cannot be told what it is, or how large its tables are.
    """
    chosen = kind or kind_of(source, options)
    parts = PARTS.get(chosen, ())
    if options.part is not None and options.part not in parts:
        what = f"has the parts {', '.join(parts)}" if parts else "has no parts"
        raise InvalidRequestError(f"{chosen} {what}, not {options.part!r}", path=source.name)
    return _DUMPERS[chosen](source, options)


def kind_of(source: Source, options: DumpOptions = _AS_IT_IS) -> str:
    """Returns one of ``KINDS``: by content where it has a magic, else by place and name."""
    _refuse_unsupported(source)
    kind = _by_content(source, options) or _by_place(source)
    if kind is None:
        raise InvalidRequestError(
            "cannot tell what this is", path=source.name,
            hint=f"looked for {', '.join(KINDS)}, by magic, then by folder and name; --as KIND overrules",
        )  # fmt: skip
    return kind


def _refuse_unsupported(source: Source) -> None:
    name = source.parts[-1]
    for part in source.parts[:-1]:
        if part in _UNSUPPORTED and _OFFSET_NAME.fullmatch(name):
            raise InvalidRequestError(_UNSUPPORTED[part], path=source.name)
    if source.folder() == "tiered_index_file" and name in _OLD_INDEX_NAMES:
        raise InvalidRequestError("index files of RocketMQ 5.1's tiered store are not supported", path=source.name)


def _by_content(source: Source, options: DumpOptions) -> str | None:
    head, tail = source.read(0, 64), source.read(source.size - 16, source.size)
    if tail.endswith(TAIL_MAGIC):
        return "index-object"
    if head[:8] in _SECTION_KINDS:
        return _SECTION_KINDS[head[:8]]
    is_cold_name = bool(_COLD_NAME.fullmatch(source.parts[-1]))
    if head[4:8] in _RECORD_MAGICS:
        return "tiered-log" if is_cold_name or source.folder() == "COMMIT_LOG" else "commit-log"
    if head[:4] in _INDEX_MAGICS and source.size >= 28:
        return "index-compacted" if is_compacted(source, options) else "index-chained"
    if tail.endswith(SEEKABLE_MAGIC):
        return "sorted-segment"
    return None


def _by_place(source: Source) -> str | None:
    name, folder = source.parts[-1], source.folder()
    if name in ("checkpoint", "abort", "lock"):
        return name
    if name == "abort.bak":
        return "abort"
    if _COLD_NAME.fullmatch(name):
        kinds = {"COMMIT_LOG": "tiered-log", "CONSUME_QUEUE": "tiered-queue", "INDEX": "index-compacted"}
        return kinds.get(folder)
    if _OFFSET_NAME.fullmatch(name):
        if folder == "commitlog":
            return "commit-log"
        return "consume-queue" if _NUMBER.fullmatch(folder) else None
    if FILE_NAME.fullmatch(name):
        return "index-classic"
    return _by_name_or_text(source, name)


def _by_name_or_text(source: Source, name: str) -> str | None:
    if name.endswith(".zst") or (source.read(0, 4) == ZSTD_MAGIC and source.folder() == "log"):
        return "sorted-segment"
    if name.endswith(".idx"):
        return "index-object"
    if name.endswith((".json", ".json.bak")) or source.read(0, 64).lstrip()[:1] in (b"{", b"["):
        return "json"
    return None
