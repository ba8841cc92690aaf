"""Apache RocketMQ's own classes in a process beside the tests: what they find in a directory, as plain values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.java_programs import java_program
from tests.tools.line_programs import LineProgram
from tierlog.service.config.settings import Settings

_ANSWER_LIMIT_S = 180.0
#: Topic, key, most results, first and last store time in ms.
KeyQuery = tuple[str, str, int, int, int]
#: The same with RocketMQ's index type: ``K`` finds keys, ``U`` unique keys, ``T`` tags.
StoreQuery = tuple[str, str, int, int, int, str]


@dataclass(frozen=True)
class JavaMessage:
    """One record as RocketMQ decodes it."""

    physical_offset: int
    size: int
    version: int
    topic: str
    queue_id: int
    queue_offset: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    body_sha256: str
    properties: Mapping[str, str]
    message_id: str
    tags_code: int


@dataclass(frozen=True)
class JavaQueue:
    """One consume queue: its units (physical offset, size, tags code), and the physical offsets that pulling gives."""

    min_offset: int
    max_offset: int
    units: list[tuple[int, int, int]]
    pulled: list[int]


@dataclass(frozen=True)
class JavaStore:
    """Everything RocketMQ found; ``appended`` has (physical offset, queue offset, store ms) of each message."""

    min_physical_offset: int
    max_physical_offset: int
    messages: list[JavaMessage]
    blanks: list[tuple[int, int]]
    queues: dict[tuple[str, int], JavaQueue]
    queries: list[list[int]]
    appended: list[tuple[int, int, int]]


@dataclass(frozen=True)
class StoreJob:
    """Open a store in place, read it, put the messages of ``append`` behind it, stop cleanly."""

    root: Path
    segment_bytes: int
    queue_file_units: int
    record_checksum: bool
    index_slots: int
    index_items: int
    index_safe: bool = False
    """Whether recovery starts low enough to index again what is in no complete index file."""
    queries: Sequence[StoreQuery] = ()
    append: Sequence[Mapping[str, object]] = ()
    killed_copy: Path | None = None
    """Where the directory is copied to before the clean stop."""

    @classmethod
    def of(cls, root: Path, settings: Settings) -> StoreJob:
        """With the sizes of a store of ours."""
        hot, index = settings.hot, settings.index
        assert hot.segment_bytes is not None
        assert hot.queue_file_units is not None
        return cls(
            root, hot.segment_bytes, hot.queue_file_units, hot.record_checksum,
            index.classic_slots if index.classic else 100, index.classic_items if index.classic else 400,
            index_safe=index.classic,
        )  # fmt: skip


class JavaRocketMQ:
    """A running ``tierlog.verify.Main``. Answers come in the order of the questions."""

    def __init__(self, program: LineProgram) -> None:
        self._program = program

    def stores(self, jobs: Sequence[StoreJob]) -> list[JavaStore]:
        """Open all of them side by side. A store that RocketMQ refuses fails the test that asked."""
        requests = [
            {
                "kind": "store",
                "root": str(job.root),
                "segmentBytes": job.segment_bytes,
                "queueFileBytes": job.queue_file_units * 20,
                "indexSlots": job.index_slots,
                "indexItems": job.index_items,
                "indexSafe": job.index_safe,
                "recordChecksum": job.record_checksum,
                "queries": job.queries,
                "append": job.append,
                "killedCopy": str(job.killed_copy) if job.killed_copy else None,
            }
            for job in jobs
        ]
        return [_store(answer) for answer in self._ask(requests)]

    def compacted_index(
        self, file: Path, work: Path, *, slots: int, items: int, queries: Sequence[KeyQuery]
    ) -> list[list[tuple[int, ...]]]:
        """For each query (hash, topic id, queue id, offset, size, seconds) of what it finds."""
        request = {
            "kind": "compactedIndex",
            "file": str(file),
            "work": str(work),
            "slots": slots,
            "items": items,
            "queries": queries,
        }
        return [[tuple(item) for item in found] for found in self._ask([request])[0]["queries"]]

    def _ask(self, requests: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = json.loads(self._program.ask(json.dumps(requests), limit_s=_ANSWER_LIMIT_S))
        for request, answer in zip(requests, answers, strict=True):
            if "error" in answer:
                raise AssertionError(f"RocketMQ failed on {request}:\n{answer['error']}\n{self._program.end_of_log()}")
        return answers


@contextmanager
def java_rocketmq(class_path: str, work: Path) -> Iterator[JavaRocketMQ]:
    """Run the process; the libraries' logs and temporary files lie in ``work``."""
    with java_program(class_path, "tierlog.verify.Main", work) as program:
        yield JavaRocketMQ(program)


def _store(answer: dict[str, Any]) -> JavaStore:
    return JavaStore(
        answer["minPhysicalOffset"],
        answer["maxPhysicalOffset"],
        [_message(message) for message in answer["messages"]],
        [(offset, size) for offset, size in answer["blanks"]],
        {(queue["topic"], queue["queueId"]): _queue(queue) for queue in answer["queues"]},
        answer["queries"],
        [(offset, queue_offset, ms) for offset, queue_offset, ms in answer["appended"]],
    )


def _message(message: dict[str, Any]) -> JavaMessage:
    return JavaMessage(
        message["physicalOffset"], message["size"], message["version"], message["topic"], message["queueId"],
        message["queueOffset"], message["bornMs"], message["bornHost"], message["storeMs"], message["storeHost"],
        message["bodySha256"], message["properties"] or {}, message["messageId"], message["tagsCode"],
    )  # fmt: skip


def _queue(queue: dict[str, Any]) -> JavaQueue:
    units = [(offset, size, code) for offset, size, code in queue["units"]]
    return JavaQueue(queue["minOffset"], queue["maxOffset"], units, queue["pulled"])
