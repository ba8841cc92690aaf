"""What a store tells Prometheus: the numbers of :meth:`Engine.stats`, read at each scrape, nothing counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class _Number:
    """One metric: where :meth:`Engine.stats` has it, and what one unit of it is in the metric's."""

    stat: str
    name: str
    help: str
    divisor: int = 1


_GAUGES = (
    _Number("topics", "tierlog_topics", "Topics of the store."),
    _Number("log_begin", "tierlog_log_begin_bytes", "Physical offset of the oldest hot record."),
    _Number("log_end", "tierlog_log_end_bytes", "Physical offset at which the next record goes."),
    _Number("flushed_to", "tierlog_flushed_to_bytes", "Physical offset below which the log is durable."),
    _Number("dispatched_to", "tierlog_dispatched_to_bytes", "Physical offset below which all is derived."),
    _Number("recover_from", "tierlog_recover_from_bytes", "Physical offset at which recovery would begin."),
    _Number("archived_to", "tierlog_archived_to_bytes", "Physical offset below which every segment was archived."),
    _Number("indexed_to", "tierlog_indexed_to_bytes", "Physical offset below which the index was published."),
    _Number(
        "index_behind_bytes", "tierlog_index_behind_bytes",
        "Flushed bytes of log whose keys are in no index yet; growing where the index cannot be written.",
    ),
    _Number("index_sealed_to", "tierlog_index_sealed_to_bytes", "Physical offset below which index files are sealed."),
    _Number("index_files_waiting", "tierlog_index_files_waiting", "Index files that wait to be sealed or compacted."),
    _Number("hot_bytes", "tierlog_hot_bytes", "Bytes of log that are hot."),
    _Number("unflushed_bytes", "tierlog_unflushed_bytes", "Bytes that a crash of the machine would lose."),
    _Number("tailed_to", "tierlog_tailed_to_bytes", "Physical offset below which the bucket has the log."),
    _Number("tail_lag_bytes", "tierlog_tail_lag_bytes", "Bytes that archived appends wait for."),
    _Number("unarchived_bytes", "tierlog_unarchived_bytes", "Bytes that the loss of the volume would lose."),
    _Number("disk_free_bytes", "tierlog_disk_free_bytes", "Bytes that may still be allocated on the store's volume."),
    _Number("disk_total_bytes", "tierlog_disk_total_bytes", "Bytes allocated on the store's volume and free ones."),
    _Number("manifest_version", "tierlog_manifest_version", "Version of the manifest last seen."),
    _Number("last_store_ms", "tierlog_last_store_time_seconds", "Store time of the newest record.", 1000),
    _Number(
        "clock_behind_ms", "tierlog_clock_behind_seconds",
        "How far this machine's clock is behind the newest record; above a minute something is wrong.", 1000,
    ),
)  # fmt: skip
_COUNTERS = (
    _Number("appended_messages", "tierlog_appended_messages", "Messages appended since the store was opened."),
    _Number("appended_bytes", "tierlog_appended_bytes", "Bytes of records appended since the store was opened."),
    _Number("flushes", "tierlog_flushes", "Flushes of the log; fewer than appends where requests share one."),
    _Number("tails_written", "tierlog_tails_written", "Tails stored for archived appends, each a PUT."),
    _Number("tail_bytes_written", "tierlog_tail_written_bytes", "Bytes of log in those tails."),
    _Number("archive_requests", "tierlog_archive_requests", "Requests made to the archive."),
    _Number("archive_failures", "tierlog_archive_failures", "Requests to the archive that failed."),
    _Number("archive_bytes_read", "tierlog_archive_read_bytes", "Bytes read from the archive."),
    _Number("archive_bytes_written", "tierlog_archive_written_bytes", "Bytes written to the archive."),
)
_CACHE_COUNTERS = {
    "hits": "Ranges of the archive that a cache had; of filters, look-ups in index objects that they spared.",
    "misses": "Ranges that a cache was asked for and did not have; of filters, look-ups in vain without one.",
    "evictions": "Ranges that left a cache for others.",
}
_FILTER_COUNTERS = (
    _Number("false_positives", "tierlog_filter_false_positives", "Look-ups in vain despite a key filter in memory."),
    _Number("fetched", "tierlog_filter_fetches", "Key filters fetched in the background, each a request."),
    _Number("fetched_bytes", "tierlog_filter_fetched_bytes", "Bytes of those."),
    _Number("failures", "tierlog_filter_failures", "Key filters that could not be fetched or were damaged."),
)


class StoreCollector(Collector):
    """The metrics of one open store. What the store does not know, such as an archive's, is left out."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """Read all numbers at one moment."""
        stats = self._engine.stats()
        for number in _GAUGES:
            value = stats[number.stat]
            if isinstance(value, int):
                yield GaugeMetricFamily(number.name, number.help, value / number.divisor)
        for number in _COUNTERS:
            value = stats[number.stat]
            if isinstance(value, int):
                yield CounterMetricFamily(number.name, number.help, value)
        if self._engine.cold_url is not None:
            yield from _caches(stats["cache"])
        yield _state("tierlog_read_only", "1 if nothing is written any more.", self._engine.read_only_reason)
        yield _is(
            "tierlog_disk_full",
            "1 while appends are refused because the disk is fuller than hot.disk_full_percent.",
            self._engine.disk_full_reason,
        )
        yield _is(
            "tierlog_index_failing", "1 while key index and queues cannot follow the log, or index files not be kept.",
            self._engine.index_error,
        )  # fmt: skip
        yield _is("tierlog_archive_failing", "1 if the archive could not be reached.", self._engine.cold_error)


def _caches(layers: object) -> Iterator[Metric]:
    """Counters of the archive's caches, one series a layer."""
    assert isinstance(layers, dict)
    for counter, text in _CACHE_COUNTERS.items():
        family = CounterMetricFamily(f"tierlog_cache_{counter}", text, labels=["layer"])
        for layer, numbers in layers.items():
            family.add_metric([layer], numbers[counter])
        yield family
    held = GaugeMetricFamily("tierlog_cache_bytes", "Bytes that a cache of the archive holds.", labels=["layer"])
    for layer, numbers in layers.items():
        held.add_metric([layer], numbers["bytes"])
    yield held
    for number in _FILTER_COUNTERS:
        yield CounterMetricFamily(number.name, number.help, layers["filters"][number.stat])


def _is(name: str, text: str, reason: str | None) -> Metric:
    """A state whose reason names an object or counts bytes: as a label, every new one would make a series."""
    return GaugeMetricFamily(name, text, int(reason is not None))


def _state(name: str, text: str, reason: str | None) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["reason"])
    family.add_metric([(reason or "")[:_REASON_LENGTH]], int(reason is not None))
    return family


class Metrics:
    """Prometheus text of one open store."""

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(StoreCollector(engine))

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._registry)
