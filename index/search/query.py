"""A query, and its answer: the messages found, exactly what was searched for them, and what a dry run estimates."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from tierlog.index.search.filters import MessageFilters
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import format_time
from tierlog.tiering.base.types import END_OF_TIME_MS, Order, TimeAxis, TimeRange
from tierlog.tiering.format.generation import Generation, record_topic
from tierlog.tiering.message.batch import validate_key, validate_topic_or_generation
from tierlog.tiering.message.stored_message import Place, StoredMessage
from tierlog.tiering.objects.object_store import usd_of

MAX_LIMIT = 10_000
#: Of a page by columns, which costs no object for each message.
MAX_ROWS = 1 << 16
DEFAULT_LIMIT = 32


@dataclass(frozen=True, slots=True)
class Query:
    """One question. ``key`` None asks for every message of the topic in the time range.

    ``tag``, ``contains`` and ``where`` filter what key and time find; ``limit`` counts what passes them.
    """

    topic: str
    key: str | None = None
    from_ms: int = 0
    to_ms: int = END_OF_TIME_MS
    limit: int = DEFAULT_LIMIT
    axis: TimeAxis = TimeAxis.STORE
    order: Order = Order.NEWEST
    cursor: str | None = None
    max_requests: int | None = None
    """Stop before asking the object store more often than this."""
    timeout_ms: int | None = None
    """Answer after so long with what is known then; None = when the answer is there."""
    dry_run: bool = False
    """Answer what the query may cost, and read no more than the manifest for it."""
    tag: str | None = None
    """One tag, several as ``TagA || TagB``, or ``*`` for every message."""
    contains: tuple[str, ...] = ()
    """Texts that the body must contain, as bytes of UTF-8."""
    where: tuple[tuple[str, str], ...] = ()
    """Names and values: of a property, or of a field of a body that is a JSON object."""
    filters: MessageFilters | None = field(init=False, repr=False, compare=False, default=None)
    """What these three say; None where every message passes."""
    by_columns: bool = False
    """Answer with rows of Arrow in the place of messages; only for a query that :attr:`may_go_by_columns`."""
    most_by_born_time: int | None = None
    """Look at no more of a hot queue's newest messages where only their born times tell; None = at all of them.

    For who asks whether there is anything: the coverage does not tell of what was left out.
    """
    without: tuple[int, int] | None = None
    """Leave out messages of this physical range ``[first, next)``: somebody else has them, and answers with them."""

    @property
    def of_records(self) -> Query:
        """The query with the topic that records have, if it names a generation."""
        topic = record_topic(self.topic)
        return self if topic == self.topic else replace(self, topic=topic)

    def within_log(self, generations: Sequence[Generation]) -> tuple[Generation, ...]:
        """Returns what of these generations lies in the part of the log that is asked for."""
        if self.without is None:
            return tuple(generations)
        first, following = self.without
        parts = [each._replace(end=min(each.end, first)) for each in generations]
        parts += [each._replace(begin=max(each.begin, first, following)) for each in generations]
        return tuple(each for each in parts if each.begin < each.end)

    def __post_init__(self) -> None:
        object.__setattr__(self, "filters", MessageFilters.of(self.tag, self.contains, self.where))
        validate_topic_or_generation(self.topic)
        if self.key is not None:
            validate_key(self.key)
        if self.from_ms >= self.to_ms:
            said = f"from ({format_time(self.from_ms)}) is not before to ({format_time(self.to_ms)})"
            raise InvalidRequestError(said, hint="the range is [from, to)")
        most = MAX_ROWS if self.by_columns else MAX_LIMIT
        if not 1 <= self.limit <= most:
            raise InvalidRequestError(f"limit {self.limit} is not between 1 and {most}")
        if self.max_requests is not None and self.max_requests < 0:
            raise InvalidRequestError("max_requests is negative")
        if self.timeout_ms is not None and self.timeout_ms <= 0:
            raise InvalidRequestError(f"timeout_ms {self.timeout_ms} is not positive")
        if self.by_columns and not self.may_go_by_columns:
            raise InvalidRequestError("a query goes by columns only without a key and filters, and is no dry run")
        if self.cursor is not None:
            self.after  # noqa: B018  a bad cursor is refused before anything is read

    @property
    def may_go_by_columns(self) -> bool:
        """Whether nothing has to be looked at message by message."""
        return self.key is None and self.filters is None and not self.dry_run

    @property
    def time_range(self) -> TimeRange:
        """The half-open range asked for, its ends open where they were left so."""
        return TimeRange.asked(self.from_ms, self.to_ms)

    @property
    def after(self) -> Place | None:
        """The place in the order that the page begins behind, from the cursor."""
        return None if self.cursor is None else decode_cursor(self.cursor, self.axis, self.order)


def encode_cursor(place: Place, axis: TimeAxis, order: Order) -> str:
    """Encodes a cursor, which is only a place in the order; each page takes a new snapshot."""
    text = json.dumps([1, axis.value, order.value, *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, axis: TimeAxis, order: Order) -> Place:
    """Returns the place of a cursor; :class:`InvalidRequestError` for anything but one of this axis and order."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        version, for_axis, for_order, time_ms, store_id, offset = json.loads(raw)
        place = (int(time_ms), str(store_id), int(offset))
    except (ValueError, OverflowError, RecursionError, TypeError) as error:
        raise InvalidRequestError("bad cursor", hint="pass next_cursor of an earlier answer unchanged") from error
    if (version, for_axis, for_order) != (1, axis.value, order.value):
        raise InvalidRequestError("the cursor belongs to another time axis, order or version")
    return place


