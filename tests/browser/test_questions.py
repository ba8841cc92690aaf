"""What a question on the page may say: filters and times as people type them; and what an answer says about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import END_MS, PageWorld

pytestmark = pytest.mark.browser

_LINES = ".message .line"
_HOUR = 3_600_000
_FILTERS = ("tag", "contains", "where")

Asked = Mapping[str, list[str]]


def _answered(page: Page, change: Callable[[Asked, dict[str, Any]], None]) -> list[Asked]:
    """Changes the answers to searches before the page has them; gives what is asked."""
    asked: list[Asked] = []

    def answer(route: Route) -> None:
        asked.append(parse_qs(urlsplit(route.request.url).query))
        response = route.fetch()
        found = response.json()
        change(asked[-1], found)
        route.fulfill(response=response, body=json.dumps(found))

    page.route(re.compile(r"/v1/topics/[^/]+/messages\?"), answer)
    return asked


def _as_it_is(_: Asked, __: dict[str, Any]) -> None:
    """Changes nothing."""


def test_filters_are_asked_for_and_kept_in_the_address(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url) as watched:
        page = watched.page
        asked = _answered(page, _as_it_is)
        page.get_by_label("Topic", exact=True).fill("orders")
        page.get_by_label("Tag", exact=True).fill("paid || sent")
        page.get_by_label("Body contains", exact=True).fill("Köln")
        page.get_by_role("button", name="Body contains: one more").click()
        page.get_by_label("Body contains, 2", exact=True).fill('"express": true')
        page.get_by_role("button", name="Property or field: one more").click()
        page.get_by_label("Property or field, 2", exact=True).fill("trace=t-1")
        page.get_by_label("Property or field", exact=True).fill("order=4714")
        page.get_by_label("Tag", exact=True).press("Enter")
        expect(page.locator(_LINES)).to_have_count(1)
        expect(page.locator(".coverage .sum")).to_contain_text("12 messages read, 1 matched")
        wanted = {
            "tag": ["paid || sent"],
            "contains": ["Köln", '"express": true'],
            "where": ["order=4714", "trace=t-1"],
        }
        assert {name: asked[-1].get(name) for name in _FILTERS} == wanted
        expect(page.locator(".preview mark")).to_have_text(["4714", "Köln", '"express": true'])
        page.reload()
        expect(page.get_by_label("Property or field, 2", exact=True)).to_have_value("trace=t-1")
        expect(page.get_by_label("Tag", exact=True)).to_have_value("paid || sent")
        expect(page.locator(_LINES)).to_have_count(1)
        page.get_by_role("button", name="Body contains, 2: remove").click()
        page.get_by_label("Property or field", exact=True).fill("order=4713")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(".preview")).to_contain_text('"order": 4713')
        assert asked[-1]["contains"] == ["Köln"]


def test_a_condition_without_a_value_is_refused_at_its_field(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=shop&where=a%3Db&where=city") as watched:
        page = watched.page
        expect(page.get_by_role("alert")).to_contain_text("city is no condition")
        expect(page.get_by_label("Property or field, 2", exact=True)).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Property or field", exact=True)).not_to_have_attribute("aria-invalid", "true")


def test_a_page_that_was_cut_goes_on_where_it_stopped(browser: Browsing, shop: PageWorld) -> None:
    def cut(asked: Asked, answer: dict[str, Any]) -> None:
        if "cursor" not in asked:
            answer["messages"] = []
            answer["coverage"].update(complete=False, cut_by="budget")

    with browser.at(shop.url) as watched:
        page = watched.page
        asked = _answered(page, cut)
        page.goto(f"{shop.url}/#/search?topic=shop&contains=ord")
        expect(page.locator(".empty")).to_contain_text("Going on continues")
        expect(page.locator(".verdict")).to_contain_text("Not everything was searched yet")
        page.get_by_role("button", name="Go on searching").click()
        expect(page.locator(_LINES)).to_have_count(32)
        assert asked[1]["contains"] == ["ord"]
        assert asked[1]["cursor"]
        expect(page.get_by_role("button", name="Older messages")).to_be_visible()


def test_where_nothing_is_found_a_hint_asks_again_by_the_other_time_and_no_tick_says_that_all_is_well(
    browser: Browsing, shop: PageWorld
) -> None:
    before_the_store = "from=2026-03-01T06:00:00Z&to=2026-03-01T12:00:00Z"
    with browser.at(shop.url, f"/#/search?topic=shop&{before_the_store}") as watched:
        page = watched.page
        expect(page.locator(".empty")).to_contain_text("No message found by store time")
        expect(page.locator(".empty p")).to_contain_text("born")
        expect(page.locator(".coverage")).to_contain_text("by store time")
        expect(page.locator(".coverage")).not_to_contain_text("✓")
        expect(page.locator(".coverage.good")).to_have_count(0)
        page.get_by_role("button", name="Search by born time").click()
        expect(page.locator(_LINES)).to_have_count(32)
        expect(page.locator(".coverage.good")).to_contain_text("✓")
        expect(page.get_by_label("By time")).to_have_value("born")
        assert "time=born" in page.url
        nothing_at_all = "from=2026-01-01T06:00:00Z&to=2026-01-01T12:00:00Z"
        page.goto(f"{shop.url}/#/search?topic=shop&{nothing_at_all}")
        expect(page.locator(".empty")).to_contain_text("Nothing in topic shop matches, in either tier.")
        expect(page.locator(".coverage.good")).to_contain_text("✓")


@pytest.mark.parametrize(
    ("typed", "zone", "means"),
    [
        ("2h", "UTC", END_MS - 2 * _HOUR),
        ("now-90m", "UTC", END_MS - 90 * 60_000),
        ("3d", "Asia/Kolkata", END_MS - 72 * _HOUR),
        ("250 ms", "UTC", END_MS - 250),
        ("now+5m", "UTC", END_MS + 5 * 60_000),
        ("yesterday+8h", "UTC", END_MS - 28 * _HOUR),
        ("14:30", "Asia/Kolkata", END_MS - 3 * _HOUR),
        ("yesterday", "UTC", END_MS - 36 * _HOUR),
        ("today", "Asia/Kolkata", END_MS - 17 * _HOUR - _HOUR // 2),
        ("yesterday", "America/New_York", END_MS - 31 * _HOUR),
        ("2026-03-02", "Asia/Kolkata", END_MS - 41 * _HOUR - _HOUR // 2),
        ("1772539200000", "UTC", END_MS),
    ],
)
def test_a_time_is_taken_as_people_type_it_and_shown_as_what_it_means(
    browser: Browsing, shop: PageWorld, typed: str, zone: str, means: int
) -> None:
    with browser.at(shop.url, timezone_id=zone) as watched:
        page = watched.page
        page.clock.set_fixed_time(END_MS / 1000)
        if zone != "UTC":
            page.keyboard.press("t")
        asked = _answered(page, _as_it_is)
        page.get_by_label("Topic", exact=True).fill("shop")
        page.get_by_role("button", name="Custom").click()
        start = page.get_by_label(re.compile("^From .(UTC|local)"))
        start.fill(typed)
        shown = page.evaluate("ms => new Date(ms - (new Date(ms).getTimezoneOffset()) * 60000).toISOString()", means)
        expect(page.locator("#f-from-means")).to_contain_text(shown[:-1].replace("T", " "))
        start.press("Enter")
        expect(page.locator(".coverage")).to_be_visible()
        assert asked[-1]["from"] == [str(means)]
        relative = parse_qs(page.url.partition("?")[2])["from"][0] == typed
        assert relative == (typed not in ("2026-03-02", "14:30"))


def test_a_date_and_time_is_picked_in_the_zone_of_the_page(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=orders", timezone_id="Asia/Kolkata") as watched:
        page = watched.page
        expect(page.locator(_LINES)).to_have_count(12)
        page.keyboard.press("t")
        page.get_by_role("button", name="Custom").click()
        page.get_by_label("Picked: From").fill("2026-03-03T15:30:00")
        page.get_by_label("Picked: To, exclusive").fill("2026-03-03T15:30:01")
        expect(page.get_by_label(re.compile("^From .local"))).to_have_value("2026-03-03T15:30:00.000+05:30")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(_LINES)).to_have_count(12)
        page.get_by_role("button", name="Pick a date and a time: From").click()
        expect(page.get_by_label("Picked: From")).to_have_value("2026-03-03T15:30")
