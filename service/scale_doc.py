"""Writes ``docs/scale.md`` out of :class:`service.scale.Scale`: ``python -m service.scale_doc``."""

from __future__ import annotations

import sys
from pathlib import Path

from index.index_catalogue import ENTRY_BYTES
from index.key_filter import DEFAULT_BITS_PER_KEY
from index.object_pages import PAGE_ROW
from service import scale
from service.scale import Scale
from service.sizing import Prices, needs
from tiering.cold.prices import USD_PER_READ
from tiering.format.sorted_segment import SEEK_ROW
from tiering.options import ColdOptions

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_HEAD = """# Past one cluster, on paper

<!-- Made by `python -m service.scale_doc` from service/scale.py. Change it there. -->

Nobody has run this. It is arithmetic: 1,000 stores that take 10 million messages a second together, records of 300 bytes with two
keys of 16, everything kept for ten years in one region, segments and settings at their defaults. Each line has its formula;
constants come from the code, and what was measured is named. Loads are even, which real ones are not: the busiest store decides.
"""  # noqa: E501 - text of the page


def page() -> str:
    """The whole page."""
    it, options, prices = Scale(), ColdOptions(), Prices()
    load, need = it.load, needs(it.load)
    slow, fast = it.merge_cores()[1], it.merge_cores()[0]
    bill = it.bill(prices)
    entry, head = scale.MANIFEST_ENTRY_BYTES, scale.HEAD_BYTES
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
         f"index / 600 MB, and {it.unmerged_objects:,.0f} of the last {24 + scale.LATE_HOURS} h"),
        ("manifest pages", f"{it.pages:,.0f}; {_size(it.pages * options.page_entries * entry)}",
         f"(segments + merged objects) / {options.page_entries} entries × {entry} bytes (measured), if full; at most twice as many"),  # noqa: E501 - text of the page
        ("between head and entry", f"{it.manifest_levels} pages", f"fan-out {options.page_entries}, {options.max_inline_entries} entries inline"),  # noqa: E501 - text of the page
        ("head", f"under {_size(head)}", "measured with 3,000 segments; grows by one reference for each 65,536 entries"),  # noqa: E501 - text of the page
        ("seek tables", _size(it.seek_bytes), f"records / 64 KiB × {SEEK_ROW.itemsize} bytes"),
        ("page directories", _size(it.directory_bytes), f"index / 64 KiB × {PAGE_ROW.itemsize} bytes"),
        ("key filters", _size(it.filter_bytes), f"items × {DEFAULT_BITS_PER_KEY} bits"),
        ("filters that stay in memory", f"the newest {it.resident_filter_hours:,.1f} h", "cold.filter_bytes / their rate"),  # noqa: E501 - text of the page
        ("writes to its prefix", f"{it.writes_per_s:,.2f}/s",
         f"parts of 8 MiB and {need.segments_per_day:,.0f} segments and index objects a day each; S3 takes {scale.S3_WRITES_PER_S:,} on a prefix"),  # noqa: E501 - text of the page
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
    lines = [_HEAD, "\n## One store of them\n\n| | | from |\n|---|---|---|\n"]
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
One prefix answers {scale.S3_READS_PER_S:,} GETs a second, so a store answers {scale.S3_READS_PER_S // newest:,} young look-ups a second and
{scale.S3_READS_PER_S // merged:,} over ten merged years, however many queriers ask. Stores are below prefixes of their own and add up.

## All of them

| | | from |
|---|---|---|
| bucket | {_size(every * need.bucket_bytes)} | a store's × 1,000 |
| merging | {fast:,.0f} to {slow:,.0f} cores, always; {fast * 24:,.0f} to {slow * 24:,.0f} core-hours a day | items × day, month, year / 2.2 to 2.6 M items a second and core (docs/pipeline.md); without reading from S3, which was not measured |
| cluster table | {it.table_reads_per_s:,.0f} GETs/s | each node once in `cluster.refresh_ms`; one prefix takes {scale.S3_READS_PER_S:,} |
| a querier's list of index objects | {_size(every * it.catalogue_bytes)} | merged objects × {ENTRY_BYTES} bytes (measured, `benchmarks/index_catalogue.py`), if it reads all stores at all times |
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

1. **Money.** Storage is {bill["bucket, records and index"] / sum(bill.values()):.1%} of the bill. Expiry, `cold.storage_class` and better compression move it; nothing else does.
2. **Not merging.** Ten years are then {it.segments:,.0f} requests for a key in one store. Merging is what makes ten years possible, and
   a core keeps up with {every / slow:,.0f} to {every / fast:,.0f} stores.
3. **A querier over everything.** The list of all index objects of all stores has to be in memory: {_size(every * it.catalogue_bytes)}. Queriers over a part of the stores (`--stores`), larger merged objects (`--max-part-bytes`:
   three times the size is a third of the list; positions in an object have 32 bits), or a catalogue that pages move it. At {every:,} heads, staleness of 10 s is {every / 10:,.0f} GETs a second for each querier that is always asked.
4. **Young objects.** Of the {merged} requests over ten years, {it.unmerged_objects:,.0f} are for the last {24 + scale.LATE_HOURS} h, whose filters do not stay in the
   default memory. {_size(it.young_filter_bytes)} in `cold.filter_bytes` a store take them away. Filters of everything are {_size(it.filter_bytes)} a store: older objects cost a page each, which merging has made few.
5. **The bucket's prefixes** are far away for writes ({it.writes_per_s:,.2f} of {scale.S3_WRITES_PER_S:,} a second) and for the table ({it.table_reads_per_s:,.0f} of {scale.S3_READS_PER_S:,}): that one
   ends at {scale.S3_READS_PER_S / it.table_reads_per_s * every:,.0f} nodes, and `cluster.refresh_ms` moves it.

## What is checked

`tests/unit/test_scale.py` makes small archives with the real codecs and compares: bytes of a manifest entry in a full page, the largest head, a segment's seek table,
a key filter, and this page with its script. Compression, bytes of an index item and of a page directory's rows, rates of merging and the memory of a listed object are taken over from
the pages that are named. Not looked at: Amazon's own scaling of prefixes while load rises, network of queriers, a thousand nodes that restart at once.
"""  # noqa: E501 - text of the page
    )
    return "".join(lines)


def _size(count: float) -> str:
    power = 0
    while count >= 1000 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:,.3g} {_UNITS[power]}"


def main() -> int:
    """Write the page."""
    _PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
