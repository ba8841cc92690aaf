"""The checkpoint, the abort file and the lock."""

from __future__ import annotations

from dataclasses import asdict

from service.dump.result import Dump, Options, text_of
from service.dump.source import Source
from tiering.format.checkpoint import CHECKPOINT_BYTES, Checkpoint

_TEXT_BYTES = 1_000
#: RocketMQ 5.5 has more fields behind those that are known; they are shown by their position.
_FIELDS_END = 40


def dump_checkpoint(source: Source, options: Options) -> Dump:
    """The times and offsets of a checkpoint."""
    data = source.read(0, CHECKPOINT_BYTES)
    head = {**asdict(Checkpoint.decode(data)), "bytes": source.size}
    further = {
        str(at): value
        for at in range(_FIELDS_END, len(data) - 7, 8)
        if (value := int.from_bytes(data[at : at + 8], "big", signed=True))
    }
    dump = Dump("checkpoint", {**head, "further_fields": further} if further else head)
    if source.size != CHECKPOINT_BYTES:
        dump.find(f"a checkpoint has {CHECKPOINT_BYTES} bytes, not {source.size}; fields that are missing read as 0")
    return dump


def dump_abort(source: Source, options: Options) -> Dump:
    """The file that is there while a store is open for writing."""
    return Dump("abort", {"meaning": "the store is open, or was not closed", **_text(source)})


def dump_lock(source: Source, options: Options) -> Dump:
    """The file that a writer locks; after the first line ours names the holder."""
    return Dump("lock", {"meaning": "locked by who writes the store; its being there says nothing", **_text(source)})


def _text(source: Source) -> dict[str, object]:
    text = text_of(source.read(0, _TEXT_BYTES).decode("utf-8", "replace")).strip()
    return {"content": text, "bytes": source.size}
