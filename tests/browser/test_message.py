"""A link to one message: it is opened, copied, and shows the message whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import PageWorld
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Order

pytestmark = pytest.mark.browser

_LINES = ".message .line"
_COPIES: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}


def test_a_message_is_opened_alone_from_what_was_found_and_its_link_opens_it_again(
    browser: Browsing, shop: PageWorld
) -> None:
    with browser.at(shop.url, "/#/search?topic=orders&key=ord-4715", **_COPIES) as watched:
        page = watched.page
        page.locator(_LINES).click()
        page.get_by_role("button", name="Copy link").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        link = page.evaluate("navigator.clipboard.readText()")
        page.get_by_role("link", name="Permalink").click()
        whole = page.get_by_role("article", name="The message")
        expect(whole.locator(".body")).to_contain_text('"order": 4715,\n  "city": "Köln"')
        expect(whole).to_contain_text("ord-4715")
        expect(whole.locator(".properties")).to_contain_text("trace")
        assert page.url == link
        page.go_back()
        expect(page.locator(_LINES)).to_have_count(1)
    with browser.at(shop.url, link.removeprefix(shop.url)) as watched:
        page = watched.page
        expect(page.locator(".body")).to_contain_text('"order": 4715')
        page.get_by_role("link", name="Messages around it").click()
        expect(page.locator(_LINES)).to_have_count(12)
        expect(page.get_by_label("Topic", exact=True)).to_have_value("orders")


def test_a_message_is_opened_by_its_id_or_by_a_link_that_is_pasted(browser: Browsing, shop: PageWorld) -> None:
    cold, hot = (
        shop.engine.query(Query("shop", limit=1, order=order)).messages[0] for order in (Order.OLDEST, Order.NEWEST)
    )
    with browser.at(shop.url, "/#/message", allowed=("404",)) as watched:
        page = watched.page
        field = page.get_by_label("Message id")
        field.fill(cold.record.message_id)
        field.press("Enter")
        whole = page.get_by_role("article", name="The message")
        expect(whole.locator(".badge")).to_have_text("cold")
        assert page.locator(".body").text_content() == cold.record.body.decode()
        field.fill(f"http://elsewhere/#/message/{hot.record.message_id}?store_id={shop.engine.store_id}")
        page.get_by_role("button", name="Open").click()
        expect(whole.locator(".badge")).to_have_text("hot")
        expect(page).to_have_url(re.compile(f"store_id={shop.engine.store_id}$"))
        field.fill("7F00000100002A9F0000000000000001")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("no message has the id")
        expect(whole).to_have_count(0)


def test_a_body_is_saved_byte_by_byte(browser: Browsing, shop: PageWorld) -> None:
    found = shop.engine.query(Query("orders", limit=1)).messages[0].record
    with browser.at(shop.url, f"/#/message/{found.message_id}") as watched:
        with watched.page.expect_download() as download:
            watched.page.get_by_role("button", name="Save body").click()
        assert download.value.path().read_bytes() == found.body
