"""The metrics of a store and its service for Prometheus: :meth:`Store.stats`, and what was counted on the way.

Read at each scrape, which asks nothing of the archive. What there is, and what it means: ``metric_families``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tierlog.service.archive.readers import Served
from tierlog.service.cluster.fan_out import StoresAsked
from tierlog.service.cluster.table_view import TableView
from tierlog.service.cluster.view import ClusterView
from tierlog.service.delivery.deliveries import Deliveries
from tierlog.service.engine.store import Store
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState
from tierlog.service.observing.counts import DoorCounts, DoorNumbers, HttpCounts, ObservedDoor, StoreCounts
from tierlog.service.observing.metric_families import FAMILIES
from tierlog.service.server.connections import Connections
from tierlog.tiering.base.telemetry import HistogramReading, Labels

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASON_LENGTH = 200
_FILTERS = {
    "false_positives": "tierlog_filter_false_positives",
    "fetched": "tierlog_filter_fetches",
    "fetched_bytes": "tierlog_filter_fetched_bytes",
    "failures": "tierlog_filter_failures",
}


def _metric(name: str, values: Mapping[Labels, float]) -> Metric:
    """Makes a gauge or counter with a series for each combination of labels."""
    family = FAMILIES[name]
    metric: GaugeMetricFamily | CounterMetricFamily
    if family.kind == "gauge":
        metric = GaugeMetricFamily(name, family.help, labels=family.labels)
    else:
        metric = CounterMetricFamily(name, family.help, labels=family.labels)
    for labels, value in sorted(values.items()):
        metric.add_metric(labels, value)
    return metric


def _one(name: str, value: float) -> Metric:
    return _metric(name, {(): value})


def _histogram(name: str, readings: Mapping[Labels, HistogramReading]) -> Metric:
    family = FAMILIES[name]
    metric = HistogramMetricFamily(name, family.help, labels=family.labels)
    for labels, reading in sorted(readings.items()):
        bounds = [*(str(float(bound)) for bound in reading.bounds), "+Inf"]
        metric.add_metric(labels, list(zip(bounds, reading.cumulative, strict=True)), reading.total)
    return metric


class StoreCollector(Collector):
    """The metrics of one open store. What the store does not know, such as an archive's, is left out."""

    def __init__(self, engine: Store, max_groups: int) -> None:
        self._engine = engine
        self._max_groups = max_groups

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers at one moment."""
        engine, stats, counted = self._engine, self._engine.stats(), self._engine.counted
        for family in FAMILIES.values():
            value = stats[family.stat] if family.stat is not None else None
            if isinstance(value, int):
                yield _one(family.name, value / family.divisor)
        yield _histogram("tierlog_append_seconds", counted.append_seconds.reading())
        yield _metric("tierlog_acknowledged_messages", counted.messages.reading())
        yield _histogram("tierlog_flush_seconds", {(): counted.flush_seconds.reading()})
        yield from _queries(counted)
        files = engine.file_counts()
        yield _metric("tierlog_files", {tuple(place): total.count for place, total in files.items()})
        yield _metric("tierlog_files_bytes", {tuple(place): total.bytes for place, total in files.items()})
        if engine.cold_url is not None:
            yield from _archive(counted)
            yield from _caches(stats["cache"])
        yield from self._states()
        yield from self._groups()

    def _states(self) -> Iterator[Metric]:
        """Yields states. Only read-only has its reason as a label, as it is for good: each new label makes a series."""
        engine = self._engine
        reason = engine.read_only_reason
        yield _metric("tierlog_read_only", {((reason or "")[:_REASON_LENGTH],): int(reason is not None)})
        yield _one("tierlog_fenced", int(engine.is_fenced))
        yield _one("tierlog_disk_full", int(engine.disk_full_reason is not None))
        yield _one("tierlog_index_failing", int(engine.index_error is not None))
        yield _one("tierlog_archive_failing", int(engine.cold_error is not None))

    def _groups(self) -> Iterator[Metric]:
        yield _one("tierlog_groups", len(self._engine.groups.all_committed()))
        lags = self._engine.group_lags(self._max_groups)
        yield _metric("tierlog_group_lag_messages", {(name,): lag for name, lag in lags.items()})


class DeliveryCollector(Collector):
    """What was delivered to groups one by one."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers at one moment."""
        counted = self._deliveries.counted()
        yield _metric("tierlog_deliveries", {("first",): counted.first, ("again",): counted.again})
        yield _one("tierlog_dead_letters", counted.dead_letters)
        yield _one("tierlog_open_messages", counted.open)


