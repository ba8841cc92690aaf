"""Compares what tierlog reads out of a store that RocketMQ wrote with what RocketMQ itself answered about it."""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.rocketmq.golden import expected, unpack
from tests.support.stores.hot_stores import records_in
from tierlog.index.search.query import Query
from tierlog.index.search.searcher import search
from tierlog.index.search.store_search import TieredStoreSearch
from tierlog.service.config.settings import Settings
from tierlog.service.engine.opening import StoreParts, open_parts
from tierlog.service.engine.parts import Components
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS, Boundary, PullStatus
from tierlog.tiering.format.checkpoint import Checkpoint
from tierlog.tiering.format.properties import indexed_keys
from tierlog.tiering.format.queue_unit import UNIT_BYTES
from tierlog.tiering.format.record import BLANK, Record, decode_record, encode_record
from tierlog.tiering.hot.snapshot import HotSnapshot
from tierlog.tiering.hot.snapshot_queue import SnapshotQueue, offset_by_time, shown_queue
from tierlog.tiering.kernels.scan import ScanStop, TopicTable, scan
from tierlog.tiering.message.tags import TagFilter

#: RocketMQ's limits of one answer from memory.
_MOST_MESSAGES = 32
_MOST_BYTES = 262_144
_MOST_INDEXED = 64
_STATUS = {
    "FOUND": PullStatus.FOUND,
    "NO_MATCHED_MESSAGE": PullStatus.NO_MATCHED_MESSAGE,
    "OFFSET_TOO_SMALL": PullStatus.OFFSET_TOO_SMALL,
    "OFFSET_OVERFLOW_ONE": PullStatus.NO_NEW_MESSAGE,
    "OFFSET_OVERFLOW_BADLY": PullStatus.OFFSET_TOO_LARGE,
}

Json = dict[str, Any]


@dataclass
class Comparison:
    """How many things of each kind were compared, and what differed: (kind, what, theirs, ours)."""

    compared: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[str, object, object, object]] = field(default_factory=list)
    #: Answers of RocketMQ about something that tierlog has no question for.
    left_out: Counter[str] = field(default_factory=Counter)

    def check(self, kind: str, what: object, theirs: object, ours: object) -> None:
        """Count, and keep it if it differs."""
        self.compared[kind] += 1
        if theirs != ours:
            self.differences.append((kind, what, theirs, ours))


def compare(name: str, folder: Path) -> Comparison:
    """Unpack a fixture into the folder, open it read-only and compare everything that its expected.json says."""
    root = unpack(name, folder)
    found, wanted = Comparison(), expected(name)
    before = _files(root)
    for file in wanted["files"]:
        found.check("files as shipped", file["path"], (file["size"], file["sha256"]), before.get(file["path"]))
    with opened(root) as parts:
        ask(parts, wanted, found)
    fields = (
        "physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset",
    )  # fmt: skip
    checkpoint = Checkpoint.decode((root / "checkpoint").read_bytes())
    values = (
        checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms, checkpoint.master_flushed,
        checkpoint.confirm_offset,
    )  # fmt: skip
    for field_name, value in zip(fields, values, strict=True):
        found.check("checkpoint fields", field_name, wanted["checkpointBefore"][field_name], value)
    found.check("state", "abort file", wanted["abortBefore"], (root / "abort").exists())
    found.check("state", "files after reading", before, _files(root))
    return found


@contextmanager
def opened(root: Path) -> Iterator[StoreParts]:
    """A broker's store, read-only."""
    components = Components(Settings(), SystemClock(), LocalFileSystem(), SystemRandomness())
    parts = open_parts(root, components, cold_url=None, store_id=None, read_only=True)
    try:
        yield parts
    finally:
        parts.resources.close()


def ask(parts: StoreParts, wanted: Json, found: Comparison) -> None:
    """Compare all answers with RocketMQ's."""
    store = _Opened(parts, wanted, found)
    for part in (
        store.state, store.messages, store.queues, store.get_message, store.offset_by_time, store.query_message,
        store.look_message,
    ):  # fmt: skip
        part()


