"""What the page says when something is wrong, in words, and that it comes back by itself."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import pytest
from playwright.sync_api import Route, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import PageWorld
from tests.support.service.served import served, served_app
from tierlog.service.api.application.app import create_app
from tierlog.service.follow.followed_broker import FollowedBroker, FollowState

pytestmark = pytest.mark.browser

_HOUR = 3_600_000


def test_an_archive_that_does_not_answer_makes_coverage_incomplete_and_it_is_said(
    browser: Browsing, world: PageWorld
) -> None:
    world.load(600, _HOUR)
    world.archive(everything=True, drop_hot=True)
    world.load(100, _HOUR)
    world.objects.die()
    with browser.at(world.url, "/#/search?topic=shop&order=oldest") as watched:
        page = watched.page
        expect(page.locator(".verdict")).to_contain_text("Not everything was searched")
        expect(page.locator(".failures li").first).to_contain_text("the store is dead")
        world.objects.revive()
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(".verdict")).to_contain_text("Everything was searched")
        expect(page.locator(".message .badge").first).to_have_text("cold")


def test_followed_brokers_are_shown_and_what_is_wrong_with_one_is_said(browser: Browsing, world: PageWorld) -> None:
    fine = FollowedBroker(
        "broker-a", "shop", state=FollowState.FOLLOWING, store=world.engine, live_max_offset=3 << 20, end=1 << 20,
        lag_ms=2_000, margin_ms=72 * _HOUR, gap_bytes=0,
    )  # fmt: skip
    lost = FollowedBroker("broker-b", "b", state=FollowState.DIVERGED, error="its log is another one", gap_bytes=4096)
    stopping = threading.Event()
    app = create_app(world.engine, world.settings, stopping, followed=lambda: [fine, lost])
    with served_app(app, world.settings, stopping) as url, browser.at(url, "/#/store") as watched:
        page = watched.page
        card = page.locator("article", has_text="Broker broker-a")
        for told in ("following", "2 MiB, 2 s", "3 d", "0 B"):
            expect(card).to_contain_text(told)
        expect(page.locator("article", has_text="Broker broker-b")).to_contain_text("4 KiB")
        expect(page.locator(".banner")).to_have_text(
            "Broker broker-b: diverged: its log is another one. What is here is answered from."
        )


def test_a_service_that_is_gone_is_said_and_its_return_is_noticed(browser: Browsing, world: PageWorld) -> None:
    world.load(100, _HOUR)
    with ExitStack() as window:
        with served(world.engine, world.settings) as url:
            port = int(url.rpartition(":")[2])
            watched = window.enter_context(browser.at(url, "/#/search?topic=shop", allowed=("net::ERR_",)))
            page = watched.page
            expect(page.locator(".message .line").first).to_be_visible()
        expect(page.locator(".banner")).to_contain_text("does not answer")
        page.get_by_role("button", name="Search", exact=True).click()
        expect(page.locator(".trouble")).to_contain_text("does not answer")
        with served(world.engine, world.settings, port=port):
            page.get_by_role("button", name="Search", exact=True).click()
            expect(page.locator(".message .line").first).to_be_visible()
            expect(page.locator(".banner")).to_have_count(0, timeout=40_000)
            window.close()


def test_a_service_that_wants_a_token_gets_one_kept_for_the_tab_alone(browser: Browsing, world: PageWorld) -> None:
    world.load(100, _HOUR)

    def guard(route: Route) -> None:
        """What stands before the service: lets in who has the token, and that only to read messages."""
        if route.request.headers.get("authorization") != "Bearer right":
            problem = {"title": "unauthenticated", "status": 401, "detail": "this token is not known here"}
            route.fulfill(status=401, content_type="application/problem+json", body=json.dumps(problem))
        elif "/v1/stats" in route.request.url:
            problem = {"title": "forbidden", "status": 403, "detail": "no right to this"}
            route.fulfill(status=403, content_type="application/problem+json", body=json.dumps(problem))
        else:
            route.fallback()

    with browser.at(world.url, allowed=("401", "403")) as watched:
        page = watched.page
        page.route("**/v1/**", guard)
        page.goto(f"{world.url}/#/search?topic=shop")
        page.reload()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Bearer token").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("not known here")
        dialog.get_by_label("Bearer token").fill("right")
        page.keyboard.press("Enter")
        expect(page.locator(".message .line").first).to_be_visible()
        expect(page.locator(".banner")).to_contain_text("no right to see the store's numbers")
        assert page.evaluate("Object.values(localStorage).join().includes('right')") is False
        page.reload()
        expect(page.locator(".message .line").first).to_be_visible()