class QuerierCollector(Collector):
    """The metrics of a querier."""

    def __init__(self, engine: Served, fan_out: StoresAsked) -> None:
        self._engine, self._fan_out = engine, fan_out

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers at one moment."""
        engine, fan_out = self._engine, self._fan_out
        yield from _queries(engine.counted)
        yield from _archive(engine.counted)
        yield _one("tierlog_archive_failing", int(engine.cold_error is not None))
        yield _histogram("tierlog_store_ask_seconds", {(): fan_out.seconds.reading()})
        yield _one("tierlog_silent_stores", fan_out.silent)


def _queries(counted: StoreCounts) -> Iterator[Metric]:
    yield _metric("tierlog_queries", counted.queries.reading())
    yield _histogram("tierlog_query_seconds", counted.query_seconds.reading())
    yield _histogram("tierlog_query_requests", {(): counted.query_requests.reading()})
    yield _one("tierlog_query_cost_usd", sum(counted.query_usd.reading().values()))


def _archive(counted: StoreCounts) -> Iterator[Metric]:
    yield _metric("tierlog_archive_calls", counted.archive.calls.reading())
    yield _metric("tierlog_archive_cost_usd", counted.archive.usd.reading())
    yield _histogram("tierlog_archive_call_seconds", counted.archive.seconds.reading())


class HttpCollector(Collector):
    """The metrics of requests."""

    def __init__(self, counts: HttpCounts, connections: Connections, answer_bytes: Callable[[], int]) -> None:
        self._counts = counts
        self._connections = connections
        self._answer_bytes = answer_bytes

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers."""
        counts = self._counts
        moved = counts.bytes.reading()
        yield _metric("tierlog_http_requests", counts.requests.reading())
        yield _histogram("tierlog_http_request_seconds", counts.seconds.reading())
        yield _one("tierlog_http_requests_in_flight", counts.in_flight)
        yield _one("tierlog_http_received_bytes", moved.get(("received",), 0))
        yield _one("tierlog_http_sent_bytes", moved.get(("sent",), 0))
        yield _metric("tierlog_http_refused_requests", counts.refused.reading())
        yield _one("tierlog_http_answer_bytes", self._answer_bytes())
        yield _one("tierlog_http_connections", self._connections.open)
        yield _one("tierlog_http_connections_limit", self._connections.most)
        yield _metric("tierlog_http_refused_connections", self._connections.refused.reading())
        yield _metric("tierlog_build_info", {(_version(), platform.python_version()): 1})


class DoorCollector(Collector):
    """The metrics of the doors for RocketMQ's clients that are open."""

    def __init__(self, doors: Callable[[], Sequence[ObservedDoor]]) -> None:
        self._doors = doors

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers."""
        found = [(one.counts, one.numbers()) for one in self._doors()]
        if not found:
            return

        def sums(tally: Callable[[DoorCounts], Mapping[Labels, float]]) -> dict[Labels, float]:
            return {(one.door, *labels): value for one, _ in found for labels, value in tally(one).items()}

        def now(number: Callable[[DoorNumbers], int]) -> dict[Labels, float]:
            return {(one.door,): number(numbers) for one, numbers in found}

        moved = sums(lambda one: one.bytes.reading())
        yield _metric("tierlog_rocketmq_requests", sums(lambda one: one.requests.reading()))
        yield _histogram(
            "tierlog_rocketmq_request_seconds",
            {(one.door, *labels): value for one, _ in found for labels, value in one.seconds.reading().items()},
        )
        for direction in ("received", "sent"):
            values: dict[Labels, float] = {(one.door,): moved[one.door, direction] for one, _ in found}
            yield _metric(f"tierlog_rocketmq_{direction}_bytes", values)
        connections: dict[Labels, float] = {
            (one.door,): numbers.connections for one, numbers in found if numbers.connections is not None
        }
        yield _metric("tierlog_rocketmq_connections", connections)
        refused: dict[Labels, float] = {
            (one.door, reason): value for one, numbers in found for reason, value in (numbers.refused or {}).items()
        }
        yield _metric("tierlog_rocketmq_refused_connections", refused)
        yield _metric("tierlog_rocketmq_clients", now(lambda numbers: numbers.clients))
        members: dict[Labels, float] = {(one.door, "consumer"): numbers.consumers for one, numbers in found}
        members |= {(one.door, "producer"): numbers.producers for one, numbers in found}
        yield _metric("tierlog_rocketmq_members", members)
        yield _metric("tierlog_rocketmq_groups", now(lambda numbers: numbers.groups))
        yield _metric("tierlog_rocketmq_waiting_requests", now(lambda numbers: numbers.waiting))


class FollowCollector(Collector):
    """The metrics of brokers that this process follows; none where it follows none."""

    def __init__(self, followed: Callable[[], Sequence[FollowedBroker]]) -> None:
        self._followed = followed

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers."""
        brokers = self._followed()
        if not brokers:
            return

        def each(number: Callable[[FollowedBroker], float | None]) -> dict[Labels, float]:
            found = {(broker.name,): number(broker) for broker in brokers}
            return {labels: value for labels, value in found.items() if value is not None}

        yield _metric("tierlog_follow_lag_bytes", each(lambda broker: broker.lag_bytes))
        yield _metric("tierlog_follow_lag_seconds", each(lambda broker: broker.lag_ms / 1000))
        yield _metric(
            "tierlog_follow_margin_seconds",
            each(lambda broker: None if broker.margin_ms is None else broker.margin_ms / 1000),
        )
        yield _metric("tierlog_follow_gap_bytes", each(lambda broker: broker.gap_bytes))
        yield _metric(
            "tierlog_follow_gap_timestamp_seconds",
            each(lambda broker: None if broker.gap_declared_ms is None else broker.gap_declared_ms / 1000),
        )
        states: dict[Labels, float] = {
            (broker.name, state.value): int(state is broker.state) for broker in brokers for state in FollowState
        }
        yield _metric("tierlog_follow_state", states)


