"""The protocols of whatever holds messages: a store, archives, a querier of many stores, one archive below it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from tierlog.index.maintenance.repair import RepairReport
from tierlog.index.search.counts import CountQuery, IntervalCounts
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.service.access.caller import every_topic
from tierlog.service.cluster.fan_out import StoresAsked
from tierlog.service.cluster.routing import TopicFinder
from tierlog.service.engine.catalogue import FileInfo, TopicInfo
from tierlog.service.engine.stats import ReadinessProblem
from tierlog.service.engine.store import Store
from tierlog.service.observing.counts import StoreCounts
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.telemetry import Tracer
from tierlog.tiering.base.types import Boundary
from tierlog.tiering.checks.findings import Findings
from tierlog.tiering.message.stored_message import StoredMessage
from tierlog.tiering.read.pull_batch import Columns, PulledBatch
from tierlog.tiering.read.pull_records import RECORD_BYTES, PulledRecords
from tierlog.tiering.read.pull_result import PullResult


class MessageReader(Protocol):
    """The reading part that a store, archives and a querier have in common. Thread safe."""

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Finds messages by key or time; a page is about ``page_bytes`` at most."""
        ...

    def counts(self, query: CountQuery) -> IntervalCounts:
        """Counts messages per interval of time, without reading them."""
        ...

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Lists topics with their queues, without those that ``shows`` denies."""
        ...

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic; raises :class:`TopicNotFoundError`."""
        ...

    def files(self) -> list[FileInfo]:
        """Lists segments and index files."""
        ...

    def stats(self) -> dict[str, object]:
        """Returns sizes, watermarks and lags by name."""
        ...


class StoreReader(MessageReader, Protocol):
    """The reading part of a store, and of archives of which each call means one: queues, checks, repairs."""

    def message(self, message_id: str, store_id: str | None = None) -> StoredMessage:
        """Returns one message by its id; raises :class:`MessageNotFoundError`."""
        ...

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None, *, backward: bool = False
    ) -> PullResult:
        """Reads a queue in order, or below an offset from its last message back."""
        ...

    def pull_batch(self, topic: str, queue_id: int, offset: int, limit: int, columns: Columns = None) -> PulledBatch:
        """Reads a queue in order as Arrow."""
        ...

    def pull_records(
        self, topic: str, queue_id: int, offset: int, limit: int, *, max_bytes: int = RECORD_BYTES,
        tag_hashes: frozenset[int] | None = None,
    ) -> AbstractContextManager[PulledRecords]:  # fmt: skip
        """Reads a queue in order without decoding its records."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Finds the offset of a store time in a queue."""
        ...

    def check(self, *, deep: bool = False) -> list[str]:
        """Verifies what must hold; a line a finding."""
        ...

    def check_report(self, *, deep: bool = False, progress: Progress | None = None) -> Findings:
        """Runs the same checks; names the object of each finding. ``deep`` reads every archived byte."""
        ...

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
        """Restores what can be derived."""
        ...


class Served(MessageReader, Protocol):
    """The source of a process's answers: one open store, or a querier of many."""

    counted: StoreCounts
    """Counts since it was opened."""
    tracer: Tracer
    """Follows what is done for single requests."""

    @property
    def store_id(self) -> str | None:
        """The id of the one store; None of a querier."""
        ...

    @property
    def own_store(self) -> Store | None:
        """The one store; None of a querier."""
        ...

    @property
    def fan_out(self) -> StoresAsked | None:
        """The fan-out to the services of many stores; None of a store."""
        ...

    @property
    def finder(self) -> TopicFinder | None:
        """The finder of the stores of a topic; None of a store, which knows its own."""
        ...

    @property
    def cold_error(self) -> str | None:
        """The reason why the archive cannot be reached; None if all is well."""
        ...

    @property
    def index_error(self) -> str | None:
        """The reason why the index does not follow the log; None if all is well."""
        ...

    @property
    def damage(self) -> str | None:
        """What of the log is known to be damaged; None if nothing is."""
        ...

    @property
    def readiness_problem(self) -> ReadinessProblem | None:
        """The reason why the process cannot do its work at the moment; None if it can."""
        ...

    def reader_of(self, store_id: str) -> MessageReader:
        """Returns the reader of one store, which is there or has an archive and no service."""
        ...

    def shown_message(
        self, message_id: str, show: Callable[[StoredMessage], Json], store_id: str | None = None
    ) -> Json:
        """Returns one message by its id as ``show`` makes it; a querier returns the JSON it got from the store."""
        ...
