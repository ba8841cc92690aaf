"""Writes ``docs/scale.md``, what a thousand stores would take: ``python -m docs.tools.scale_page``.

The page is computed from the code's own constants and few measured numbers, each named with where it was measured.
``tests/docs/test_scale.py`` derives the points that small data can show again.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.report import results
from docs.tools.sizing import Load, Prices, needs
from tierlog.index.format.key_filter import DEFAULT_BITS_PER_KEY
from tierlog.index.objects.catalogue import ENTRY_BYTES
from tierlog.index.objects.pages import PAGE_ROW
from tierlog.index.objects.writer import DEFAULT_PAGE_BYTES
from tierlog.service.config.cluster import ClusterSettings
from tierlog.service.config.store import ColdSettings
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.format.sorted_segment import SEEK_ROW
from tierlog.tiering.objects.object_store import PART_BYTES, USD_PER_READ, USD_PER_WRITE

YEAR_S = 365.25 * 86_400
MONTH_S = YEAR_S / 12
#: Of an index object merged by `pipeline.jobs.merge`, unless told.
MERGED_BYTES = 600_000_000
#: Items a second and core, docs/pipeline.md: few large inputs, many small ones.
MERGED_ITEMS_PER_S = (2.2e6, 2.6e6)
#: Each item is merged into a day, a month and a year.
MERGE_LEVELS = 3
#: A day waits so long for what is archived late.
LATE_HOURS = 6
#: Bytes of a manifest entry in a page of 256, compressed; and of the head at most, with 200 entries inline.
MANIFEST_ENTRY_BYTES, HEAD_BYTES = 70, 20_000
#: Requests a second that Amazon documents for one prefix.
S3_WRITES_PER_S, S3_READS_PER_S = 3_500, 5_500
_RECORD_BYTES, _KEYS = 300, 2

_PAGE = Path(__file__).resolve().parents[1] / "scale.md"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_HEAD = """# One node, and past one cluster

<!-- Made by `python -m docs.tools.scale_page` from docs/tools/scale_page.py. Change it there. -->