class ClusterCollector(Collector):
    """The metrics of what a process knows of its cluster; none where it is alone."""

    def __init__(self, cluster: ClusterView | None) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """Reads all numbers."""
        cluster = self._cluster
        if cluster is None:
            return
        yield _one("tierlog_cluster_stores", len(cluster.stores()))
        if isinstance(cluster, TableView):
            yield _one("tierlog_cluster_table_age_seconds", cluster.silence_s)
            if cluster.own_store is not None:
                yield _one("tierlog_cluster_entered", int(cluster.is_entered))


def _caches(layers: object) -> Iterator[Metric]:
    """Yields counters of the archive's caches, one series a layer."""
    assert isinstance(layers, dict)
    for counter in ("hits", "misses", "evictions", "bytes"):
        yield _metric(f"tierlog_cache_{counter}", {(layer,): numbers[counter] for layer, numbers in layers.items()})
    for counter, name in _FILTERS.items():
        yield _one(name, layers["filters"][counter])


def _version() -> str:
    try:
        return version("tierlog")
    except PackageNotFoundError:
        return "0"


class Metrics:
    """Prometheus text of one open store and of the service in front of it; of a gateway, which has none, without it."""

    def __init__(
        self,
        engine: Served | None,
        http: HttpCounts | None = None,
        connections: Connections | None = None,
        answer_bytes: Callable[[], int] = lambda: 0,
        *,
        max_groups: int = 100,
        cluster: ClusterView | None = None,
        deliveries: Deliveries | None = None,
        doors: Callable[[], Sequence[ObservedDoor]] = tuple,
        followed: Callable[[], Sequence[FollowedBroker]] = tuple,
    ) -> None:
        self._whole, self._nameless = CollectorRegistry(), CollectorRegistry()
        http_collector = HttpCollector(http or HttpCounts(), connections or Connections(0), answer_bytes)
        for registry, most in ((self._whole, max_groups), (self._nameless, 0)):
            if engine is not None and engine.own_store is not None:
                registry.register(StoreCollector(engine.own_store, most))
            if deliveries is not None:
                registry.register(DeliveryCollector(deliveries))
            if engine is not None and engine.fan_out is not None:
                registry.register(QuerierCollector(engine, engine.fan_out))
            registry.register(http_collector)
            registry.register(ClusterCollector(cluster))
            registry.register(DoorCollector(doors))
            registry.register(FollowCollector(followed))
            ProcessCollector(registry=registry)

    def text(self, *, with_groups: bool = True) -> bytes:
        """Writes the exposition format, version 0.0.4; without groups for whom their names are not meant."""
        return generate_latest(self._whole if with_groups else self._nameless)
