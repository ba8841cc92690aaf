"""The search of the page: what a person finds, opens, downloads and shares, with mouse and keyboard."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import END_MS, PageWorld, key_in_both_tiers
from tests.support.service.served import served
from tests.support.stores.engines import small_settings
from tests.support.stores.irregular import followed_archive, irregular_log, sent
from tierlog.index.search.query import Query
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.browser

_LINES = ".message .line"


def _texts(page: Page) -> list[str]:
    return page.locator(".message .preview").all_text_contents()


def test_a_key_is_found_in_both_tiers_and_the_address_finds_it_again(browser: Browsing, shop: PageWorld) -> None:
    key = key_in_both_tiers(shop)
    count = len(shop.engine.query(Query("shop", key, limit=500)).messages)
    with browser.at(shop.url) as watched:
        page = watched.page
        page.get_by_label("Topic", exact=True).fill("shop")
        page.get_by_label("Key", exact=True).fill(key)
        page.get_by_label("Per page").select_option("500")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(_LINES)).to_have_count(count)
        expect(page.locator(".verdict")).to_contain_text("Everything asked for was searched")
        tiers = set(page.locator(".message .badge").all_text_contents())
        assert tiers == {"hot", "cold"}
        address, texts = page.url, _texts(page)
        page.get_by_label("Order").select_option("oldest")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(".message .preview").first).to_have_text(texts[-1])
        page.go_back()
        expect(page.locator(".message .preview").first).to_have_text(texts[0])
        expect(page.get_by_label("Order")).to_have_value("newest")
    with browser.at(shop.url, address.removeprefix(shop.url)) as watched:
        expect(watched.page.locator(_LINES)).to_have_count(count)
        assert _texts(watched.page) == texts
        expect(watched.page.get_by_label("Key", exact=True)).to_have_value(key)


def test_pages_follow_each_other_without_loss_or_repeat(browser: Browsing, shop: PageWorld) -> None:
    wanted = [one.record.message_id for one in shop.engine.query(Query("shop", limit=96)).messages]
    with browser.at(shop.url, "/#/search?topic=shop") as watched:
        page = watched.page
        for count in (32, 64):
            expect(page.locator(_LINES)).to_have_count(count)
            expect(page.locator(".verdict")).to_contain_text("as far as this page goes")
            page.get_by_role("button", name="Older messages").click()
        expect(page.locator(_LINES)).to_have_count(96)
        for at in (0, 31, 32, 95):
            page.locator(_LINES).nth(at).click()
            expect(page.locator(".message").nth(at)).to_contain_text(wanted[at])


def test_a_json_body_is_set_out_and_its_bytes_are_shown(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=orders&key=ord-4711") as watched:
        page = watched.page
        page.locator(_LINES).click()
        body = page.locator(".body")
        expect(body).to_contain_text('"total": 1249.5,\n  "note": null')
        page.get_by_role("button", name="Hex").click()
        expect(body).to_contain_text("7b 22 6f 72 64 65 72 22")
        page.get_by_role("button", name="Text", exact=True).click()
        expect(body).to_contain_text('{"order": 4711, "city": "Köln"')
        expect(page.locator(".properties")).to_contain_text("trace")


def test_a_dry_run_says_what_a_search_would_cost_without_asking_the_archive(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search") as watched:
        page = watched.page
        page.get_by_label("Topic", exact=True).fill("shop")
        page.get_by_label("Key", exact=True).fill("10.1.1.1")
        page.get_by_role("button", name="What would it cost?").click()
        expect(page.locator(".estimate")).to_contain_text("USD")
        expect(page.locator(_LINES)).to_have_count(0)


def test_all_messages_are_downloaded_as_ndjson_and_as_parquet(
    browser: Browsing, shop: PageWorld, tmp_path: Path
) -> None:
    key = key_in_both_tiers(shop)
    ids = [one.record.message_id for one in shop.engine.query(Query("shop", key, limit=5000)).messages]
    with browser.at(shop.url, f"/#/search?topic=shop&key={quote(key)}") as watched:
        page = watched.page
        found = {}
        for form in ("NDJSON", "Parquet"):
            with page.expect_download() as download:
                page.get_by_role("button", name=form).click()
            file = tmp_path / download.value.suggested_filename
            download.value.save_as(file)
            found[form] = file.read_bytes()
            expect(page.locator(".saving")).to_contain_text(f"of {form}")
        assert file.name == f"shop-{key}.parquet"
    *lines, last = [json.loads(line) for line in found["NDJSON"].splitlines()]
    assert [line["message_id"] for line in lines] == ids
    assert last["coverage"]["complete"] is True
    assert pq.read_table(io.BytesIO(found["Parquet"]))["message_id"].to_pylist() == ids


def test_everything_goes_by_keyboard(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=orders") as watched:
        page = watched.page
        expect(page.locator(_LINES)).to_have_count(12)
        page.keyboard.press("/")
        expect(page.get_by_label("Key", exact=True)).to_be_focused()
        page.keyboard.type("ord-4712")
        page.keyboard.press("Enter")
        expect(page.locator(_LINES)).to_have_count(1)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        expect(page.locator(_LINES)).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".body")).to_contain_text("4712")
        page.keyboard.press("Escape")
        expect(page.locator(".body")).to_have_count(0)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("next, previous message")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        for second, title in (("t", "Topics"), ("g", "Consumer groups"), ("o", "Store")):
            page.keyboard.press("g")
            page.keyboard.press(second)
            expect(page.locator(".view-head h2")).to_have_text(title)


def test_a_wrong_time_is_refused_at_its_field(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=shop&from=last+tuesday") as watched:
        page = watched.page
        expect(page.get_by_role("alert")).to_contain_text("last tuesday is no time")
        expect(page.get_by_label(re.compile("^From"))).to_have_attribute("aria-invalid", "true")


def _zones(page: Page) -> set[str]:
    return {text.strip() for text in page.locator(".message .zone").all_text_contents()}


def test_times_are_all_utc_or_all_local_and_say_which(browser: Browsing, shop: PageWorld) -> None:
    last_hour = f"/#/search?topic=orders&from={END_MS - 4 * 3_600_000}"
    with browser.at(shop.url, last_hour, timezone_id="Asia/Kolkata") as watched:
        page = watched.page
        expect(page.locator(_LINES)).to_have_count(12)
        assert _zones(page) == {"UTC"}
        expect(page.locator(".message time").first).to_contain_text("2026-03-03 10:00:00")
        page.keyboard.press("t")
        assert _zones(page) == {"+05:30"}
        expect(page.locator(".message time").first).to_contain_text("2026-03-03 15:30:00")
        expect(page.locator(".messages-head")).to_contain_text("local, Asia/")
        expect(page.locator(".zone-note")).to_contain_text("local, Asia/")
        page.get_by_role("button", name="Custom").click()
        page.get_by_label(re.compile("^From .local")).fill("2026-03-03 15:29")
        page.get_by_label(re.compile("^To, exclusive .local")).fill("2026-03-03 15:31")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(_LINES)).to_have_count(12)
        assert "%2B05%3A30" in page.url
        page.keyboard.press("Escape")
        page.locator("#zone").click()
        expect(page.get_by_label(re.compile("^From .UTC"))).to_have_value("2026-03-03T09:59:00.000Z")


def test_a_narrow_screen_and_dark_colours(browser: Browsing, shop: PageWorld) -> None:
    window: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}
    with browser.at(shop.url, "/#/search?topic=shop", **window) as watched:
        page = watched.page
        expect(page.locator(_LINES)).to_have_count(32)
        page.locator(_LINES).first.click()
        for view in ("search?topic=shop", "tail?topic=shop&last=20", "message", "topics", "groups", "store"):
            page.goto(f"{shop.url}/#/{view}")
            expect(page.locator("#main > *")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        color = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(color) == "rgb(15, 19, 24)"
        page.locator("#theme").click()
        assert page.evaluate(color) == "rgb(246, 247, 249)"
        page.reload()
        assert page.evaluate(color) == "rgb(246, 247, 249)"


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_what_messages_say_is_text_and_never_markup(browser: Browsing, world: PageWorld) -> None:
    body = json.dumps({HOSTILE: [HOSTILE]}).encode()
    key = "<svg/onload=alert(3)>"
    world.engine.append(
        [Message("hostile", body, [key], HOSTILE, {"p<b>": HOSTILE}), Message("hostile", HOSTILE.encode(), [key])]
    )
    world.settle()
    with browser.at(world.url, f"/#/search?topic=hostile&key={quote(key)}") as watched:
        page = watched.page
        ran: list[str] = []

        def dismiss(dialog: Dialog) -> None:
            ran.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", dismiss)
        expect(page.locator(_LINES)).to_have_count(2)
        expect(page.locator(".message .preview").first).to_have_text(HOSTILE)
        for line in page.locator(_LINES).all():
            line.click()
        expect(page.locator(".properties").last).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Text", exact=True).last.click()
        page.get_by_role("button", name="Hex").first.click()
        assert (
            page.evaluate("document.querySelectorAll('main img, main script, main b:not(.tile b, .state b)').length")
            == 0
        )
        page.goto(f"{world.url}/#/search?topic={quote(HOSTILE)}&key={quote(HOSTILE)}")
        expect(page.get_by_role("alert").last).to_contain_text("topic")
        assert ran == []
        watched.allowed = ("status of 40",)  # no topic has such a name


def test_a_generation_of_a_topic_is_found_among_the_topics_searched_and_followed(
    browser: Browsing, tmp_path: Path
) -> None:
    log = irregular_log([*sent("orders", 0, range(12)), *sent("orders", 0, range(8), 12)])
    with followed_archive(tmp_path, log) as store, served(store.store, small_settings()) as url:
        store._hot.dispatch()
        for name, count in (("orders@1", 12), ("orders", 20)):
            with browser.at(url, "/#/topics") as watched:
                page = watched.page
                page.get_by_role("link", name=name, exact=True).click()
                expect(page.get_by_label("Topic", exact=True)).to_have_value(name)
                expect(page.locator(_LINES)).to_have_count(count)
                expect(page.locator(".verdict")).to_contain_text("Everything asked for was searched")
        with browser.at(url, "/#/topics") as watched:
            watched.page.get_by_role("link", name="Follow orders@1 live").click()
            expect(watched.page.get_by_label("Topic", exact=True)).to_have_value("orders@1")
