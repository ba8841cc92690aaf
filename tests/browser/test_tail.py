"""A topic that is followed: its queues as one as messages come in, paused, bounded, with few requests."""

from __future__ import annotations

import contextlib
import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import SIZES, PageWorld
from tests.support.service.served import served
from tests.support.world import World
from tierlog.index.search.query import Query
from tierlog.service.config.settings import Settings
from tierlog.tiering.lifecycle.takeover import QUEUE_STEP
from tierlog.tiering.message.batch import Message

pytestmark = pytest.mark.browser

_HOUR = 3_600_000
_PULL = re.compile(r"/queues/(\d+)/messages\?")


def _lines(page: Page) -> Locator:
    return page.locator(".live-box .message .line")


def _bodies(page: Page) -> list[str]:
    return page.locator(".live-box .preview").all_text_contents()


def _stored(world: PageWorld) -> int:
    return sum(queue.max_offset for queue in world.engine.topic("shop").queues)


def _say(world: PageWorld, *bodies: str, tag: str = "") -> None:
    """Appends messages of the topic ``talk``, each later than the one before, and to queues in turn."""
    for body in bodies:
        world.clock.advance(1)
        world.engine.append([Message("talk", body.encode(), ["said"], tag)])
    world.settle()


def test_messages_of_all_queues_appear_in_order_as_they_come(browser: Browsing, world: PageWorld) -> None:
    _say(world, "before")
    with browser.at(world.url, "/#/tail") as watched:
        page = watched.page
        page.get_by_label("Topic", exact=True).fill("talk")
        page.get_by_role("button", name="Follow").click()
        expect(page.locator(".live-box")).to_contain_text("Waiting for the next message")
        wanted = [f"line {number}" for number in range(20)]
        _say(world, *wanted)
        expect(_lines(page)).to_have_count(20)
        assert _bodies(page) == wanted
        _say(world, "one more")
        expect(page.locator(".live-bar")).to_contain_text("21 messages")
        assert _bodies(page) == [*wanted, "one more"]
        _lines(page).last.click()
        expect(page.locator(".body")).to_have_text("one more")
        address = page.url
        page.goto(f"{world.url}/#/topics")
        page.get_by_role("link", name="Follow talk live").click()
        expect(page).to_have_url(address)


def test_what_comes_in_while_it_is_paused_is_shown_after_it(browser: Browsing, world: PageWorld) -> None:
    _say(world, "a", "b", "c")
    with browser.at(world.url, "/#/tail?topic=talk&last=20") as watched:
        page = watched.page
        expect(_lines(page)).to_have_count(3)
        page.keyboard.press("p")
        expect(page.locator(".live-state")).to_have_text("Paused")
        _say(world, "d", "e")
        page.wait_for_timeout(2_500)
        asked = [url for url in watched.requests if "/v1/topics/talk" in url]
        expect(_lines(page)).to_have_count(3)
        page.wait_for_timeout(1_500)
        assert [url for url in watched.requests if "/v1/topics/talk" in url] == asked
        page.get_by_role("button", name="Resume").click()
        expect(_lines(page)).to_have_count(5)
        assert _bodies(page) == ["a", "b", "c", "d", "e"]
        page.get_by_role("button", name="Clear").click()
        expect(_lines(page)).to_have_count(0)


def test_only_messages_with_the_tag_are_shown(browser: Browsing, world: PageWorld) -> None:
    _say(world, "ordered", tag="paid")
    _say(world, "looked at", tag="other")
    with browser.at(world.url, "/#/tail?topic=talk&tag=paid+%7C%7C+sent&last=20") as watched:
        page = watched.page
        expect(_lines(page)).to_have_count(1)
        _say(world, "bought", tag="paid")
        _say(world, "left", tag="other")
        _say(world, "posted", tag="sent")
        expect(_lines(page)).to_have_count(3)
        assert _bodies(page) == ["ordered", "bought", "posted"]


