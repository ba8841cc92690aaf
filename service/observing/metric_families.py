"""Every metric that the service shows: name, type, labels, meaning, and what to do about it.

``metrics`` can show no other, ``docs/metrics.md`` is made from here (``python -m docs.tools.metrics``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. A counter's samples end in ``_total``, a histogram's in ``_bucket``, ``_sum`` and ``_count``."""

    name: str
    help: str
    #: Advice for a value that is high or wrong; empty where the metric only explains others.
    advice: str = ""
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"
    #: Its name in ``Store.stats()``, and the number of those units in one of the metric's.
    stat: str | None = None
    divisor: int = 1

    @property
    def sample(self) -> str:
        """The name that queries use; of a histogram the one before its endings."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _gauge(name: str, text: str, advice: str = "", *, stat: str | None = None, divisor: int = 1) -> Family:
    return Family(name, text, advice, stat=stat, divisor=divisor)


def _counter(name: str, text: str, advice: str = "", *labels: str, stat: str | None = None) -> Family:
    return Family(name=name, help=text, advice=advice, labels=labels, kind="counter", stat=stat)


def _histogram(name: str, text: str, advice: str = "", *labels: str) -> Family:
    return Family(name, text, advice, labels, "histogram")


def _labelled(name: str, text: str, advice: str, *labels: str) -> Family:
    return Family(name, text, advice, labels)


_APPENDS = (
    _counter("tierlog_appended_messages", "Messages appended since the store was opened.", stat="appended_messages"),
    _counter("tierlog_appended_bytes", "Bytes of records appended since the store was opened.", stat="appended_bytes"),
    _counter(
        "tierlog_acknowledged_messages", "Messages of appends that were acknowledged, those sent again included.", "",
        "durability",
    ),
    _histogram(
        "tierlog_append_seconds", "Time that acknowledged appends took, by durability.",
        "Compare with `tierlog_flush_seconds`: what is above it is waiting for a flush of others, or for the bucket.",
        "durability",
    ),
    _counter("tierlog_flushes", "Flushes of the log; fewer than appends where requests share one.", stat="flushes"),
    _histogram(
        "tierlog_flush_seconds", "Time of each flush of the log.",
        "The disk is slow or shared: look at what else writes there.",
    ),
    _gauge(
        "tierlog_unflushed_bytes", "Bytes that a crash of the machine would lose.",
        "Bounded by `hot.flush_dirty_bytes`; above it flushing does not keep up.", stat="unflushed_bytes",
    ),
    _gauge("tierlog_last_store_time_seconds", "Store time of the newest record.", stat="last_store_ms", divisor=1000),
    _gauge(
        "tierlog_clock_behind_seconds", "Time by which this machine's clock is behind the newest record.",
        "Above a minute the clock was wrong before or is now: see to the machine's time service.",
        stat="clock_behind_ms", divisor=1000,
    ),
    _gauge(
        "tierlog_produce_window_requests", "Requests with an `Idempotency-Key` that are remembered.",
        "At `produce.window_requests` the oldest are forgotten early: raise it.", stat="produce_window_requests",
    ),
    _gauge(
        "tierlog_produce_window_from_seconds", "Time from which every such request is remembered.",
        stat="produce_window_from_ms", divisor=1000,
    ),
)  # fmt: skip

_STORE = (
    _gauge("tierlog_topics", "Topics of the store.", stat="topics"),
    _gauge("tierlog_log_begin_bytes", "Physical offset of the oldest hot record.", stat="log_begin"),
    _gauge("tierlog_log_end_bytes", "Physical offset at which the next record goes.", stat="log_end"),
    _gauge("tierlog_flushed_to_bytes", "Physical offset below which the log is durable.", stat="flushed_to"),
    _gauge("tierlog_dispatched_to_bytes", "Physical offset below which all is derived.", stat="dispatched_to"),
    _counter(
        "tierlog_mended_queue_units", "Damaged units of queue files that were derived again from the log for a reader.",
        "The disk changes what it keeps: see to it, and run `tierlog check`.", stat="mended_queue_units",
    ),
    _gauge("tierlog_delayed_messages", "Messages that wait for their time.", stat="delayed_messages"),
    _gauge(
        "tierlog_delay_lag_seconds", "Time by which the delayed message that is overdue longest is.",
        "Rising: the archive that holds some of them does not answer, or the disk is full.", stat="delay_lag_ms",
        divisor=1000,
    ),
    _counter(
        "tierlog_fired_messages", "Delayed messages that were delivered since the store was opened.",
        stat="fired_messages",
    ),
    _counter(
        "tierlog_undeliverable_messages", "Delayed messages that could go to no topic since the store was opened.",
        "Whoever wrote into the timer topic left out where they go; the log names them.",
        stat="undeliverable_messages",
    ),
    _gauge("tierlog_recover_from_bytes", "Physical offset at which recovery would begin.", stat="recover_from"),
    _gauge(
        "tierlog_log_damaged_ranges", "Ranges of the log that cannot be read.",
        "Not 0: messages cannot be read. `/readyz` names them; `tierlog repair` says what can be done.",
        stat="damaged_ranges",
    ),
    _gauge(
        "tierlog_dispatch_lag_bytes", "Bytes of visible log that queues and index lack.",
        "Consumers and queries wait for it. Is the processor busy, or the disk full?", stat="dispatch_lag_bytes",
    ),
    _gauge(
        "tierlog_dispatch_lag_seconds", "Age of the oldest visible record that queues and index lack.",
        "As for the bytes.", stat="dispatch_lag_ms", divisor=1000,
    ),
    _gauge(
        "tierlog_index_behind_bytes", "Bytes of visible log whose keys are in no index yet.",
        "Growing: the index cannot be written, see `tierlog_index_failing`.", stat="index_behind_bytes",
    ),
    _gauge(
        "tierlog_index_sealed_to_bytes", "Physical offset below which index files are sealed.", stat="index_sealed_to"
    ),
    _gauge(
        "tierlog_index_files_waiting", "Index files that wait to be sealed or compacted.",
        "Growing: compaction does not keep up with keys; larger `index.items` make fewer files.",
        stat="index_files_waiting",
    ),
    _counter(
        "tierlog_index_files_damaged", "Damaged index files moved to `quarantine/` since the store was opened.",
        "They were derived again, but a disk that returns other bytes than were written should be replaced; the log "
        "names the files.",
        stat="index_files_damaged",
    ),
    _labelled(
        "tierlog_files", "Files by kind (segment, index, classic index), tier and state.",
        "Hot segments in state `rolled` wait for the archive.", "kind", "tier", "state",
    ),
    _labelled("tierlog_files_bytes", "Bytes of those.", "", "kind", "tier", "state"),
    _gauge("tierlog_hot_bytes", "Bytes of log that are hot.", stat="hot_bytes"),
    _gauge(
        "tierlog_disk_free_bytes", "Bytes that may still be allocated on the store's volume.",
        "Low: lower `hot.retention_ms` or `hot.max_bytes`, see to the archive, or get more disk.",
        stat="disk_free_bytes",
    ),
    _gauge(
        "tierlog_disk_total_bytes", "Bytes allocated on the store's volume and free ones.", stat="disk_total_bytes"
    ),
    _labelled(
        "tierlog_read_only", "1 if nothing is written any more.", "See to what the reason names, then restart.",
        "reason",
    ),
    _gauge(
        "tierlog_fenced", "1 once another volume, or a copy of this one, was seen to write this store's archive.",
        "Stop this one; what only it holds comes back by `tierlog salvage`.",
    ),
    _gauge(
        "tierlog_disk_full", "1 while appends are refused because the disk is fuller than hot.disk_full_percent.",
        "Free space; appends go on by themselves.",
    ),
    _gauge(
        "tierlog_index_failing", "1 while key index and queues cannot follow the log, or index files not be kept.",
        "The reason is at `/readyz` and in the log.",
    ),
    _gauge(
        "tierlog_archive_failing", "1 if the archive could not be reached.",
        "The reason is at `/readyz` and in the log. Appends go on while the disk has room.",
    ),
)  # fmt: skip

_ARCHIVE = (
    _gauge(
        "tierlog_archived_to_bytes", "Physical offset below which every segment was archived.", stat="archived_to"
    ),
    _gauge("tierlog_indexed_to_bytes", "Physical offset below which the index was published.", stat="indexed_to"),
    _gauge("tierlog_manifest_version", "Version of the manifest last seen.", stat="manifest_version"),
    _gauge(
        "tierlog_archive_lag_bytes", "Bytes of log that no archived segment holds.",
        "Up to a segment is normal. More: the archive is slow or fails.", stat="archive_lag_bytes",
    ),
    _gauge(
        "tierlog_archive_lag_seconds", "Age of the oldest message that no archived segment holds.",
        "Up to `hot.roll_age_ms` and the time of an upload is normal. More: the archive is slow or fails.",
        stat="archive_lag_ms", divisor=1000,
    ),
    _gauge(
        "tierlog_unarchived_bytes", "Bytes that the loss of the volume would lose; tails count as archived.",
        "As for the lag; `durability=archived` bounds it for those who need that.", stat="unarchived_bytes",
    ),
    _gauge(
        "tierlog_open_erasures", "Erasures that are under way.",
        "Not falling: the archive fails, or a hold stops them; `tierlog receipts` names them.", stat="open_erasures",
    ),
    _gauge("tierlog_tailed_to_bytes", "Physical offset below which the bucket has the log.", stat="tailed_to"),
    _gauge(
        "tierlog_tail_lag_bytes", "Bytes that archived appends wait for.",
        "The bucket is slow, or more is appended than four tails at a time can carry.", stat="tail_lag_bytes",
    ),
    _counter("tierlog_tails_written", "Tails stored for archived appends, each a PUT.", stat="tails_written"),
    _counter("tierlog_tail_written_bytes", "Bytes of log in those tails.", stat="tail_bytes_written"),
    _counter(
        "tierlog_archive_calls", "Requests to the archive by operation and outcome; an upload or a listing is one.",
        "`throttled`: too many at once, lower `query.concurrency`. `unavailable`, `error`: look at the bucket.",
        "operation", "outcome",
    ),
    _counter(
        "tierlog_archive_cost_usd", "Cost of those requests at list prices of Amazon S3 Standard, without storage.",
        "`get_range`: queries and replays; give `cold.cache_bytes` and `cold.filter_bytes` more. `put`: shorter "
        "intervals than needed.",
        "operation",
    ),
    _histogram(
        "tierlog_archive_call_seconds", "Time of each request to the archive, by operation.",
        "The bucket or the way to it is slow; `tierlog doctor --cold URL` measures it.", "operation",
    ),
    _counter("tierlog_archive_requests", "Requests made to the archive.", stat="archive_requests"),
    _counter("tierlog_archive_failures", "Requests to the archive that failed.", stat="archive_failures"),
    _counter("tierlog_archive_read_bytes", "Bytes read from the archive.", stat="archive_bytes_read"),
    _counter("tierlog_archive_written_bytes", "Bytes written to the archive.", stat="archive_bytes_written"),
    _counter(
        "tierlog_cache_hits",
        "Ranges of the archive that a cache had; of filters, look-ups in index objects that they spared.", "", "layer",
    ),
    _counter(
        "tierlog_cache_misses",
        "Ranges that a cache was asked for and did not have; of filters, look-ups in vain without one.",
        "Many beside few hits: the cache is too small for what is read.", "layer",
    ),
    _counter("tierlog_cache_evictions", "Ranges that left a cache for others.", "As for misses.", "layer"),
    _labelled("tierlog_cache_bytes", "Bytes that a cache of the archive holds.", "", "layer"),
    _counter("tierlog_filter_false_positives", "Look-ups in vain despite a key filter in memory."),
    _counter("tierlog_filter_fetches", "Key filters fetched in the background, each a request."),
    _counter("tierlog_filter_fetched_bytes", "Bytes of those."),
    _counter(
        "tierlog_filter_failures", "Key filters that could not be fetched or were damaged.",
        "`tierlog check --deep` names damaged ones, `repair` makes them again.",
    ),
)  # fmt: skip

_QUERIES = (
    _counter(
        "tierlog_queries", "Answered queries by what was asked for (key, time) and outcome: complete, dry_run, or what "
        "cut the answer short: budget, timeout, unreachable.",
        "`unreachable`: something could not be read, the answer's coverage names it. `timeout`: narrower ranges, or a "
        "larger `query.timeout_ms`.",
        "by", "outcome",
    ),
    _histogram(
        "tierlog_query_seconds", "Time of answered queries.",
        "Many requests a query: enlarge the caches. Few: the bucket is slow.", "by",
    ),
    _histogram(
        "tierlog_query_requests", "Requests to the archive that each query made.",
        "Many small index objects: merge them (docs/pipeline.md).",
    ),
    _counter("tierlog_query_cost_usd", "Cost of those requests in US dollars."),
    _histogram(
        "tierlog_store_ask_seconds", "Time that stores took to answer a querier, or to fail to.",
        "Nodes are busy or far away; a query waits for `cluster.ask_timeout_ms` at most.",
    ),
    _gauge(
        "tierlog_silent_stores", "Stores that gave a querier no answer when they were asked last.",
        "Not 0: answers are incomplete and say which store is missing.",
    ),
    _gauge("tierlog_groups", "Consumer groups."),
    _counter(
        "tierlog_deliveries", "Messages delivered to groups one by one, for the first time or again.",
        "Many of `attempt=\"again\"`: consumers give messages back, or take longer than messages are invisible.",
        "attempt",
    ),
    _counter(
        "tierlog_dead_letters", "Messages that groups have given up; they are in the topics `%DLQ%group`.",
        "Rising: look at `DLQ_REASON` of the newest ones.",
    ),
    _gauge(
        "tierlog_open_messages", "Messages delivered, or waiting for their message group, and not acknowledged.",
        "Not falling: consumers receive and do not acknowledge; at 4,096 of a queue their group gets nothing new.",
    ),
    _labelled(
        "tierlog_group_lag_messages", "Messages that a consumer group has not committed, of hot and archived ones.",
        "Growing: consumers are too slow, or gone. Absent: a store with queues of the group does not answer, or the "
        "archive does not tell which offsets a restore left out.", "group",
    ),
)  # fmt: skip

_CLUSTER = (
    _gauge("tierlog_cluster_stores", "Stores of the cluster that this process knows, its own included."),
    _gauge(
        "tierlog_cluster_table_age_seconds", "Time since the cluster table was known to be the newest.",
        "Above `cluster.refresh_ms` the bucket does not answer: new stores, addresses and routes are not known here.",
    ),
    _gauge(
        "tierlog_cluster_entered", "1 if the cluster table has this store as this process entered it.",
        "At 0 requests for this store are sent elsewhere or nowhere; `tierlog cluster` says why.",
    ),
)  # fmt: skip

_HTTP = (
    _counter(
        "tierlog_http_requests", "Requests by route, method and status; 499: the client went away first.", "",
        "route", "method", "status",
    ),
    _histogram(
        "tierlog_http_request_seconds", "Time until the answer was sent, long polls and streams included.", "",
        "route", "method",
    ),
    _gauge("tierlog_http_requests_in_flight", "Requests that are being answered."),
    _counter("tierlog_http_received_bytes", "Bytes of request bodies."),
    _counter("tierlog_http_sent_bytes", "Bytes of answers' bodies."),
    _counter(
        "tierlog_http_refused_requests", "Requests refused with 401, 403, 413, 429, 503 or 507, by reason.",
        "The reason is the title of the problem that was answered.", "reason",
    ),
    _gauge(
        "tierlog_http_answer_bytes", "Bytes that answers hold while they wait for their readers.",
        "Near `serve.answer_memory_bytes`, further large answers get 429: readers are slow, or ask for large pages.",
    ),
    _gauge("tierlog_http_connections", "Connections that are open, unfinished TLS handshakes included."),
    _gauge(
        "tierlog_http_connections_limit", "Maximum number of connections.",
        "Below `serve.max_connections`, the limit of open files (`ulimit -n`) leaves no more: raise it.",
    ),
    _counter(
        "tierlog_http_refused_connections", "Connections that were turned away, by reason.",
        "`full`: all others were at work, raise `serve.max_connections` or look who keeps them. `silent`: closed for "
        "another one before a known caller had asked anything on it. `system`: times that there was no descriptor for "
        "one, raise the limit of open files.",
        "reason",
    ),
    _labelled("tierlog_build_info", "1, with the version that runs.", "", "version", "python"),
)  # fmt: skip

_DOORS = (
    _counter(
        "tierlog_rocketmq_requests", "Requests at a door for RocketMQ's clients, by name and answer.",
        "`system_busy`, `too_many_requests`: a limit was reached, the answer names it.", "door", "request", "answer",
    ),
    _histogram(
        "tierlog_rocketmq_request_seconds",
        "Time until sends (`send`), and pulls, pops and receives with their waits (`receive`), were answered.",
        "Compare sends with `tierlog_flush_seconds`: what is above it is waiting for others.", "door", "flow",
    ),
    _counter("tierlog_rocketmq_received_bytes", "Bytes of requests' bodies at a door.", "", "door"),
    _counter("tierlog_rocketmq_sent_bytes", "Bytes of answers' bodies at a door.", "", "door"),
    _labelled(
        "tierlog_rocketmq_connections", "Connections that are open at the remoting door; gRPC does not tell its own.",
        "Near `rocketmq.max_connections` those that are silent make room, and then new ones are closed.", "door",
    ),
    _counter(
        "tierlog_rocketmq_refused_connections", "Connections that a door turned away, by reason.",
        "As for those of HTTP; `rocketmq.max_connections` is the limit.", "door", "reason",
    ),
    _labelled("tierlog_rocketmq_clients", "Clients that have said who they are, by door.", "", "door"),
    _labelled(
        "tierlog_rocketmq_members", "Consumers and producers at a door, counted in each of their groups.", "", "door",
        "kind",
    ),
    _labelled("tierlog_rocketmq_groups", "Consumer groups with members at a door.", "", "door"),
    _labelled(
        "tierlog_rocketmq_waiting_requests", "Requests that wait for messages at a door.",
        "At `serve.max_long_polls` further ones are refused.", "door",
    ),
)  # fmt: skip

_FOLLOW = (
    _labelled(
        "tierlog_follow_lag_bytes", "Bytes that a followed broker has, and that are not durable here.",
        "It should be near 0 while the broker is not at full speed; look at `tierlog_follow_state`.", "broker",
    ),
    _labelled(
        "tierlog_follow_lag_seconds", "Upper bound of the age of the oldest message that is not durable here.",
        "Above `follow.behind_ms` the follower is behind: its disk, the network or a processor is too slow.", "broker",
    ),
    _labelled(
        "tierlog_follow_margin_seconds",
        "Time until a followed broker may remove what is not durable here; missing where it is not known.",
        "Near 0, messages are about to be lost: see docs/operations.md, a follower that falls behind.", "broker",
    ),
    _counter(
        "tierlog_follow_gap_bytes",
        "Bytes of a broker's log that it removed before they were here; missing until the archive was asked once.",
        "They are lost; answers about their time say so.", "broker",
    ),
    _labelled(
        "tierlog_follow_gap_timestamp_seconds",
        "When the newest of them were declared, in seconds since 1970; missing where there are none.",
        "The archive keeps it, so that it is the same in every process: an alert looks at it, and not at the rise of "
        "the bytes, which nobody scrapes while a follower is down.", "broker",
    ),
    _labelled(
        "tierlog_follow_state", "1 for the state of the follower, 0 for all others.",
        "`diverged` and `refused` need an operator; `connecting` and `waiting` go on by themselves.", "broker", "state",
    ),
)  # fmt: skip

SECTIONS: dict[str, tuple[Family, ...]] = {
    "Appends": _APPENDS,
    "Store": _STORE,
    "Archive": _ARCHIVE,
    "Queries and consumers": _QUERIES,
    "Cluster": _CLUSTER,
    "RocketMQ's clients": _DOORS,
    "Followed brokers": _FOLLOW,
    "HTTP and process": _HTTP,
}
#: Metrics of the process by the client library, with Prometheus' usual names.
PROCESS = (
    "process_cpu_seconds_total", "process_max_fds", "process_open_fds", "process_resident_memory_bytes",
    "process_start_time_seconds", "process_virtual_memory_bytes",
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.name: family for families in SECTIONS.values() for family in families}