def _files(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


class _Opened:
    """One store as tierlog opened it, next to what RocketMQ said."""

    def __init__(self, parts: StoreParts, wanted: Json, found: Comparison) -> None:
        self._hot = parts.hot.store
        self._fetcher = parts.fetcher
        self._search = TieredStoreSearch("s", parts.hot.store, parts.hot.index, None)
        self._wanted = wanted
        self._found = found
        self._blanks: list[list[int]] = []
        self._records: dict[int, tuple[Record, bytes]] = {}
        for offset, raw in self._log():
            self._records[offset] = decode_record(raw, physical_offset=offset), raw

    def _log(self) -> Iterator[tuple[int, bytes]]:
        topics = TopicTable([topic.name for topic in self._hot.topics.all()])
        for segment in self._hot.log.segments():
            limit = min(segment.end, self._hot.log.end) - segment.base_offset
            result = scan(segment.data, 0, limit, segment.base_offset, topics, check_crc=True, check_torn=True)
            for row in result.rows:
                at, size = int(row["position"]), int(row["size"])
                yield segment.base_offset + at, bytes(segment.data[at : at + size])
            if result.stop is ScanStop.BLANK:
                length, _ = BLANK.unpack_from(segment.data.data, result.position)
                self._blanks.append([segment.base_offset + result.position, length])

    def state(self) -> None:
        state = self._wanted["state"]
        self._found.check("state", "minPhyOffset", state["minPhyOffset"], self._hot.border)
        self._found.check("state", "maxPhyOffset", state["maxPhyOffset"], self._hot.log.end)
        if state["earliestMessageTime"] is not None:  # RocketMQ 5.4.0 throws if that message has an IPv6 host
            first = self._hot.first_store_ms(self._hot.log.segments()[0])
            self._found.check("state", "earliestMessageTime", state["earliestMessageTime"], first)
        self._found.check("blank records", "all", self._wanted["blanks"], self._blanks)
        self._found.compared["blank records"] += len(self._blanks) - 1

    def messages(self) -> None:
        offsets = [message["physicalOffset"] for message in self._wanted["messages"]]
        self._found.check("state", "offsets of all messages", offsets, list(self._records))
        for message in self._wanted["messages"]:
            if message["physicalOffset"] in self._records:
                record, raw = self._records[message["physicalOffset"]]
                ours = _message(record, raw)
                assert encode_record(record) == raw
                theirs = {**message, "properties": message["properties"] or {}}
                self._found.check("messages", message["physicalOffset"], theirs, {name: ours[name] for name in theirs})
                if record.has_queue_unit:
                    by_id = self._fetcher.message(message["msgId"]).record
                    self._found.check("messages by id", message["msgId"], record, by_id)

    # queues

    def _queue(self, snapshot: HotSnapshot, topic: str, queue_id: int) -> SnapshotQueue | None:
        found = self._hot.topics.find(topic)
        return None if found is None else shown_queue(self._hot, snapshot, found, queue_id)

    def queues(self) -> None:
        listed = set()
        with self._hot.snapshot() as snapshot:
            for queue in self._wanted["queues"]:
                name = queue["topic"], queue["queueId"]
                listed.add(name)
                edges = queue["minOffset"], queue["maxOffset"]
                self._found.check("queues", name, edges, self._fetcher.offsets(*name))
                shown = self._queue(snapshot, *name)
                units = [] if shown is None else shown.units(shown.first, shown.next).tolist()
                for place in range(max(len(units), len(queue["entries"]))):
                    theirs = tuple(queue["entries"][place]) if place < len(queue["entries"]) else None
                    ours = units[place] if place < len(units) else None
                    self._found.check("queue entries", (*name, place), theirs, ours)
                last = units[-1][0] + units[-1][1] if units else -1
                self._found.check("queues", (*name, "maxPhysicOffset"), queue["maxPhysicOffset"], last)
        written = {
            (topic.name, queue_id)
            for topic in self._hot.topics.all()
            for queue_id in range(topic.queues)
            if self._fetcher.offsets(topic.name, queue_id)[1]
        }
        self._found.check("state", "which queues have messages", listed, written)

    def get_message(self) -> None:
        for asked in self._wanted["getMessage"]:
            what = tuple(asked[name] for name in ("topic", "queueId", "offset", "maxNums", "tags"))
            theirs = tuple(asked[name] for name in ("nextBeginOffset", "minOffset", "maxOffset", "physicalOffsets"))
            if asked["status"] == "NO_MESSAGE_IN_QUEUE":  # ours: no such topic
                self._found.check("getMessage", what, None, self._hot.topics.find(asked["topic"]))
                continue
            status, *ours = self._pull(asked)
            self._found.check("getMessage", what, (_STATUS[asked["status"]], *theirs), (status, *ours))

    def _pull(self, asked: Json) -> tuple[PullStatus, int, int, int, list[int]]:
        """A pull with RocketMQ's limits, which reads one queue file a call."""
        file_units = self._wanted["settings"]["mappedFileSizeConsumeQueue"] // UNIT_BYTES
        file_end = max(0, asked["offset"]) // file_units * file_units + file_units
        limit = min(asked["maxNums"], _MOST_MESSAGES)
        answer = self._fetcher.pull(asked["topic"], asked["queueId"], asked["offset"], limit, asked["tags"])
        next_offset = answer.next_offset
        if answer.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE):
            next_offset = min(next_offset, file_end)
        taken: list[Record] = []
        for message in answer.messages:
            if message.record.queue_offset >= file_end:
                break
            if sum(each.size for each in taken) + message.record.size > _MOST_BYTES:
                next_offset = taken[-1].queue_offset + 1
                break
            taken.append(message.record)
        offsets = [each.physical_offset for each in taken]
        passing = TagFilter.parse(asked["tags"])
        with self._fetcher.pull_records(
            asked["topic"], asked["queueId"], asked["offset"], limit, max_bytes=_MOST_BYTES,
            tag_hashes=None if passing is None else passing.hashes,
        ) as pulled:  # fmt: skip
            assert [each for each in records_in(pulled.parts) if each.queue_offset < file_end] == taken
        return answer.status, next_offset, answer.min_offset, answer.max_offset, offsets

    def offset_by_time(self) -> None:
        with self._hot.snapshot() as snapshot:
            for asked in self._wanted["offsetByTime"]:
                what = tuple(asked[name] for name in ("topic", "queueId", "timestamp", "boundary"))
                queue = self._queue(snapshot, asked["topic"], asked["queueId"])
                boundary = Boundary[asked["boundary"]]
                ours = None if queue is None else offset_by_time(queue, asked["timestamp"], boundary)
                self._found.check("offsetByTime", what, asked["offset"], ours)

    # looking up

    def query_message(self) -> None:
        """RocketMQ's index keeps seconds, mixes up keys of one hash, and loses its last file in a crash.

        So of what it answered that truly is of the key and in the time range, everything must be in our answer, and
        nothing may be missing from its answer where it neither met its limit nor asked less than all of the index.
        """
        for asked in self._wanted["queryMessage"]:
            if asked["indexType"] is not None:
                self._found.left_out["queryMessage by tag"] += 1
                continue
            what = tuple(asked[name] for name in ("topic", "key", "maxNum", "begin", "end"))
            to_ms = min(asked["end"] + 1, END_OF_TIME_MS)
            if asked["begin"] >= to_ms:
                self._found.left_out["queryMessage with an empty range"] += 1
                continue
            ours = self._query(asked["topic"], asked["key"], asked["begin"], to_ms)
            theirs = {
                offset
                for offset in asked["physicalOffsets"]
                if self._fits(offset, asked["topic"], asked["key"], asked["begin"], to_ms)
            }
            self._found.check("queryMessage", what, set(), theirs - ours)
            is_whole = asked["begin"] == 0 and len(asked["physicalOffsets"]) < min(asked["maxNum"], _MOST_INDEXED)
            if is_whole and self._wanted["abortBefore"] is False:
                self._found.check("whole answers of queryMessage", what, theirs, ours)
            whole = {
                offset
                for offset in self._records
                if self._fits(offset, asked["topic"], asked["key"], asked["begin"], to_ms)
            }
            self._found.check("queries against the log itself", what, whole, ours)

    def _query(self, topic: str, key: str, from_ms: int, to_ms: int) -> set[int]:
        if self._hot.topics.find(topic) is None:
            return set()
        answer = search([self._search], Query(topic, key, from_ms, to_ms, limit=10_000))
        assert answer.coverage.complete
        offsets = [message.record.physical_offset for message in answer.messages]
        assert len(offsets) == len(set(offsets))
        assert offsets == sorted(offsets, reverse=True)
        return set(offsets)

    def _fits(self, offset: int, topic: str, key: str, from_ms: int, to_ms: int) -> bool:
        record, _ = self._records.get(offset, (None, b""))
        if record is None or record.topic != topic or not from_ms <= record.store_ms < to_ms:
            return False
        return record.sys_flag & 0xC != 0xC and key in indexed_keys(record.properties)

    def look_message(self) -> None:
        with self._hot.snapshot() as snapshot:
            for asked in self._wanted["lookMessageByOffset"]:
                ours = _message_id(snapshot, asked["offset"])
                self._found.check("lookMessageByOffset", asked["offset"], asked["msgId"], ours)


def _message_id(snapshot: HotSnapshot, offset: int) -> str | None:
    try:
        return snapshot.record(offset).message_id if offset < snapshot.end else None
    except (StoreError, KeyError):
        return None


def _message(record: Record, raw: bytes) -> Json:
    body = record.body
    return {
        "physicalOffset": record.physical_offset,
        "size": record.size,
        "version": int(record.version),
        "bodyCrc": record.body_crc,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_ms,
        "bornHost": _host(record.born_host),
        "storeTimestamp": record.store_ms,
        "storeHost": _host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_offset,
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "bodyHex": body.hex(),
        "properties": record.properties,
        "msgId": record.message_id,
        "recordSha256": hashlib.sha256(raw).hexdigest(),
    }


def _host(data: bytes) -> str:
    port = int.from_bytes(data[-4:], signed=True)
    if len(data) == 8:
        return f"{ipaddress.IPv4Address(data[:4])}:{port}"
    groups = (f"{int.from_bytes(data[at : at + 2]):x}" for at in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"
