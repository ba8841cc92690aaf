"""tierlog as a library: a message log in two tiers, whose archive on object storage is searched by key and by time.

This page is the whole public API of a process that holds a store or reads an archive. :mod:`tierlog.client` is that of
programs which ask a running service, :mod:`tierlog.pipeline.source` that of Spark. Whatever else lies below this
package may change with any version::

    from tierlog import Message, Query, Store

    with Store.open("orders") as store:
        store.append([Message("orders", b"paid", keys=["4711"])])
        answer = store.query(Query("orders", key="4711"))
        assert answer.coverage.complete

=========================== ==========================================================================================
:class:`Store`              one open store: append, pull, query, archive, erase, check
:class:`Producer`           messages one by one into an open store, appended many at a time; for threads
:class:`AsyncProducer`      the same for an event loop
:class:`Archive`            archives of stores, read where they lie, with no service and no store beside them
:class:`Querier`            many stores at once: their archives, and what their services tell is hot
:class:`Message`            what is appended
:class:`IdempotencyKey`     makes an append that is repeated the same append
:class:`Durability`         what an acknowledged append survives
:class:`Query`              what is asked, with :class:`Order` and :class:`TimeAxis`
:class:`Answer`             messages found; its :class:`Coverage` says exactly what was searched, and at what cost
:class:`StoredMessage`      a message as it is read
:class:`CountQuery`         asks for numbers of messages per interval of time; :class:`IntervalCounts` has them
:class:`PullResult`         a stretch of a queue in order
:class:`PulledBatch`        the same as an Arrow record batch
:class:`PulledRecords`      the same as records that lie one behind the other, as the log has them
:class:`Boundary`           the side of a time on which an offset is looked up
:class:`Settings`           all settings; ``Settings.load()`` reads a file and the environment
:mod:`errors`               every error, by what to do about it; all are :class:`errors.StoreError`
=========================== ==========================================================================================

What their methods return, and what a reader may be declared as:

=========================== ==========================================================================================
:class:`MessageReader`      the protocol of :class:`Store`, :class:`Archive` and :class:`Querier`: query and list
:class:`StoreReader`        the protocol of :class:`Store` and :class:`Archive`: queues, checks and repairs too
:class:`AppendedColumns`    the places of appended messages as columns; each row is an :class:`Appended`
:class:`PendingMessages`    messages collected one by one for an append
:class:`ClientMessages`     the same as RocketMQ's clients sent them
:class:`Record`             a stored message's fields as the log has them
:class:`PullStatus`         the outcome of a pull
:class:`Tier`               hot or cold
:class:`StoreCoverage`      the coverage of one store, with a :class:`TierCoverage` for each tier
:class:`Failure`            one thing that a query could not read
:class:`AxisHint`           a hint that a range has messages by the other time
:class:`CostEstimate`       the result of a dry run, its requests as a :class:`CostRange`
:class:`HotPage`            the hot part of a query's page
:class:`HotKeys`            look-ups of many keys in the hot tier: :class:`HotRecords`, or one :class:`HotRecord`
:class:`TopicInfo`          a topic; each of its queues is a :class:`QueueInfo`
:class:`FileInfo`           a segment or index file in one tier
:class:`Timeline`           the files as :class:`Block` along the log, for a :class:`TimelineView`
:class:`TimeRange`          a half-open range of times in ms
:class:`ArchiveReport`      the outcome of an archiving
:class:`Findings`           the result of a check; each is a :class:`Finding`
:class:`RepairReport`       the result of a repair
:class:`LogDamage`          a range of the log that could not be read, with its :class:`LostMessages`
:class:`ReadinessProblem`   the reason why a store or a querier cannot do its work
=========================== ==========================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierlog import client as client
    from tierlog import errors
    from tierlog.index.maintenance.repair import RepairReport
    from tierlog.index.search.counts import CountQuery, IntervalCounts
    from tierlog.index.search.hot_lookup import HotKeys, HotRecord, HotRecords
    from tierlog.index.search.hot_search import HotPage
    from tierlog.index.search.query import (
        Answer,
        AxisHint,
        CostEstimate,
        CostRange,
        Coverage,
        Failure,
        Query,
        StoreCoverage,
        TierCoverage,
    )
    from tierlog.service.archive.archive import Archive
    from tierlog.service.archive.querier import Querier
    from tierlog.service.archive.readers import MessageReader, StoreReader
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.append_results import Appended, AppendedColumns
    from tierlog.service.engine.appends import IdempotencyKey
    from tierlog.service.engine.archive_mover import ArchiveReport
    from tierlog.service.engine.catalogue import FileInfo, QueueInfo, TopicInfo
    from tierlog.service.engine.producers import AsyncProducer, Producer
    from tierlog.service.engine.stats import ReadinessProblem
    from tierlog.service.engine.store import Store
    from tierlog.service.engine.timeline import Block, Timeline, TimelineView
    from tierlog.tiering.base.types import Boundary, Durability, Order, PullStatus, Tier, TimeAxis, TimeRange
    from tierlog.tiering.checks.findings import Finding, Findings
    from tierlog.tiering.format.record import Record
    from tierlog.tiering.hot.damage import LogDamage, LostMessages
    from tierlog.tiering.message.batch import Message
    from tierlog.tiering.message.client_messages import ClientMessages
    from tierlog.tiering.message.pending import PendingMessages
    from tierlog.tiering.message.stored_message import StoredMessage
    from tierlog.tiering.read.pull_batch import PulledBatch
    from tierlog.tiering.read.pull_records import PulledRecords
    from tierlog.tiering.read.pull_result import PullResult

__all__ = [
    "Answer",
    "Appended",
    "AppendedColumns",
    "Archive",
    "ArchiveReport",
    "AsyncProducer",
    "AxisHint",
    "Block",
    "Boundary",
    "ClientMessages",
    "CostEstimate",
    "CostRange",
    "CountQuery",
    "Coverage",
    "Durability",
    "Failure",
    "FileInfo",
    "Finding",
    "Findings",
    "HotKeys",
    "HotPage",
    "HotRecord",
    "HotRecords",
    "IdempotencyKey",
    "IntervalCounts",
    "LogDamage",
    "LostMessages",
    "Message",
    "MessageReader",
    "Order",
    "PendingMessages",
    "Producer",
    "PullResult",
    "PullStatus",
    "PulledBatch",
    "PulledRecords",
    "Querier",
    "Query",
    "QueueInfo",
    "ReadinessProblem",
    "Record",
    "RepairReport",
    "Settings",
    "Store",
    "StoreCoverage",
    "StoreReader",
    "StoredMessage",
    "Tier",
    "TierCoverage",
    "TimeAxis",
    "TimeRange",
    "Timeline",
    "TimelineView",
    "TopicInfo",
    "errors",
]

#: Where each name lies. Importing this package loads nothing: :mod:`tierlog.client`, executors of Spark and the health
#: check of a container come through it, and need no engine.
_HOMES = {
    "Answer": "tierlog.index.search.query",
    "Appended": "tierlog.service.engine.append_results",
    "AppendedColumns": "tierlog.service.engine.append_results",
    "Archive": "tierlog.service.archive.archive",
    "ArchiveReport": "tierlog.service.engine.archive_mover",
    "AsyncProducer": "tierlog.service.engine.producers",
    "AxisHint": "tierlog.index.search.query",
    "Block": "tierlog.service.engine.timeline",
    "Boundary": "tierlog.tiering.base.types",
    "ClientMessages": "tierlog.tiering.message.client_messages",
    "CostEstimate": "tierlog.index.search.query",
    "CostRange": "tierlog.index.search.query",
    "CountQuery": "tierlog.index.search.counts",
    "Coverage": "tierlog.index.search.query",
    "Durability": "tierlog.tiering.base.types",
    "Failure": "tierlog.index.search.query",
    "FileInfo": "tierlog.service.engine.catalogue",
    "Finding": "tierlog.tiering.checks.findings",
    "Findings": "tierlog.tiering.checks.findings",
    "HotKeys": "tierlog.index.search.hot_lookup",
    "HotPage": "tierlog.index.search.hot_search",
    "HotRecord": "tierlog.index.search.hot_lookup",
    "HotRecords": "tierlog.index.search.hot_lookup",
    "IdempotencyKey": "tierlog.service.engine.appends",
    "IntervalCounts": "tierlog.index.search.counts",
    "LogDamage": "tierlog.tiering.hot.damage",
    "LostMessages": "tierlog.tiering.hot.damage",
    "Message": "tierlog.tiering.message.batch",
    "MessageReader": "tierlog.service.archive.readers",
    "Order": "tierlog.tiering.base.types",
    "PendingMessages": "tierlog.tiering.message.pending",
    "Producer": "tierlog.service.engine.producers",
    "PullResult": "tierlog.tiering.read.pull_result",
    "PullStatus": "tierlog.tiering.base.types",
    "PulledBatch": "tierlog.tiering.read.pull_batch",
    "PulledRecords": "tierlog.tiering.read.pull_records",
    "Querier": "tierlog.service.archive.querier",
    "Query": "tierlog.index.search.query",
    "QueueInfo": "tierlog.service.engine.catalogue",
    "ReadinessProblem": "tierlog.service.engine.stats",
    "Record": "tierlog.tiering.format.record",
    "RepairReport": "tierlog.index.maintenance.repair",
    "Settings": "tierlog.service.config.settings",
    "Store": "tierlog.service.engine.store",
    "StoreCoverage": "tierlog.index.search.query",
    "StoreReader": "tierlog.service.archive.readers",
    "StoredMessage": "tierlog.tiering.message.stored_message",
    "Tier": "tierlog.tiering.base.types",
    "TierCoverage": "tierlog.index.search.query",
    "TimeAxis": "tierlog.tiering.base.types",
    "TimeRange": "tierlog.tiering.base.types",
    "Timeline": "tierlog.service.engine.timeline",
    "TimelineView": "tierlog.service.engine.timeline",
    "TopicInfo": "tierlog.service.engine.catalogue",
}


def __getattr__(name: str) -> Any:
    if name in ("client", "errors"):
        found: Any = import_module(f"{__name__}.{name}")
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "client"]