@dataclass(slots=True)
class TierCoverage:
    """The interval that was searched in one tier, half-open; ``manifest_version`` for the cold tier.

    Every message that the tier held in it is in the answer or in a page before, or in the next if it has the time of
    the page's last message. What failed, or was left when the budget was spent, lies outside; so do times newer than
    the archive where only that is read.
    """

    from_ms: int
    to_ms: int
    manifest_version: int | None = None

    def end_at(self, time_ms: int, order: Order) -> None:
        """Claims nothing that comes after ``time_ms`` in the order."""
        if order is Order.NEWEST:
            self.from_ms = max(self.from_ms, time_ms)
        else:
            self.to_ms = min(self.to_ms, time_ms + 1)

    def end_before(self, time_ms: int) -> None:
        """Claims nothing of this time or a newer one."""
        self.to_ms = min(self.to_ms, time_ms)

    def as_asked(self, query: Query) -> None:
        """Says open ends as the query does, unless all that is claimed lies beyond what it says."""
        within = query.time_range
        if self.to_ms == within.to_ms and self.from_ms < query.to_ms:
            self.to_ms = query.to_ms
        if self.from_ms == within.from_ms and self.to_ms > query.from_ms:
            self.from_ms = query.from_ms

    def as_meant(self, query: Query) -> None:
        """Undoes :meth:`as_asked`."""
        within = query.time_range
        self.to_ms = within.to_ms if self.to_ms == query.to_ms else self.to_ms
        self.from_ms = within.from_ms if self.from_ms == query.from_ms else self.from_ms

    @property
    def is_empty(self) -> bool:
        """Whether nothing is claimed."""
        return self.from_ms >= self.to_ms


@dataclass(slots=True)
class StoreCoverage:
    """The coverage of one store; a tier that holds nothing to search, or of which nothing was, is None.

    So is an archive that was not looked at because everything newer in the order was found above it.
    """

    store_id: str
    hot: TierCoverage | None = None
    cold: TierCoverage | None = None
    error: str | None = None
    #: Of a store that gave only the first part of its messages: where that ends. The page goes no further.
    page_end: Place | None = None
    #: Of a store whose time ran out while it filtered: everything before this time in the order was examined.
    examined_to_ms: int | None = None

    def claims(self) -> list[TierCoverage]:
        """Returns the claims that are not None."""
        return [claim for claim in (self.hot, self.cold) if claim is not None]

    def drop_empty_claims(self) -> None:
        """Sets claims to None of which nothing is left."""
        self.hot = None if self.hot is None or self.hot.is_empty else self.hot
        if self.cold is not None and (self.cold.is_empty or self.cold.manifest_version is None):
            self.cold = None


@dataclass(slots=True)
class Failure:
    """One thing that could not be read."""

    object: str
    error: str


