"""Computes what a store will take and cost: ``python -m docs.tools.sizing --messages-per-second 5000 …``.

docs/operations.md has the formulas in words. Everything that the code fixes comes from the code; what depends on the
messages (how well they compress, bytes of an index item) has defaults that were measured, and a flag.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil

from tierlog.index.format.header import SLOT_BYTES
from tierlog.index.format.layout import TIERLOG
from tierlog.service.config.store import ColdSettings, IndexSettings
from tierlog.tiering.format.queue_unit import UNIT
from tierlog.tiering.format.record import FIXED_BYTES_V1
from tierlog.tiering.hot.identity import DEFAULT_SEGMENT_BYTES
from tierlog.tiering.objects.object_store import PART_BYTES, USD_PER_READ, USD_PER_WRITE

_DAY_S = 86_400
_MONTH_S = 365.25 / 12 * _DAY_S
_GB = 1e9
#: Requests to publish one object, beside those for its parts: the manifest's pages, queue rows and head, and checks.
_WRITES_AN_OBJECT, _READS_AN_OBJECT = 3, 8
#: What an idle store asks: a look at the head every 10 s.
_LOOKS_A_MONTH = _MONTH_S / 10
#: An interpreter with everything loaded and its threads, measured.
_PROCESS_BYTES = 250 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in, how long it stays, and what is asked. Sizes are averages in bytes of UTF-8."""

    messages_per_second: float
    body_bytes: float
    keys: float = 1.0
    """Of a message."""
    key_bytes: float = 16.0
    topic_bytes: float = 8.0
    property_bytes: float = 0.0
    """Of tag and properties as text, two separators each."""
    hot_hours: float = 24.0
    retention_days: float = 365.0
    look_ups_per_day: float = 0.0
    gets_per_look_up: float = 3.0
    """docs/queries.md has them for filters in memory or not, merged or not."""
    compression: float = 4.0
    """Bytes of records for each byte archived."""
    index_item_bytes: float = 13.0
    """Of an index object for each key of a message, its filter among them."""
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    roll_hours: float = 1.0

    @property
    def record_bytes(self) -> float:
        """A message in the log."""
        keys = len("KEYS") + 2 + self.keys * self.key_bytes + max(0.0, self.keys - 1) if self.keys else 0.0
        return FIXED_BYTES_V1 + self.topic_bytes + self.body_bytes + keys + self.property_bytes


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices in USD; requests are those of :mod:`tierlog.tiering.objects.object_store`."""

    bucket_gb_month: float = 0.023
    ssd_gb_month: float = 0.08
    out_gb: float = 0.0
    """Of what leaves the bucket; nothing inside its region."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the load takes."""

    ssd_bytes: float
    memory_bytes: float
    bucket_bytes: float
    flushed_bytes_per_s: float
    uploaded_bytes_per_s: float
    index_objects_per_day: float
    segments_per_day: float
    writes_per_month: float
    reads_per_month: float


def needs(load: Load) -> Needs:
    """Returns sizes when retention is reached, rates, and requests."""
    rate = load.messages_per_second
    cold, index = ColdSettings(), IndexSettings()
    message = load.record_bytes + UNIT.size
    items = rate * load.keys
    item = TIERLOG.chained_bytes + SLOT_BYTES * index.slots / index.items
    kept_s = load.hot_hours * 3600
    segments = max(rate * load.record_bytes * _DAY_S / load.segment_bytes, 24 / load.roll_hours if rate else 0.0)
    objects = segments if load.keys else 0.0  # at most one a segment; large files make fewer
    archived = rate * load.record_bytes / load.compression + items * load.index_item_bytes
    parts = archived * _MONTH_S / PART_BYTES
    published = (segments + objects) * _MONTH_S / _DAY_S
    look_ups = load.look_ups_per_day * _MONTH_S / _DAY_S
    return Needs(
        # the segment that is written, the one made beside it, and an index file in both of its forms
        ssd_bytes=(
            kept_s * (rate * message + items * item)
            + 2 * load.segment_bytes
            + 2 * index.items * item
            + cold.disk_cache_bytes
        ),
        memory_bytes=_PROCESS_BYTES + cold.cache_bytes + cold.filter_bytes + cold.read_ahead_bytes
        + _archiving_bytes(load),
        bucket_bytes=archived * load.retention_days * _DAY_S,
        flushed_bytes_per_s=rate * message + items * item,
        uploaded_bytes_per_s=archived,
        index_objects_per_day=objects,
        segments_per_day=segments,
        writes_per_month=published * (_WRITES_AN_OBJECT + 2) + parts,
        reads_per_month=published * _READS_AN_OBJECT + _LOOKS_A_MONTH + look_ups * load.gets_per_look_up,
    )  # fmt: skip


