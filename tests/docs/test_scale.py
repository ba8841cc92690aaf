"""docs/scale.md is what its script computes, and what it computes with is what real codecs make of small data."""

from __future__ import annotations

import pytest

from docs.tools import scale_page
from docs.tools.scale_page import Scale, page
from docs.tools.sizing import Prices
from tests.support.docs.pages import ROOT
from tests.support.stores.big_archive import BigArchive, Costs
from tierlog.index.format.key_filter import KeyFilter
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.format.sorted_segment import encode_seek_table

_SEGMENTS = 1_200


def test_the_page_is_what_its_script_writes() -> None:
    written = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.tools.scale_page"


def test_manifest_pages_and_heads_are_as_large_as_the_page_says() -> None:
    archive = BigArchive(_SEGMENTS)
    full_page = max(info.size_bytes for info in archive.priced.inner.list("") if "/manifest/log0-" in info.key)
    assert full_page / ColdOptions().page_entries == pytest.approx(scale_page.MANIFEST_ENTRY_BYTES, rel=0.1)
    assert Costs(archive).largest_head <= scale_page.HEAD_BYTES


def test_rows_of_a_seek_table_extrapolate() -> None:
    tables = [len(encode_seek_table([(7_000, 65_536, 1)] * count)) for count in (100, 300)]
    frames = Scale().load.segment_bytes / 65_536
    of_one_segment = tables[0] + (tables[1] - tables[0]) / 200 * (frames - 100)
    assert of_one_segment * Scale().segments == pytest.approx(Scale().seek_bytes, rel=0.01)


def test_bytes_of_filters_extrapolate() -> None:
    made = KeyFilter.sized(100_000, 24)
    assert len(made.encode()) / 100_000 * Scale().items_per_s * 10 * scale_page.YEAR_S == pytest.approx(
        Scale().filter_bytes, rel=0.01
    )


def test_all_stores_are_the_sum_of_each() -> None:
    half, whole = Scale(500, 5e6), Scale(1_000, 10e6)
    assert half.load == whole.load
    assert 2 * sum(half.bill(Prices()).values()) == pytest.approx(sum(whole.bill(Prices()).values()))
    assert whole.load.record_bytes == 300