@dataclass(slots=True)
class Coverage:
    """The coverage of an answer. ``complete``: all that ``stores`` claim was searched in full for the page returned.

    With a hot tier that is the range asked for; an archive read alone knows nothing of what is newer than it.
    ``cut_by``: ``limit``, ``budget``, ``timeout``, or ``dry_run`` where nothing was meant to be searched.

    Index files and objects that overlap the range are each counted once as considered, and once as filtered (what is in
    memory proved that the key is not there), searched, expired, unreachable or skipped (not asked, because the page was
    certain without it, or because budget or time were over). ``requests``, ``bytes`` and ``cost_usd`` are those of all
    requests that were begun, whether their answers were needed or not; ``manifest_requests`` of them read the manifest.
    ``round_trips`` and ``waves`` count from the plan on, with the manifest loaded: the longest chain of requests each
    of which needed the one before, and in how many rounds of at most as many parallel requests as the query may make
    they fit (for each depth of the chains the requests there, divided by that number and rounded up).

    ``messages_read`` have the topic and key asked for and a time of the page's range; ``messages_matched`` of them pass
    the filters. ``examined_to_ms`` is told where budget or time ran out while messages were being filtered: everything
    before that time in the order was examined, and the cursor goes on there.
    """

    complete: bool = True
    cut_by: str | None = None
    stores: list[StoreCoverage] = field(default_factory=list)
    index_considered: int = 0
    index_filtered: int = 0
    index_searched: int = 0
    index_expired: int = 0
    index_unreachable: int = 0
    index_skipped: int = 0
    segments_read: int = 0
    segments_expired: int = 0
    segments_erased: int = 0
    segments_unreachable: int = 0
    round_trips: int = 0
    waves: int = 0
    requests: int = 0
    manifest_requests: int = 0
    bytes: int = 0
    cost_usd: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    messages_read: int = 0
    messages_matched: int = 0
    examined_to_ms: int | None = None

    def bill(self, other: Coverage) -> None:
        """Adds the requests of another query, made one after the other for the same answer, and what they cost."""
        self.requests += other.requests
        self.manifest_requests += other.manifest_requests
        self.bytes += other.bytes
        self.cost_usd += other.cost_usd
        self.round_trips += other.round_trips
        self.waves += other.waves

    def to_json(self) -> dict[str, object]:
        """Returns the ``coverage`` object of an answer."""
        return {
            # what the answer claims
            "complete": self.complete,
            "cut_by": self.cut_by,
            "examined_to_ms": self.examined_to_ms,
            "stores": [
                {
                    "store_id": store.store_id,
                    "hot": store.hot and {"from_ms": store.hot.from_ms, "to_ms": store.hot.to_ms},
                    "cold": store.cold
                    and {
                        "from_ms": store.cold.from_ms,
                        "to_ms": store.cold.to_ms,
                        "manifest_version": store.cold.manifest_version,
                    },
                    "error": store.error,
                }
                for store in self.stores
            ],
            # what became of each object and segment in range
            "index_files": {
                "considered": self.index_considered,
                "filtered": self.index_filtered,
                "searched": self.index_searched,
                "expired": self.index_expired,
                "unreachable": self.index_unreachable,
                "skipped": self.index_skipped,
            },
            "segments": {
                "read": self.segments_read,
                "expired": self.segments_expired,
                "erased": self.segments_erased,
                "unreachable": self.segments_unreachable,
            },
            "messages": {"read": self.messages_read, "matched": self.messages_matched},
            # what it cost, and what failed
            "round_trips": self.round_trips,
            "waves": self.waves,
            "requests": self.requests,
            "manifest_requests": self.manifest_requests,
            "bytes": self.bytes,
            "cost_usd": self.cost_usd,
            "failures": [{"object": failure.object, "error": failure.error} for failure in self.failures],
        }


class CostRange(NamedTuple):
    """A cost: at least, probably and at most."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def to_json(self) -> dict[str, int]:
        """Returns the three by name."""
        return self._asdict()


@dataclass(slots=True)
class CostEstimate:
    """The cost of the first page, beside what is in memory and on disk now.

    ``requests.most`` is enough while nothing fails, nothing is published meanwhile and the caches keep what the query
    brings; it takes every item of an index object that is not ruled out for one of the key, unless its pages are known.
    ``likely`` takes the key to be in every object whose filter does not rule it out, and in no object without one.
    """

    requests: CostRange
    bytes: int
    """Likely."""
    round_trips: int
    """Likely: the longest chain of requests that each need the one before."""
    is_whole: bool = True
    """False if the manifest could not be read in full: then there may be more."""
    objects_asked: int = 0
    """Index objects that are not ruled out, as far as they are not answered from what is kept."""
    filters_resident: int = 0
    """Those of them whose filter is in memory and does not rule the key out."""
    directories_resident: int = 0
    """Those of them whose page directory is at hand."""
    segments_by_hits: int = 0
    """Segments that hold known hits."""
    segments_by_time: int = 0
    """Segments that are searched record by record: of a query without a key, or archived and not indexed yet."""
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Returns the ``estimate`` object of an answer."""
        return {
            "requests": self.requests.to_json(),
            "bytes": self.bytes,
            "cost_usd": {name: usd_of(reads=count) for name, count in self.requests.to_json().items()},
            "round_trips": self.round_trips,
            "is_whole": self.is_whole,
            "index_objects": {
                "asked": self.objects_asked,
                "filters_resident": self.filters_resident,
                "directories_resident": self.directories_resident,
            },
            "segments": {"by_hits": self.segments_by_hits, "by_time": self.segments_by_time},
            "notes": self.notes,
        }


@dataclass(frozen=True, slots=True)
class AxisHint:
    """A hint that the range has messages by the other of the two times, where it has none by the one asked for."""

    axis: TimeAxis

    @property
    def detail(self) -> str:
        """The hint in words."""
        if self.axis is TimeAxis.BORN:
            return "nothing was stored in this range of time, but messages were born in it"
        return "nothing was born in this range of time, but messages were stored in it"

    def to_json(self) -> dict[str, str]:
        """Returns the ``hint`` object of an answer."""
        return {"time": self.axis.value, "detail": self.detail}


@dataclass(slots=True)
class Answer:
    """A page of results in the order asked for."""

    messages: list[StoredMessage]
    next_cursor: str | None
    coverage: Coverage
    estimate: CostEstimate | None = None
    """Of a dry run."""
    hint: AxisHint | None = None
    """Of a first page without a message, if a short look found some by the other time."""
    rows: pa.RecordBatch | None = None
    """Of a query by columns, in the place of messages: the columns of ``FOUND_SCHEMA``."""

    @property
    def count(self) -> int:
        """The number of messages, however they are given."""
        return len(self.messages) if self.rows is None else self.rows.num_rows
