"""Consumer groups on the page: how far behind they are, and moving and deleting them, each after a question."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import PageWorld
from tierlog.tiering.base.types import Boundary

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


def _sent(page: Page) -> list[dict[str, Any]]:
    """What the service is sent to move groups."""
    sent: list[dict[str, Any]] = []

    def see(request: Request) -> None:
        if request.url.endswith("/reset"):
            sent.append(json.loads(request.post_data or ""))

    page.on("request", see)
    return sent


def _offsets(world: PageWorld) -> list[int | None]:
    return [queue.offset for queue in world.engine.groups.describe("billing").queues]


def test_a_group_is_listed_with_its_lag_in_all_and_queue_by_queue(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=True)
    info = world.engine.groups.describe("billing")
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        card = page.get_by_role("article", name="Group billing")
        expect(card).to_contain_text(f"{sum(queue.lag or 0 for queue in info.queues)} behind")
        expect(card).to_contain_text("shop; 1 member")
        assert not [url for url in watched.requests if "/v1/groups/billing" in url]
        card.locator("summary").click()
        expect(card.locator("tbody tr")).to_have_count(len(info.queues))
        row = card.locator("tbody tr").first.locator("td").all_text_contents()
        assert [row[0], row[1], row[2]] == ["shop", "0", "3"]
        expect(card.locator(".members")).to_contain_text(info.members[0].member_id)


def test_a_group_is_moved_to_the_moment_that_was_shown_after_a_question(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=False)
    now_ms = world.clock.now_ms()
    wanted_ms = now_ms - _HOUR // 2
    queues = world.engine.groups.describe("billing").queues
    wanted = [world.engine.offset_by_time("shop", queue.queue_id, wanted_ms, Boundary.LOWER) for queue in queues]
    assert any(3 < offset < (queue.max_offset or 0) for offset, queue in zip(wanted, queues, strict=True))
    with browser.at(world.url, "/#/groups") as watched:
        page = watched.page
        sent = _sent(page)
        page.clock.set_fixed_time(now_ms / 1000)
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("the first message stored at or after a time").check()
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Which time?")
        assert sent == []
        dialog.get_by_label("Time (UTC)", exact=True).fill("30m")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.locator("tbody tr")).to_have_count(len(queues))
        first = ["shop", "0", "3", str(wanted[0]), f"+{wanted[0] - 3}"]
        expect(dialog.locator("tbody tr").first.locator("td")).to_have_text(first)
        assert set(_offsets(world)) == {3}
        page.clock.set_fixed_time((now_ms + _HOUR) / 1000)
        dialog.get_by_role("button", name="Move billing").click()
        expect(dialog).to_have_count(0)
        assert sent == [{"time": wanted_ms, "dry_run": True}, {"time": wanted_ms}]
        assert _offsets(world) == wanted
        expect(page.get_by_role("button", name="Move the group billing")).to_be_focused()


def test_one_queue_is_moved_to_an_offset_and_another_choice_is_asked_about_again(
    browser: Browsing, world: PageWorld
) -> None:
    _group(world, stays=False)
    queue = world.engine.groups.describe("billing").queues[1]
    one = {"topic": "shop", "store_id": queue.store_id, "queue_id": queue.queue_id}
    with browser.at(world.url, "/#/groups", allowed=("400",)) as watched:
        page = watched.page
        sent = _sent(page)
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Queues").select_option(f"shop {queue.queue_id}")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("button", name="Move billing")).to_be_visible()
        dialog.get_by_label("an offset").check()
        offset = dialog.get_by_label("Offset", exact=True)
        offset.fill("1000000")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("1000000")
        offset.fill("12")
        dialog.get_by_role("button", name="What would change?").click()
        dialog.get_by_role("button", name="Move billing").click()
        expect(dialog).to_have_count(0)
        assert sent[0] == {"to": "first", **one, "dry_run": True}
        assert sent[-2:] == [{"offset": 12, **one, "dry_run": True}, {"offset": 12, **one}]
        assert _offsets(world) == [12 if at == 1 else 3 for at in range(len(_offsets(world)))]


def test_what_the_service_refuses_is_said_and_nothing_is_changed(browser: Browsing, world: PageWorld) -> None:
    _group(world, stays=True)
    with browser.at(world.url, "/#/groups", allowed=("409",)) as watched:
        page = watched.page
        page.get_by_role("button", name="Move the group billing").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("a group is moved while nobody does")
        dialog.get_by_role("button", name="What would change?").click()
        expect(dialog.get_by_role("alert")).to_contain_text("billing")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Delete the group billing").click()
        dialog.get_by_role("button", name="Delete billing").click()
        expect(dialog.get_by_role("alert")).to_contain_text("billing")
        page.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert set(_offsets(world)) == {3}


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
