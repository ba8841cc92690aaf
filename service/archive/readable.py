"""What can be asked of whatever holds messages: a store, archives, a querier of many stores, one archive below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tierlog.index.maintenance.repair import RepairReport
from tierlog.index.search.query import Answer, Query
from tierlog.index.search.results import PAGE_BYTES
from tierlog.service.access.caller import every_topic
from tierlog.service.cluster.fan_out import StoreFanOut
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
from tierlog.tiering.read.pull_result import PullResult


class Readable(Protocol):
    """Whatever answers queries and lists what it has. Thread safe."""

    def query(self, query: Query, *, page_bytes: int = PAGE_BYTES) -> Answer:
        """Finds messages by key or time; a page is about ``page_bytes`` at most."""
        ...

    def topics(self, shows: Callable[[str], bool] = every_topic) -> list[TopicInfo]:
        """Lists topics with their queues, without those that ``shows`` denies."""
        ...

    def topic(self, name: str) -> TopicInfo:
        """Returns one topic; :class:`TopicNotFoundError`."""
        ...

    def files(self) -> list[FileInfo]:
        """Lists segments and index files."""
        ...

    def stats(self) -> dict[str, object]:
        """Returns sizes, watermarks and lags by name."""
        ...


class ReadableStore(Readable, Protocol):
    """A store, or archives of which each call means one: queues in order, checks and repairs too."""

    def pull(self, topic: str, queue_id: int, offset: int, limit: int, tag: str | None = None) -> PullResult:
        """Reads a queue in order."""
        ...

    def pull_batch(self, topic: str, queue_id: int, offset: int, limit: int, columns: Columns = None) -> PulledBatch:
        """Reads a queue in order as Arrow."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary) -> int:
        """Finds the offset of a store time in a queue."""
        ...

    def check(self, *, deep: bool = False) -> list[str]:
        """Verifies what must hold; a line a finding."""
        ...

    def check_report(self, *, deep: bool = False, progress: Progress | None = None) -> Findings:
        """Verifies the same; with the object that each finding is about. ``deep`` reads every archived byte."""
        ...

    def repair(self, *, dry_run: bool = False, progress: Progress | None = None) -> RepairReport:
        """Restores what can be derived."""
        ...


class Served(Readable, Protocol):
    """What a process serves: one open store, or a querier of many."""

    counted: StoreCounts
    """What was counted since it was opened."""
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
    def fan_out(self) -> StoreFanOut | None:
        """The fan-out to the services of many stores; None of a store."""
        ...

    @property
    def finder(self) -> TopicFinder | None:
        """The finder of the stores of a topic; None of a store, which knows its own."""
        ...

    @property
    def cold_error(self) -> str | None:
        """Why the archive cannot be reached; None if all is well."""
        ...

    @property
    def index_error(self) -> str | None:
        """Why the index does not follow the log; None if all is well."""
        ...

    @property
    def readiness_problem(self) -> ReadinessProblem | None:
        """Why the process can do nothing of what it is for at the moment; None if it can."""
        ...

    def reader_of(self, store_id: str) -> Readable:
        """Returns the reader of one store, which is there or has an archive and no service."""
        ...

    def message(self, message_id: str, store_id: str | None = None) -> StoredMessage | Json:
        """Returns one message by its id; a querier as the store that has it told it."""
        ...
