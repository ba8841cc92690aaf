"""Consumer groups on the page: how far behind they are, and moving and deleting them, each after a question."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import END_MS, PageWorld

pytestmark = pytest.mark.browser

_HOUR = 3_600_000


def _group(world: PageWorld, *, stays: bool) -> None:
    """A group that has read some of each queue; its member stays or leaves."""
    world.load(200, _HOUR)
    member = world.engine.groups.join("billing", ["shop"])
    world.engine.groups.commit(
        "billing", dict.fromkeys(member.assignment, 3), member_id=member.member_id, generation=member.generation
    )
    if not stays:
        world.engine.groups.leave("billing", member.member_id)


def _resetting(page: Page, *, status: int = 200) -> list[dict[str, Any]]:
    """The service moves groups; gives what it is sent."""
    sent: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        asked: dict[str, Any] = json.loads(route.request.post_data or "")
        sent.append(asked)
        assert route.request.method == "POST"
        assert route.request.headers["content-type"] == "application/json"
        if status != 200:
            route.fulfill(status=status, json={"title": "conflict", "detail": "group 'billing' has a live member"})
            return
        queues = [
            {"topic": "shop", "store_id": "s", "queue_id": queue, "offset": 3, "new_offset": 3 + 2 * (queue == 1)}
            for queue in range(4)
        ]
        route.fulfill(json={"group": "billing", "changed": not asked.get("dry_run", False), "queues": queues})

    page.route(re.compile("/v1/groups/billing/reset$"), answer)
    return sent


def test_a_group_is_listed_with_its_lag_in_all_and_queue_by_queue(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=True)
    info = world.engine.groups.describe("billing")
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        card = page.get_by_role("article", name="Group billing")
        expect(card).to_contain_text(f"{sum(queue.lag or 0 for queue in info.queues)} behind")
        card.locator("summary").click()
        expect(card.locator("tbody tr")).to_have_count(len(info.queues))
        row = card.locator("tbody tr").first.locator("td").all_text_contents()
        assert [row[0], row[1], row[2]] == ["shop", "0", "3"]


def test_a_group_is_moved_to_the_moment_that_was_shown_after_a_question(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=False)
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        sent = _resetting(page)
        page.clock.set_fixed_time(END_MS / 1000)
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("the first message stored at or after a time").check()
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Which time?")
        assert sent == []
        dialog.get_by_label("Time (UTC)", exact=True).fill("2h")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog).to_contain_text("1 queue of 4 would move")
        expect(dialog.locator("tbody td")).to_have_text(["shop", "1", "3", "5", "+2"])
        page.clock.set_fixed_time((END_MS + _HOUR) / 1000)
        dialog.get_by_role("button", name="Move billing").click()
        expect(dialog).to_have_count(0)
        assert sent == [{"time": END_MS - 2 * _HOUR, "dry_run": True}, {"time": END_MS - 2 * _HOUR}]
        expect(page.get_by_role("button", name="Move the group billing")).to_be_focused()


def test_one_queue_is_moved_to_an_offset_and_another_choice_is_asked_about_again(
    browser: Browsing, world: PageWorld
) -> None:
    _group(world, stays=False)
    queue = world.engine.groups.describe("billing").queues[1]
    one = {"topic": "shop", "store_id": queue.store_id, "queue_id": queue.queue_id}
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        sent = _resetting(page)
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Queues").select_option(f"shop {queue.queue_id}")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("button", name="Move billing")).to_be_visible()
        dialog.get_by_label("an offset").check()
        dialog.get_by_label("Offset", exact=True).fill("12")
        dialog.get_by_role("button", name="What would change?").click()
        dialog.get_by_role("button", name="Move billing").click()
        expect(dialog).to_have_count(0)
        assert sent[0] == {"to": "first", **one, "dry_run": True}
        assert sent[1:] == [{"offset": 12, **one, "dry_run": True}, {"offset": 12, **one}]


def test_what_the_service_refuses_is_said_and_nothing_is_closed(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=True)
    with browser.at(world.url, "/#/groups", allowed=("409",)) as watched:
        page = watched.page
        _resetting(page, status=409)
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("a group is moved while nobody does")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("has a live member")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Delete the group billing").click()
        dialog.get_by_role("button", name="Delete billing").click()
        expect(dialog.get_by_role("alert")).to_contain_text("billing")
        assert world.engine.groups.describe("billing").members
        page.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)


def test_a_group_is_deleted_after_a_question_alone(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=False)
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        page.get_by_role("button", name="Delete the group billing").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Cancel").click()
        assert [one.group for one in world.engine.groups.all(lambda _: True)] == ["billing"]
        page.get_by_role("button", name="Delete the group billing").click()
        expect(dialog).to_contain_text("Messages stay where they are")
        dialog.get_by_role("button", name="Delete billing").click()
        expect(page.get_by_text("No consumer group yet")).to_be_visible()
        expect(page.get_by_role("article", name="Group billing")).to_have_count(0)
        assert world.engine.groups.all(lambda _: True) == []


def test_the_focus_stays_where_it_is_while_numbers_change(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=False)
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        page.get_by_role("button", name="Delete the group billing").focus()
        world.load(100, _HOUR)
        behind = sum(queue.lag or 0 for queue in world.engine.groups.describe("billing").queues)
        expect(page.get_by_role("article", name="Group billing")).to_contain_text(f"{behind} behind")
        expect(page.get_by_role("button", name="Delete the group billing")).to_be_focused()