First what one node was measured to do, then what nobody has run. That is arithmetic: 1,000 stores that take 10 million
messages a second together, records of 300 bytes with two keys of 16, everything kept for ten years in one region, segments and settings at their defaults. Each line has its formula;
constants come from the code, and what was measured is named. Loads are even, which real ones are not: the busiest store decides.
"""  # noqa: E501 - text of the page
_PER_CORE = """
A store is one process. One thread appends and one derives, so a second core nearly doubles what both do, and helps an
archive, which compresses and verifies in threads. A pull and a look-up run in the caller's thread and use one core;
kernels run without the interpreter's lock, so those of several callers run beside each other. More cores than these
serve more readers and faster archiving, not faster appends: for those, topics are spread over stores
([cluster.md](cluster.md)).
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """Stores that are equally loaded, and for how long everything is kept."""

    stores: int = 1_000
    messages_per_s: float = 10e6
    years: float = 10

    @property
    def load(self) -> Load:
        """Of one store; bodies are what makes a record 300 bytes."""
        rate = self.messages_per_s / self.stores
        empty = Load(rate, 0, keys=_KEYS)
        return Load(
            rate, _RECORD_BYTES - empty.record_bytes, keys=_KEYS, hot_hours=24, retention_days=self.years * 365.25
        )

    @property
    def items_per_s(self) -> float:
        """Index items of one store."""
        return self.load.messages_per_second * _KEYS

    @property
    def segments(self) -> float:
        """Of one store, in all the years; and as many index objects before any merge."""
        return self.load.messages_per_second * _RECORD_BYTES * self.years * YEAR_S / self.load.segment_bytes

    @property
    def segment_s(self) -> float:
        """Seconds in which one store fills a segment."""
        return self.load.segment_bytes / (self.load.messages_per_second * _RECORD_BYTES)

    @property
    def index_bytes(self) -> float:
        """Of one store."""
        return self.items_per_s * self.load.index_item_bytes * self.years * YEAR_S

    @property
    def merged_objects(self) -> float:
        """Of one store, most of them parts of years."""
        return self.index_bytes / MERGED_BYTES + self.unmerged_objects

    @property
    def unmerged_objects(self) -> float:
        """Of the running day and of the one before it until it is merged."""
        return (24 + LATE_HOURS) * 3600 / self.segment_s

    @property
    def asked_merged(self) -> int:
        """Index objects of one store that may hold a key of any time: a slot lies in one part of each group."""
        return ceil(self.years) + 11 + 30 + ceil(self.unmerged_objects)

    @property
    def pages(self) -> float:
        """Manifest pages with entries of one store, full ones, merged."""
        return (self.segments + self.merged_objects) / ColdOptions().page_entries

    @property
    def manifest_levels(self) -> int:
        """Pages between the head and an entry, of the segments."""
        levels, nodes = 0, self.segments
        while nodes > ColdOptions().max_inline_entries:
            levels, nodes = levels + 1, nodes / ColdOptions().page_entries
        return levels

    @property
    def seek_bytes(self) -> float:
        """Seek tables of one store."""
        rate = self.load.messages_per_second * _RECORD_BYTES
        return rate / ColdOptions().frame_bytes * SEEK_ROW.itemsize * self.years * YEAR_S

    @property
    def directory_bytes(self) -> float:
        """Page directories of the index of one store."""
        return self.index_bytes / DEFAULT_PAGE_BYTES * PAGE_ROW.itemsize

    @property
    def filter_bytes(self) -> float:
        """Key filters of one store, if each item had a key of its own in its object."""
        return self.items_per_s * DEFAULT_BITS_PER_KEY / 8 * self.years * YEAR_S

    @property
    def young_filter_bytes(self) -> float:
        """Key filters of what is not merged yet, of one store."""
        return self.items_per_s * DEFAULT_BITS_PER_KEY / 8 * (24 + LATE_HOURS) * 3600

    @property
    def resident_filter_hours(self) -> float:
        """Newest hours whose filters fit into the default memory for them, of one store."""
        return ColdSettings().filter_bytes / (self.items_per_s * DEFAULT_BITS_PER_KEY / 8) / 3600

    @property
    def catalogue_bytes(self) -> float:
        """Memory for the list of the index objects of one store, merged."""
        return self.merged_objects * ENTRY_BYTES

    def merge_cores(self) -> tuple[float, float]:
        """Cores that are always merging, for all stores, by the faster and the slower rate."""
        items = self.items_per_s * self.stores * MERGE_LEVELS
        return items / MERGED_ITEMS_PER_S[1], items / MERGED_ITEMS_PER_S[0]

    @property
    def writes_per_s(self) -> float:
        """To the prefix of one store."""
        return needs(self.load).writes_per_month / MONTH_S

    @property
    def table_reads_per_s(self) -> float:
        """Of the cluster table, by all nodes."""
        return self.stores / (ClusterSettings().refresh_ms / 1000)

    def bill(self, prices: Prices) -> dict[str, float]:
        """USD a month, all stores, when the archive has its full length; without look-ups and without machines."""
        need = needs(self.load)
        merged = self.index_bytes / (self.years * YEAR_S) * MONTH_S * MERGE_LEVELS
        return {
            "bucket, records and index": self.stores * need.bucket_bytes / 1e9 * prices.bucket_gb_month,
            "requests that publish": self.stores
            * (need.writes_per_month * USD_PER_WRITE + need.reads_per_month * USD_PER_READ),
            "requests that merge": self.stores * merged / PART_BYTES * (USD_PER_WRITE + USD_PER_READ),
            "SSDs, one day hot": self.stores * need.ssd_bytes / 1e9 * prices.ssd_gb_month,
        }