def test_rows_are_bounded_and_what_comes_too_fast_is_passed_over_and_counted(
    browser: Browsing, world: PageWorld
) -> None:
    world.load(100, _HOUR)
    before = _stored(world)
    with browser.at(world.url, "/#/tail?topic=shop") as watched:
        page = watched.page
        expect(page.locator(".live-box")).to_contain_text("Waiting")
        page.get_by_role("button", name="Pause").click()
        world.load(1_500, _HOUR)
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".live-bar")).to_contain_text("came too fast and were passed over")
        told = re.search(r"([\d,]+) messages; ([\d,]+) messages came", page.locator(".live-bar").text_content() or "")
        assert told is not None
        shown, passed = (int(number.replace(",", "")) for number in told.groups())
        assert shown == _lines(page).count() <= 1_000
        assert shown + passed == _stored(world) - before
        newest = world.engine.query(Query("shop", limit=1)).messages[0].record.body.decode()
        assert _bodies(page)[-1] == newest.rstrip()
        world.load(600, _HOUR)
        expect(page.locator(".live-bar")).to_contain_text("the last 1,000 are shown")
        assert _lines(page).count() == 1_000


@pytest.mark.parametrize(("more", "passed"), [(5, 0), (1_200, 200)])
def test_offsets_that_a_restore_left_out_are_no_messages_that_came_too_fast(
    browser: Browsing, more: int, passed: int
) -> None:
    settings = Settings.load(None, SIZES)
    world = World(settings=settings)

    def say(count: int) -> None:
        for first in range(0, count, 60):
            wanted = range(first, min(first + 60, count))
            world.engine.append([Message("talk", f"line {number}".encode(), queue_id=0) for number in wanted])
        world.engine.flush()

    engine = world.open("a")
    engine.create_topic("talk", 1)
    say(3)
    with contextlib.ExitStack() as service:
        url = service.enter_context(served(engine, settings))
        with browser.at(url, "/#/tail?topic=talk&last=20") as watched:
            page = watched.page
            expect(_lines(page)).to_have_count(3)
            page.get_by_role("button", name="Pause").click()
            expect(page.locator(".live-state")).to_have_text("Paused")
            page.wait_for_load_state("networkidle")
            engine.archive(everything=True)
            service.close()
            engine.close()
            engine = world.open("b", restore=True)
            say(more)
            assert engine.topic("talk").queues[0].gaps == [(3, 3 + QUEUE_STEP)]
            service.enter_context(served(engine, settings, port=int(url.rpartition(":")[2])))
            page.get_by_role("button", name="Resume").click()
            bar = page.locator(".live-bar")
            expect(bar).to_contain_text(f"{3 + more - passed:,} messages")
            assert _bodies(page)[-1] == f"line {more - 1}"
            if passed:
                expect(bar).to_contain_text(f"{passed} messages came too fast")
            else:
                expect(bar).not_to_contain_text("too fast")
        service.close()
    engine.close()


def test_of_many_queues_only_those_that_have_moved_are_read_and_four_at_a_time(
    browser: Browsing, world: PageWorld
) -> None:
    world.engine.create_topic("talk", 200)
    with browser.at(world.url) as watched:
        page = watched.page
        under_way: list[str] = []
        most: list[int] = []
        read: set[int] = set()

        def watch(route: Route) -> None:
            found = _PULL.search(route.request.url)
            assert found is not None
            read.add(int(found[1]))
            under_way.append(route.request.url)
            most.append(len(under_way))
            route.continue_()

        page.route(_PULL, watch)
        page.on("requestfinished", lambda request: under_way.remove(request.url) if request.url in under_way else None)
        page.goto(f"{world.url}/#/tail?topic=talk")
        expect(page.locator(".live-box")).to_contain_text("Waiting")
        world.engine.append([Message("talk", f"in {queue}".encode(), queue_id=queue) for queue in range(0, 40, 2)])
        world.settle()
        expect(_lines(page)).to_have_count(20)
        assert read == set(range(0, 40, 2))
        assert max(most) <= 4


def test_a_topic_that_is_not_there_is_named_and_followed_once_it_is(browser: Browsing, world: PageWorld) -> None:
    with browser.at(world.url, "/#/tail?topic=talk&last=20", allowed=("404",)) as watched:
        page = watched.page
        expect(page.get_by_role("status").first).to_contain_text("talk")
        _say(world, "here")
        expect(_lines(page)).to_have_count(1)
