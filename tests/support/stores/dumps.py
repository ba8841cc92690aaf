"""Dumps read to their end, and one file or object of every kind to dump."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from tests.support.index.index_puts import PUTS_A11, T, batch_of
from tests.support.rocketmq.golden import unpack
from tests.support.rocketmq.written_stores import WrittenStore
from tests.support.stores.tails import data_head
from tierlog.index.format.layout import TIERLOG
from tierlog.index.local.chained_file import ChainedIndexFile
from tierlog.service.dump.detection import dump
from tierlog.service.dump.result import Dump, DumpOptions, Json
from tierlog.service.dump.source import open_source
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.format.manifest import QueueGap, encode_gaps, encode_removed
from tierlog.tiering.format.tail import encode_tail


@dataclass(frozen=True)
class Dumped:
    """A dump and all of its rows."""

    dump: Dump
    rows: list[Json]

    @property
    def head(self) -> Json:
        """What the head said, and what only the end showed."""
        return {**self.dump.head, **self.dump.end}

    @property
    def findings(self) -> list[str]:
        """What is wrong."""
        return self.dump.findings


def dumped(path: Path | str, kind: str | None = None, **options: object) -> Dumped:
    """Dump all rows; options as of ``DumpOptions``."""
    found = dump(open_source(str(path)), DumpOptions(**options), kind)  # type: ignore[arg-type]
    rows = list(found.read_rows())
    return Dumped(found, rows)


def column(found: Dumped, *names: str) -> list[tuple[object, ...]]:
    """Some columns of the rows."""
    return [tuple(row[name] for name in names) for row in found.rows]


def sealed_index_file(path: Path) -> ChainedIndexFile:
    """A sealed file of ours with the puts of the golden vector."""
    file = ChainedIndexFile.create(LocalFileSystem(), path, TIERLOG, slots=4, items=8, begin_ms=T, first_physical=0)
    file.put(batch_of(PUTS_A11), 0, len(PUTS_A11))
    file.seal(1 << 20)
    return file


#: What a broker's config holds beside the log, numeric keys without quotes as it writes them.
BROKER_JSON = {
    "topics.json": '{"dataVersion":{"counter":3},"topicConfigTable":{"TopicTest":{"order":false,"perm":6,'
    '"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TopicTest","topicSysFlag":0,"writeQueueNums":4}}}',
    "consumerOffset.json": '{"dataVersion":{"counter":1},"offsetTable":{"TopicTest@group@1":{0:12,1:7}}}',
    "delayOffset.json": '{"dataVersion":{"counter":1},"offsetTable":{3:5,14:1}}',
}


def make_store(folder: Path) -> WrittenStore:
    """A closed store of ours with an archive, everything in it also hot; it has a file of each kind but sealed."""
    with WrittenStore.make(folder, 7, cold=True, hot__record_checksum=True) as store:
        for _ in range(4):
            store.append_mixed(120)
        store.engine.flush()
        store.dispatch()
        store.engine.archive(everything=True)
        store.append_mixed(60)
        store.engine.flush()
    return store


def samples(folder: Path) -> dict[str, Path]:
    """One file or object for every kind, some kinds several times; the name before a dot is the kind."""
    store = make_store(folder / "ours")
    (folder / "sealed").mkdir()
    broker = unpack("tiered", folder / "broker")
    singles = unpack("indexfiles", folder / "indexfiles", archive="files.tar.xz")
    (folder / "config").mkdir()
    for name, text in BROKER_JSON.items():
        (folder / "config" / name).write_text(text)
    (broker / "abort").write_text("4711")
    tail = folder / f"{4096:020d}"
    tail.write_bytes(encode_tail(data_head(4096, b"records"), b"records"))
    removed, gaps, cached = (folder / name for name in ("removed-1", "gaps-1", "cached"))
    removed.write_bytes(encode_removed(["one/log/a", "one/log/b"]))
    gaps.write_bytes(encode_gaps([QueueGap(1, 0, 5, 1 << 32)]))
    behind = len(b"one/log/a").to_bytes(2, "big") + b"one/log/a" + b"range"
    cached.write_bytes(b"TLCACHE1" + zlib.crc32(behind).to_bytes(4, "big") + behind)
    cold, root = folder / "ours" / "cold", store.root
    found = {
        "commit-log": broker / "commitlog" / f"{0:020d}",
        "commit-log.ours": root / "commitlog" / f"{0:020d}",
        "tiered-log": _first(broker, "cold/**/TopicTest/0/COMMIT_LOG/*"),
        "consume-queue": _first(broker, "consumequeue/TopicTest/0/*"),
        "tiered-queue": _first(broker, "cold/**/TopicTest/0/CONSUME_QUEUE/*"),
        "index-classic": _first(broker, "index/*"),
        "index-chained": sealed_index_file(folder / "sealed" / "1700000000000").path,
        "index-chained.writing": _first(root, "index/writing/*"),
        "index-chained.rocketmq": singles / "tiered-odd",
        "index-compacted": _first(root, "index/uploaded/*"),
        "index-compacted.rocketmq": singles / "tiered-sealed.compacted",
        "index-object": _first(cold, "*/index/L0/*.idx"),
        "sorted-segment": _first(cold, "*/log/*.zst"),
        "manifest-head": _first(cold, "*/head"),
        "manifest-page": _first(cold, "*/manifest/log0-*"),
        "manifest-page.references": _first(cold, "*/manifest/log1-*"),
        "queue-rows": _first(cold, "*/manifest/rows-*"),
        "state": _first(cold, "*/state/*"),
        "tail": tail,
        "removed-names": removed,
        "queue-gaps": gaps,
        "cached-range": cached,
        "checkpoint": broker / "checkpoint",
        "abort": broker / "abort",
        "lock": root / "lock",
        "json": broker / "config" / "tieredStoreMetadata.json",
    }
    found |= {f"json.{name}": folder / "config" / name for name in BROKER_JSON}
    found |= {f"json.our-{path.name}": path for path in sorted((root / "tierlog").glob("*.json"))}
    return found


def kind_of(sample: str) -> str:
    """The kind of a sample by its name."""
    return sample.partition(".")[0]


def _first(folder: Path, pattern: str) -> Path:
    return sorted(path for path in folder.glob(pattern) if path.is_file())[0]


def as_json(found: Dumped) -> str:
    """Everything as one text: fails for what JSON cannot hold."""
    return json.dumps([found.head, found.rows, found.findings], allow_nan=False)
