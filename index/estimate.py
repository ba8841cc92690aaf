"""What a query may cost, as a dry run tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tiering.cold.prices import usd_of


class Span(NamedTuple):
    """At least, probably and at most."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def to_json(self) -> dict[str, int]:
        """By name."""
        return self._asdict()


@dataclass(slots=True)
class Estimate:
    """The cost of the first page, beside what is in memory and on disk now.

    ``requests.most`` is enough while nothing fails, nothing is published meanwhile and the caches keep what the query
    brings; it takes every item of an index object that is not ruled out for one of the key, unless its pages are known.
    ``likely`` takes the key to be in every object whose filter does not rule it out, and in no object without one.
    """

    requests: Span
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
        """The ``estimate`` object of an answer."""
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
