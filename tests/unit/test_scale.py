"""docs/scale.md is what its script computes, and what it computes with is what real codecs make of small data."""

from __future__ import annotations

import pytest

from index.key_filter import KeyFilter
from service import scale
from service.scale import Scale
from service.scale_doc import page
from service.sizing import Prices
from tests.support.big_archive import BigArchive, Costs
from tests.support.docs.pages import ROOT
from tiering.format.sorted_segment import encode_seek_table
from tiering.options import ColdOptions

_SEGMENTS = 1_200


def test_the_page_is_what_its_script_writes() -> None:
    written = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m service.scale_doc"


def test_manifest_pages_and_heads_are_as_large_as_the_page_says() -> None:
    archive = BigArchive(_SEGMENTS)
    full_page = max(info.size_bytes for info in archive.priced.inner.list("") if "/manifest/log0-" in info.key)
    assert full_page / ColdOptions().page_entries == pytest.approx(scale.MANIFEST_ENTRY_BYTES, rel=0.1)
    assert Costs(archive).largest_head <= scale.HEAD_BYTES


def test_rows_of_a_seek_table_extrapolate() -> None:
    tables = [len(encode_seek_table([(7_000, 65_536, 1)] * count)) for count in (100, 300)]
    frames = Scale().load.segment_bytes / 65_536
    of_one_segment = tables[0] + (tables[1] - tables[0]) / 200 * (frames - 100)
    assert of_one_segment * Scale().segments == pytest.approx(Scale().seek_bytes, rel=0.01)


def test_bytes_of_filters_extrapolate() -> None:
    made = KeyFilter.sized(100_000, 24)
    assert len(made.encode()) / 100_000 * Scale().items_per_s * 10 * scale.YEAR_S == pytest.approx(
        Scale().filter_bytes, rel=0.01
    )


def test_all_stores_are_the_sum_of_each() -> None:
    half, whole = Scale(500, 5e6), Scale(1_000, 10e6)
    assert half.load == whole.load
    assert 2 * sum(half.bill(Prices()).values()) == pytest.approx(sum(whole.bill(Prices()).values()))
    assert whole.load.record_bytes == 300
