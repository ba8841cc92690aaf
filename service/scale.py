"""What a thousand stores would take, computed from the code's own constants; docs/scale.md is made of it.

Beside the constants it has few measured numbers, each named with where it was measured. tests/unit/test_scale.py
derives the points that small data can show again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from index.index_catalogue import ENTRY_BYTES
from index.key_filter import DEFAULT_BITS_PER_KEY
from index.object_pages import PAGE_ROW
from index.object_writer import DEFAULT_PAGE_BYTES
from service.setting_groups.cluster import ClusterSettings
from service.setting_groups.cold import ColdSettings
from service.sizing import Load, Prices, needs
from tiering.cold.prices import PART_BYTES, USD_PER_READ, USD_PER_WRITE
from tiering.format.sorted_segment import SEEK_ROW
from tiering.options import ColdOptions

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
