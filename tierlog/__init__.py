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
:class:`PullResult`         a stretch of a queue in order
:class:`PulledBatch`        the same as an Arrow record batch
:class:`Boundary`           the side of a time on which an offset is looked up
:class:`Settings`           all settings; ``Settings.load()`` reads a file and the environment
:mod:`errors`               every error, by what to do about it; all are :class:`errors.StoreError`
=========================== ==========================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tierlog import client as client
    from tierlog import errors
    from tierlog.index.search.query import Answer, Coverage, Query
    from tierlog.service.archive.archive import Archive
    from tierlog.service.archive.querier import Querier
    from tierlog.service.config.settings import Settings
    from tierlog.service.engine.appends import IdempotencyKey
    from tierlog.service.engine.producers import AsyncProducer, Producer
    from tierlog.service.engine.store import Store
    from tierlog.tiering.base.types import Boundary, Durability, Order, TimeAxis
    from tierlog.tiering.message.batch import Message
    from tierlog.tiering.message.stored_message import StoredMessage
    from tierlog.tiering.read.pull_batch import PulledBatch
    from tierlog.tiering.read.pull_result import PullResult

__all__ = [
    "Answer",
    "Archive",
    "AsyncProducer",
    "Boundary",
    "Coverage",
    "Durability",
    "IdempotencyKey",
    "Message",
    "Order",
    "Producer",
    "PullResult",
    "PulledBatch",
    "Querier",
    "Query",
    "Settings",
    "Store",
    "StoredMessage",
    "TimeAxis",
    "errors",
]

#: Where each name lies. Importing this package loads nothing: :mod:`tierlog.client`, executors of Spark and the health
#: check of a container come through it, and need no engine.
_HOMES = {
    "Answer": "tierlog.index.search.query",
    "Archive": "tierlog.service.archive.archive",
    "AsyncProducer": "tierlog.service.engine.producers",
    "Boundary": "tierlog.tiering.base.types",
    "Coverage": "tierlog.index.search.query",
    "Durability": "tierlog.tiering.base.types",
    "IdempotencyKey": "tierlog.service.engine.appends",
    "Message": "tierlog.tiering.message.batch",
    "Order": "tierlog.tiering.base.types",
    "Producer": "tierlog.service.engine.producers",
    "PullResult": "tierlog.tiering.read.pull_result",
    "PulledBatch": "tierlog.tiering.read.pull_batch",
    "Querier": "tierlog.service.archive.querier",
    "Query": "tierlog.index.search.query",
    "Settings": "tierlog.service.config.settings",
    "Store": "tierlog.service.engine.store",
    "StoredMessage": "tierlog.tiering.message.stored_message",
    "TimeAxis": "tierlog.tiering.base.types",
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
