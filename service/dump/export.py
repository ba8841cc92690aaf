"""``--rocketmq OUT``: an index file or object of ours as a compacted file that RocketMQ's tiered store can read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tierlog.index.format.layout import LAYOUTS, ItemLayout
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.index.local.compacted_file import CompactedIndexFile
from tierlog.index.rocketmq.export import export_object, export_rocketmq
from tierlog.service.dump.detection import kind_of
from tierlog.service.dump.index_object import open_object, page_directory
from tierlog.service.dump.result import Dump, DumpOptions, Json, decoding
from tierlog.service.dump.source import Source
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem


def export(source: Source, target: Path, kind: str | None = None, layouts: Mapping[int, ItemLayout] = LAYOUTS) -> Dump:
    """Writes ``target``, which must not exist; the dump says what was written, or what is wrong with the source.

    Raises :class:`InvalidRequestError` for anything that is no index, or is still being written.
    """
    if target.exists() or target.is_symlink():
        raise InvalidRequestError("the file exists", path=str(target), hint="name one that does not")
    if not target.parent.is_dir():
        raise InvalidRequestError("no such folder", path=str(target.parent))
    chosen = kind or kind_of(source, DumpOptions(layouts=layouts))
    dump = Dump(chosen, {})
    folder = Path(tempfile.mkdtemp(prefix=".tierlog-export-", dir=target.parent))
    try:
        with dump.surviving():
            if chosen == "index-object":
                written = _object(source, dump, target, folder, layouts)
            else:
                written = _file(source, chosen, target, folder, layouts)
            if written:
                dump.head = {"written": str(target), **written, "bytes": target.stat().st_size}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return dump


def _object(source: Source, dump: Dump, target: Path, folder: Path, layouts: Mapping[int, ItemLayout]) -> Json:
    reader, meta = open_object(source, dump, layouts)
    if dump.findings:
        return {}
    directory = page_directory(reader)
    with decoding():
        end_ms, item_count = int(meta["max_store_ms"]), int(meta["items"])
        slot_from, slot_end = map(int, meta["slot_range"])
        export_object(
            LocalFileSystem(), reader, end_ms=end_ms, item_count=item_count, target=target, tmp_dir=folder,
            slot_range=(slot_from, slot_end),
        )  # fmt: skip
    return {"slots": directory.slots, "items": item_count, "offsets": "cold"}


def _file(source: Source, kind: str, target: Path, folder: Path, layouts: Mapping[int, ItemLayout]) -> Json:
    if kind not in ("index-chained", "index-compacted") or source.path is None:
        raise InvalidRequestError(f"--rocketmq writes index files and objects of ours, not {kind}", path=source.name)
    fs = LocalFileSystem()
    try:
        file = (ChainedIndexFile.open_sealed if kind == "index-chained" else CompactedIndexFile.open)(
            fs, source.path, layouts=layouts, verify=False
        )
    except CorruptionError as error:
        raise CorruptionError(f"not a sealed index file of ours: {error.message}") from error
    export_rocketmq(fs, file, target, folder)
    return {"slots": file.slots, "items": file.item_count, "offsets": "physical"}
