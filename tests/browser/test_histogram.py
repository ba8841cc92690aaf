"""Messages over time above what was found: bars that are chosen with mouse and keyboard, and narrow the search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import END_MS, HISTORY_MS, PageWorld, key_in_both_tiers
from tierlog.index.search.counts import CountQuery
from tierlog.index.search.query import Query

pytestmark = pytest.mark.browser

_LINES = ".message .line"
_HOUR = 3_600_000
_START_MS = END_MS - HISTORY_MS


def _counting(page: Page, *, exact: bool = True) -> list[Mapping[str, list[str]]]:
    """The service counts: in every hour as many messages as its number, over the story's two days or what is asked."""
    asked: list[Mapping[str, list[str]]] = []

    def answer(route: Route) -> None:
        url = urlsplit(route.request.url)
        asked.append(parse_qs(url.query))
        first, end = (
            int(asked[-1].get(name, [str(otherwise)])[0]) for name, otherwise in (("from", _START_MS), ("to", END_MS))
        )
        counts = [{"from_ms": ms, "messages": (ms - _START_MS) // _HOUR} for ms in range(first, end, _HOUR)]
        route.fulfill(
            json={
                "topic": url.path.split("/")[3],
                "time": asked[-1]["time"][0],
                "from_ms": first,
                "to_ms": end,
                "interval_ms": _HOUR,
                "exact": exact,
                "total": sum(one["messages"] for one in counts),
                "counts": counts,
            }
        )

    page.route(re.compile(r"/v1/topics/[^/]+/counts\?"), answer)
    return asked


def _bars(page: Page) -> Locator:
    return page.locator(".bar")


def test_the_bars_are_what_the_service_counts(browser: Browsing, shop: PageWorld) -> None:
    counted = shop.engine.counts(CountQuery("shop")).to_json()
    assert counted["total"]
    with browser.at(shop.url, "/#/search?topic=shop") as watched:
        page = watched.page
        told = page.locator(".histogram-head")
        expect(told).to_contain_text(f"{counted['total']:,} messages, a bar is")
        page.locator("svg.bars").focus()
        page.keyboard.press("ArrowLeft")
        expect(told).to_contain_text(re.compile(r" to .*: [1-9][\d,]* message"))
        inside = int((told.text_content() or "").rpartition(": ")[2].split()[0].replace(",", ""))
        page.keyboard.press("Enter")
        expect(told).to_contain_text(f"{inside:,} message")


def test_a_bar_that_is_clicked_and_a_range_that_is_dragged_narrow_the_search(
    browser: Browsing, shop: PageWorld
) -> None:
    with browser.at(shop.url) as watched:
        page = watched.page
        asked = _counting(page)
        page.goto(f"{shop.url}/#/search?topic=shop")
        told = page.locator(".histogram-head")
        expect(told).to_contain_text("1,128 messages, a bar is 1 h")
        expect(_bars(page)).to_have_count(47)
        assert asked[0]["time"] == ["store"]
        assert "from" not in asked[0]
        from_box, to_box = _bars(page).nth(9).bounding_box(), _bars(page).nth(19).bounding_box()
        assert from_box is not None
        assert to_box is not None
        page.mouse.move(to_box["x"] + 3, to_box["y"] + 2)
        page.mouse.down()
        page.mouse.move(from_box["x"] + 3, from_box["y"] + 2, steps=5)
        expect(told).to_contain_text("2026-03-01 22:00:00.000 UTC to 2026-03-02 09:00:00.000 UTC: 165 messages")
        page.mouse.up()
        expect(page.locator(_LINES).first).to_be_visible()
        narrow = {name: int(asked[-1][name][0]) for name in ("from", "to")}
        assert narrow == {"from": _START_MS + 10 * _HOUR, "to": _START_MS + 21 * _HOUR}
        expect(_bars(page)).to_have_count(11)
        expect(page.get_by_label(re.compile("^From"))).to_have_value("2026-03-01T22:00:00.000Z")
        _bars(page).last.click(force=True)
        expect(_bars(page)).to_have_count(1)
        assert int(asked[-1]["from"][0]) == _START_MS + 20 * _HOUR
        page.go_back()
        expect(_bars(page)).to_have_count(11)


def test_bars_are_chosen_by_keyboard_and_said(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url) as watched:
        page = watched.page
        asked = _counting(page, exact=False)
        page.goto(f"{shop.url}/#/search?topic=shop&time=born")
        expect(page.locator(".histogram-head")).to_contain_text("about 1,128 messages")
        page.locator("svg.bars").focus()
        for pressed in ("ArrowLeft", "ArrowLeft", "Shift+ArrowLeft"):
            page.keyboard.press(pressed)
        expect(page.locator("#said")).to_contain_text("91 messages")
        page.keyboard.press("Escape")
        expect(page.locator(".histogram-head")).to_contain_text("about 1,128 messages")
        for pressed in ("ArrowLeft", "Shift+ArrowLeft", "Enter"):
            page.keyboard.press(pressed)
        expect(_bars(page)).to_have_count(2)
        assert int(asked[-1]["from"][0]) == END_MS - 2 * _HOUR
        assert asked[-1]["time"] == ["born"]


def test_with_a_key_the_messages_that_are_loaded_are_counted(browser: Browsing, shop: PageWorld) -> None:
    address = key_in_both_tiers(shop)
    found = shop.engine.query(Query("shop", address, limit=500)).messages
    assert len(found) > 3
    with browser.at(shop.url) as watched:
        page = watched.page
        asked = _counting(page)
        page.goto(f"{shop.url}/#/search?topic=shop&key={address}&limit=500")
        expect(page.locator(".histogram-head")).to_contain_text(f"of the {len(found)} messages loaded")
        assert asked == []
        _bars(page).first.click(force=True)
        expect(page.get_by_label("Key", exact=True)).to_have_value(address)
        expect(page.locator(".bounds")).to_be_visible()
        expect(page.locator(_LINES).first).to_be_visible()
        assert page.locator(_LINES).count() < len(found)


def test_a_service_that_does_not_count_is_searched_all_the_same(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, allowed=("404",)) as watched:
        page = watched.page
        page.route(re.compile(r"/counts\?"), lambda route: route.fulfill(status=404))
        page.goto(f"{shop.url}/#/search?topic=orders")
        expect(page.locator(_LINES)).to_have_count(12)
        expect(page.locator(".histogram")).to_be_hidden()