def page() -> str:
    """Returns the whole page."""
    it, options, prices = Scale(), ColdOptions(), Prices()
    load, need = it.load, needs(it.load)
    slow, fast = it.merge_cores()[1], it.merge_cores()[0]
    bill = it.bill(prices)
    entry, head = MANIFEST_ENTRY_BYTES, HEAD_BYTES
    one = [
        ("messages", f"{load.messages_per_second:,.0f}/s", "10 million / 1,000"),
        ("log", f"{_size(load.messages_per_second * 300)}/s", "× 300 bytes"),
        ("a segment is full after", f"{it.segment_s:,.0f} s", "1 GiB / that"),
        ("segments in ten years", f"{it.segments:,.0f}", "ten years / that"),
        ("records in the bucket", _size(need.bucket_bytes - it.index_bytes),
         f"/ {load.compression:.0f}, as measured on logs (decision 0009); random bodies reach 1.3"),
        ("index in the bucket", _size(it.index_bytes),
         f"2 items a message × {load.index_item_bytes:.0f} bytes with their filter (measured, docs/operations.md)"),
        ("index objects, unmerged", f"{it.segments:,.0f}", "one a segment"),
        ("index objects, merged", f"{it.merged_objects:,.0f}",
         f"index / 600 MB, and {it.unmerged_objects:,.0f} of the last {24 + LATE_HOURS} h"),
        ("manifest pages", f"{it.pages:,.0f}; {_size(it.pages * options.page_entries * entry)}",
         f"(segments + merged objects) / {options.page_entries} entries × {entry} bytes (measured), if full; at most twice as many"),  # noqa: E501 - text of the page
        ("between head and entry", f"{it.manifest_levels} pages", f"fan-out {options.page_entries}, {options.max_inline_entries} entries inline"),  # noqa: E501 - text of the page
        ("head", f"under {_size(head)}", "measured with 3,000 segments; grows by one reference for each 65,536 entries"),  # noqa: E501 - text of the page
        ("seek tables", _size(it.seek_bytes), f"records / 64 KiB × {SEEK_ROW.itemsize} bytes"),
        ("page directories", _size(it.directory_bytes), f"index / 64 KiB × {PAGE_ROW.itemsize} bytes"),
        ("key filters", _size(it.filter_bytes), f"items × {DEFAULT_BITS_PER_KEY} bits"),
        ("filters that stay in memory", f"the newest {it.resident_filter_hours:,.1f} h", "cold.filter_bytes / their rate"),  # noqa: E501 - text of the page
        ("writes to its prefix", f"{it.writes_per_s:,.2f}/s",
         f"parts of 8 MiB and {need.segments_per_day:,.0f} segments and index objects a day each; S3 takes {S3_WRITES_PER_S:,} on a prefix"),  # noqa: E501 - text of the page
    ]  # fmt: skip
    newest = 1 + 1 + 1
    merged = 1 + it.asked_merged + 1
    unmerged = int(it.segments) + 2
    every = it.stores
    ask = [
        ("last hour, filters in memory", newest, every + 2, 2, "head, page, frame; where the filter says no, the head alone"),  # noqa: E501 - text of the page
        ("ten years, merged, directories in memory, no filter", merged, (merged - 1) * every + 1, 2,
         f"head, a page of each of 10 years, 11 months, 30 days and {it.unmerged_objects:,.0f} young objects, frame"),
        ("the same from empty caches", 2 * merged, 2 * (merged - 1) * every + 2, 4, "directories and seek table as well, in as many requests again"),  # noqa: E501 - text of the page
        ("ten years, not merged, no filter", unmerged, (unmerged - 1) * every + 1, 2, "a page of every object"),
    ]  # fmt: skip
    lines = [_HEAD, *_of_one_node(), "\n## One store of them, on paper\n\n| | | from |\n|---|---|---|\n"]
    lines += [f"| {name} | {value} | {source} |\n" for name, value, source in one]
    lines.append(
        "\n## One look-up\n\nA topic has a home, so a key is usually asked of one store; of all of them only if stores were added or the topic was moved "  # noqa: E501 - text of the page
        "for a thousand days. Round trips are depth; they do not grow with stores, requests do.\n\n"
        "| for a key in one message | GETs, one store | GETs, all stores | round trips | USD per million, one store | made of |\n|---|---|---|---|---|---|\n"  # noqa: E501 - text of the page
    )
    lines += [
        f"| {name} | {gets:,} | {of_all:,} | {depth} | {gets * USD_PER_READ * 1e6:,.2f} | {source} |\n"
        for name, gets, of_all, depth, source in ask
    ]
    lines.append(
        f"""
One prefix answers {S3_READS_PER_S:,} GETs a second, so a store answers {S3_READS_PER_S // newest:,} young look-ups a second and
{S3_READS_PER_S // merged:,} over ten merged years, however many queriers ask. Stores are below prefixes of their own and add up.

## All of them

| | | from |
|---|---|---|
| bucket | {_size(every * need.bucket_bytes)} | a store's × 1,000 |
| merging | {fast:,.0f} to {slow:,.0f} cores, always; {fast * 24:,.0f} to {slow * 24:,.0f} core-hours a day | items × day, month, year / 2.2 to 2.6 M items a second and core (docs/pipeline.md); without reading from S3, which was not measured |
| cluster table | {it.table_reads_per_s:,.0f} GETs/s | each node once in `cluster.refresh_ms`; one prefix takes {S3_READS_PER_S:,} |
| a querier's list of index objects | {_size(every * it.catalogue_bytes)} | merged objects × {ENTRY_BYTES} bytes (as the code counts one, `benchmarks/index_catalogue.py`), if it reads all stores at all times |
| its page directories, to need two round trips | {_size(every * it.directory_bytes)} | a store's × 1,000; on disk, by use |
| its heads | {_size(every * head)} | a store's × 1,000 |

| USD a month at list prices, in the tenth year | |
|---|---|
"""  # noqa: E501 - text of the page
    )
    lines += [f"| {name} | {usd:,.0f} |\n" for name, usd in bill.items()]
    lines.append(f"| together, without machines, look-ups and what leaves the region | {sum(bill.values()):,.0f} |\n")
    lines.append(
        f"""
## Where the first limit lies

1. **Money.** Storage is {bill["bucket, records and index"] / sum(bill.values()):.1%} of the bill. Expiry, `cold.storage_class` and better compression move this limit; nothing else does.
2. **Not merging.** Ten years are then {it.segments:,.0f} requests for a key in one store. Merging is what makes ten years possible, and
   a core keeps up with {every / slow:,.0f} to {every / fast:,.0f} stores.
3. **A querier over everything.** The list of all index objects of all stores has to be in memory: {_size(every * it.catalogue_bytes)}. Queriers over a part of the stores (`--stores`), larger merged objects (`--max-part-bytes`:
   three times the size is a third of the list; positions in an object have 32 bits), or a catalogue that is paged move this limit. At {every:,} heads, staleness of 10 s is {every / 10:,.0f} GETs a second for each querier that is always busy.
4. **Young objects.** Of the {merged} requests over ten years, {it.unmerged_objects:,.0f} are for the last {24 + LATE_HOURS} h, whose filters do not stay in the
   default memory. {_size(it.young_filter_bytes)} in `cold.filter_bytes` a store avoid them. Filters of everything are {_size(it.filter_bytes)} a store: older objects cost a page each, and merging has made them few.
5. **The bucket's prefixes** are far from their limit for writes ({it.writes_per_s:,.2f} of {S3_WRITES_PER_S:,} a second) and for the table ({it.table_reads_per_s:,.0f} of {S3_READS_PER_S:,}): the latter
   is reached at {S3_READS_PER_S / it.table_reads_per_s * every:,.0f} nodes, and `cluster.refresh_ms` moves that limit.

## What is checked

`tests/docs/test_scale.py` makes small archives with the real codecs and compares: bytes of a manifest entry in a full page, the largest head, a segment's seek table,
a key filter, and this page with its script. Compression, bytes of an index item and of a page directory's rows, rates of merging and the memory of a listed object are taken from the
pages named above. Not examined: Amazon's own scaling of prefixes while load rises, the network of queriers, a thousand nodes that restart at once.
"""  # noqa: E501 - text of the page
    )
    return "".join(lines)


def _of_one_node() -> Iterator[str]:
    """What ``benchmarks/cores.py`` found: a row for each work that had other cores, none of comparisons."""
    found = next(result for result in results() if result.name == "cores")
    rows = [row for row in found.rows if row.target is None]
    yield "\n## What one node does per core, measured\n\n"
    yield f"Medians on {found.setting.partition(', Linux')[0]}, by `{found.command}`; their spread is in [performance.md](performance.md#cores).\n\n"  # noqa: E501 - text of the page
    yield f"| | {' | '.join(rows[0].sides)} | |\n|---|{'---|' * len(rows[0].sides)}---|\n"
    for row in rows:
        figures = (f"{statistics.median(turns):,.0f}" for turns in row.sides.values())
        yield f"| {row.what} | {' | '.join(figures)} | {row.unit} |\n"
    yield _PER_CORE


def _size(count: float) -> str:
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:,.3g} {_UNITS[power]}"


def main() -> int:
    """Writes the page."""
    _PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