def _archiving_bytes(load: Load) -> float:
    """Returns twelve bytes a record of the segment that is being archived, and two parts."""
    return 12 * load.segment_bytes / load.record_bytes + 2 * PART_BYTES


def bill(load: Load, prices: Prices) -> dict[str, float]:
    """Returns USD a month by position, with the archive at its full length."""
    need = needs(load)
    look_ups = load.look_ups_per_day * _MONTH_S / _DAY_S * load.gets_per_look_up
    positions = {
        "bucket_storage": need.bucket_bytes / _GB * prices.bucket_gb_month,
        "bucket_writes": need.writes_per_month * USD_PER_WRITE,
        "bucket_reads_of_the_store": (need.reads_per_month - look_ups) * USD_PER_READ,
        "look_ups": look_ups * USD_PER_READ,
        "ssd": need.ssd_bytes / _GB * prices.ssd_gb_month,
    }
    return {**positions, "total": sum(positions.values())}


def main(argv: Sequence[str] | None = None) -> int:
    """Prints needs and bill; returns the exit code."""
    arguments = parser().parse_args(argv)
    load = Load(**{field.name: getattr(arguments, field.name) for field in fields(Load)})
    prices = Prices(**{field.name: getattr(arguments, field.name) for field in fields(Prices)})
    if arguments.format == "json":
        print(json.dumps({"needs": asdict(needs(load)), "usd_per_month": bill(load, prices)}))
        return 0
    need = needs(load)
    for name, text in (
        ("record", f"{load.record_bytes:,.0f} bytes in the log"),
        ("SSD", f"{need.ssd_bytes / _GB:,.1f} GB, written at {need.flushed_bytes_per_s / 1e6:,.1f} MB/s"),
        ("memory", f"{need.memory_bytes / _GB:,.1f} GB"),
        ("bucket", f"{need.bucket_bytes / _GB:,.1f} GB, uploaded at {need.uploaded_bytes_per_s / 1e6:,.2f} MB/s"),
        ("objects", f"{need.segments_per_day:,.0f} segments and {need.index_objects_per_day:,.0f} index objects a day"),
        ("requests", f"{ceil(need.writes_per_month):,} writes and {ceil(need.reads_per_month):,} reads a month"),
    ):
        print(f"{name:<9} {text}")
    print("USD a month")
    for name, usd in bill(load, prices).items():
        print(f"  {name.replace('_', ' '):<26} {usd:>10,.2f}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Returns a parser with a flag for each field of :class:`Load` and :class:`Prices`."""
    made = argparse.ArgumentParser(prog="python -m docs.tools.sizing", description=__doc__.partition("\n")[0])
    for kind, defaults in ((Load, Load(0, 0)), (Prices, Prices())):
        for field in fields(kind):
            default = getattr(defaults, field.name)
            needed = field.name in ("messages_per_second", "body_bytes")
            usd = "USD, " if kind is Prices else ""
            made.add_argument(
                f"--{'price-' if kind is Prices else ''}{field.name.replace('_', '-')}", dest=field.name,
                type=type(default) if not needed else float, default=default, required=needed, metavar="N",
                help=None if needed else f"{usd}{default:,} unless told",
            )  # fmt: skip
    made.add_argument("--format", choices=("text", "json"), default="text")
    return made


if __name__ == "__main__":
    sys.exit(main())
