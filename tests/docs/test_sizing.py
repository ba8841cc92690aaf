"""The calculator of docs/operations.md agrees with what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.tools.sizing import Load, Prices, bill, main, needs
from tests.support.docs.pages import ROOT
from tierlog.service import demo
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.types import Tier

MONTH_DAYS = 365.25 / 12
SIZES = {"hot.segment_bytes": 1 << 20, "hot.queue_file_units": 2_000, "index.slots": 10_000, "index.items": 40_000}


def test_look_ups_cost_what_the_queries_page_measured() -> None:
    """Columns GETs and USD per million of the table, hit and miss."""
    rows = re.findall(
        r"\| ([\d.,]+) / ([\d.,]+) \| \d \| [^|]* \| ([\d.,]+) / ([\d.,]+) \|", (ROOT / "docs/queries.md").read_text()
    )
    assert len(rows) >= 6
    for row in rows:
        hit, miss, hit_usd, miss_usd = (float(cell.replace(",", "")) for cell in row)
        for gets, usd in ((hit, hit_usd), (miss, miss_usd)):
            load = Load(0, 100, look_ups_per_day=1e6 / MONTH_DAYS, gets_per_look_up=gets)
            assert bill(load, Prices())["look_ups"] == pytest.approx(usd, abs=0.03 + usd / 100)


def test_sizes_are_those_of_a_store_that_was_made(tmp_path: Path) -> None:
    engine = Store.open(tmp_path / "store", cold_url=f"file://{tmp_path}/cold", settings=Settings.load(None, SIZES))
    try:
        demo.load_sample(engine, 4_000)
        engine.archive(everything=True)
        files = engine.files()
        messages = sum(file.records or 0 for file in files if file.kind == "segment" and file.tier is Tier.COLD)
        items = sum(file.records or 0 for file in files if file.kind == "index" and file.tier is Tier.COLD)
        segments = [file.bytes for file in files if file.kind == "segment" and file.tier is Tier.COLD]
        objects = [file.bytes for file in files if file.kind == "index" and file.tier is Tier.COLD]
        records = [message.record for message in engine.pull("shop", 0, 0, limit=500).messages]
    finally:
        engine.close()
    tags = [record.properties.get("TAGS", "") for record in records]
    words = [record.properties.get("KEYS", "").split() for record in records]
    keys = sum(map(len, words)) / len(records)
    load = Load(
        1, sum(len(record.body) for record in records) / len(records), keys=keys,
        key_bytes=sum(len(key) for some in words for key in some) / sum(map(len, words)), topic_bytes=len("shop"),
        property_bytes=sum(len("TAGS") + 2 + len(tag) for tag in tags) / len(tags),
    )  # fmt: skip
    assert load.record_bytes == pytest.approx(sum(record.size for record in records) / len(records), rel=0.03)
    assert keys == pytest.approx(items / messages, rel=0.1)
    raw = messages * load.record_bytes
    assert load.compression == pytest.approx(raw / sum(segments), rel=0.3)
    assert load.index_item_bytes == pytest.approx(sum(objects) / items, rel=0.3)


def test_everything_grows_with_the_load_and_nothing_is_asked_for_nothing() -> None:
    idle, one, two = (needs(Load(rate, 400)) for rate in (0, 1_000, 2_000))
    assert idle.bucket_bytes == idle.writes_per_month == 0
    assert two.bucket_bytes == pytest.approx(2 * one.bucket_bytes)
    assert two.ssd_bytes > one.ssd_bytes > idle.ssd_bytes
    slow = needs(Load(1, 400))
    assert slow.segments_per_day == 24  # one an hour, however little there is
    assert needs(Load(1_000, 400, keys=0)).index_objects_per_day == 0


def test_the_two_forms_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--messages-per-second",
        "1000",
        "--body-bytes",
        "400",
        "--look-ups-per-day",
        "5000",
        "--price-out-gb",
        "0.09",
    ]
    assert main([*given, "--format", "json"]) == 0
    usd = json.loads(capsys.readouterr().out)["usd_per_month"]
    assert usd["total"] == pytest.approx(sum(amount for name, amount in usd.items() if name != "total"))
    assert main(given) == 0
    assert f"{usd['total']:,.2f}" in capsys.readouterr().out
