"""The store at a glance: it shows what moves between the tiers, and leads to the search."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import PageWorld
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.browser

_HOUR = 3_600_000


def _state(page: Page, name: str) -> Locator:
    return page.locator(f'.state[data-name="{name}"]')


def _blocks(page: Page, name: str) -> Locator:
    return page.locator("rect." + name.replace(" ", ".") + ":not(.leaving)")


def test_archiving_and_dropping_moves_segments_from_warm_to_blue_and_the_border_on(
    browser: Browsing, world: PageWorld
) -> None:
    with browser.at(world.url) as watched:
        page = watched.page
        expect(page.locator(".frame")).to_have_class("frame nothing")
        world.load(900, _HOUR)
        expect(_state(page, "segment active")).to_have_attribute("data-count", "1")
        warm = _blocks(page, "segment rolled")
        expect(warm.first).to_be_visible()
        count = warm.count()
        color = warm.first.evaluate("(rect) => getComputedStyle(rect).fill")
        world.archive()
        expect(_state(page, "segment both")).to_have_attribute("data-count", str(count))
        expect(warm).to_have_count(0)
        world.archive(everything=True, drop_hot=True)
        expect(_state(page, "segment both")).to_have_attribute("data-count", "0")
        archived = _blocks(page, "segment cold")
        expect(archived).to_have_count(count + 1)
        assert archived.first.evaluate("(rect) => getComputedStyle(rect).fill") != color
        world.load(300, _HOUR)
        border = page.locator(".border")
        expect(border).to_have_attribute("visibility", "visible")
        expect(border).to_contain_text("border")


def test_what_has_not_changed_is_not_sent_again_and_a_hidden_tab_asks_nothing(
    browser: Browsing, world: PageWorld
) -> None:
    world.load(600, _HOUR)
    world.archive(everything=True, drop_hot=True)
    with browser.at(world.url) as watched:
        page = watched.page
        with page.expect_response(lambda answer: "known_version=" in answer.url) as answer:
            pass
        assert answer.value.json()["cold"] is None
        expect(_blocks(page, "segment cold").first).to_be_visible()
        page.evaluate(
            "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        page.wait_for_timeout(500)
        asked = len(watched.requests)
        page.wait_for_timeout(4_500)
        assert len(watched.requests) == asked
        with page.expect_response(lambda answer: "/v1/timeline" in answer.url):
            page.evaluate(
                "Object.defineProperty(document, 'hidden', {get: () => false, configurable: true});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )


def test_a_block_is_described_zoomed_to_and_searched_by_keyboard_and_mouse(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/#/search?topic=shop") as watched:
        page = watched.page
        expect(_blocks(page, "segment cold").first).to_be_visible()
        picture = page.get_by_role("application", name="Timeline")
        picture.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".tip")).to_contain_text("hot: active")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".tip")).to_contain_text("hot: rolled")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.locator(".tip")).to_contain_text("cold")
        expect(page.locator("#said")).to_contain_text("stored from")
        with page.expect_response(lambda answer: "/v1/timeline" in answer.url and "from=" in answer.url):
            page.keyboard.press("+")
        expect(page.locator(".legend.states")).to_contain_text("in this part of the store")
        page.keyboard.press("0")
        expect(page.locator(".legend.states")).not_to_contain_text("in this part of the store")
        page.keyboard.press("Enter")
        expect(page.locator(".selection")).to_be_visible()
        assert "from=2026-03-0" in page.url
        expect(page.locator(".message .line").first).to_be_visible()
        block = _blocks(page, "segment cold").nth(2)
        block.hover()
        expect(page.locator(".tip")).to_contain_text("for 128 KiB of log")
        block.click()
        expect(page.get_by_label("Topic", exact=True)).to_have_value("shop")
        expect(page.locator(".message .badge").first).to_have_text("cold")
        page.get_by_role("button", name="Log", exact=True).click()
        expect(page.locator(".zone-note")).to_have_text("offsets in the log")
        expect(_blocks(page, "segment cold").first).to_be_visible()


def test_along_born_times_files_lie_where_senders_say_and_those_of_unknown_times_are_counted(
    browser: Browsing, world: PageWorld
) -> None:
    start_ms = world.clock.now_ms() - 365 * 24 * _HOUR

    def load(first: int, end: int) -> None:
        for number in range(first, end, 100):
            born = range(start_ms + number * 60_000, start_ms + (number + 100) * 60_000, 60_000)
            world.clock.advance(60_000)
            world.engine.append([Message("old", b"x" * 300, [f"k{ms}"], born_ms=ms) for ms in born])
        world.settle()

    load(0, 2_000)
    world.archive(everything=True, drop_hot=True)
    load(2_000, 2_200)
    with browser.at(world.url) as watched:
        page = watched.page
        expect(_blocks(page, "segment cold").first).to_be_visible()
        drawn = page.locator("rect.block.segment").count()
        with page.expect_response(lambda answer: "/v1/timeline" in answer.url and "time=born" in answer.url) as answer:
            page.get_by_role("button", name="Born", exact=True).click()
        assert answer.value.json()["from_ms"] == start_ms
        expect(page.locator(".zone-note")).to_have_text("born time, UTC")
        expect(page.locator(".unknown")).to_contain_text("whose born times are not known")
        expect(_blocks(page, "segment active")).to_have_count(0)
        assert page.locator("rect.block.segment:not(.leaving)").count() < drawn
        block = _blocks(page, "segment cold").nth(1)
        block.hover()
        expect(page.locator(".tip")).to_contain_text("born from2025-0")
        block.click()
        expect(page.get_by_label("By time")).to_have_value("born")
        assert "time=born" in page.url
        assert "from=2025-0" in page.url
        page.get_by_role("button", name="Stored", exact=True).click()
        expect(_blocks(page, "segment active")).to_have_count(1)
        expect(page.locator(".unknown")).to_have_count(0)
