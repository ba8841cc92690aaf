"""The API for people at ``/docs``: everything of the document that programs read, and nothing from elsewhere."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Browsing
from tests.support.service.page_world import PageWorld

pytestmark = pytest.mark.browser


def _calls(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each call by its id."""
    return {
        call["operationId"]: (method.upper(), path, call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    }


@pytest.fixture(scope="module")
def document(shop: PageWorld) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{shop.url}/openapi.json", timeout=60).json()
    return found


def test_every_call_of_the_document_is_there_with_its_parameters_body_and_answers(
    browser: Browsing, shop: PageWorld, document: dict[str, Any]
) -> None:
    calls = _calls(document)
    assert len(calls) > 35
    with browser.at(shop.url, "/docs") as watched:
        page = watched.page
        expect(page.locator("article.call")).to_have_count(len(calls))
        found = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll("article.call")].map((article) => [article.id, {
                 title: article.querySelector("h3").textContent,
                 parameters: [...article.querySelectorAll("[data-parameter]")].map((one) => one.dataset.parameter),
                 answers: [...article.querySelectorAll("[data-status]")].map((one) => one.dataset.status),
                 media: [...article.querySelectorAll(".media > .field-line > .name")].map((one) => one.textContent),
                 text: article.textContent.replace(/\\s+/g, " "),
                 tag: article.parentElement.getAttribute("aria-label"),
               }]))"""
        )
        assert set(found) == set(calls)
        for name, (method, path, call) in calls.items():
            shown = found[name]
            assert shown["title"] == method + path
            assert shown["parameters"] == [one["name"] for one in call.get("parameters", [])]
            assert sorted(shown["answers"]) == sorted(call["responses"])
            good = [one for status, one in call["responses"].items() if status.startswith("2")]
            sent = call.get("requestBody", {}).get("content", {})
            assert shown["media"] == [*sent, *(kind for one in good for kind in one["content"])]
            assert shown["tag"] == call["tags"][0]
            described = call["description"].replace("`", "").split("\n\n")
            assert all(" ".join(part.split()) in shown["text"] for part in described)
            assert f"curl {'' if method == 'GET' else f'-X {method} '}'{shop.url}/" in shown["text"]
        linked = page.locator("#contents a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
        assert sorted(linked) == sorted(f"#{name}" for name in calls)


def test_fields_of_what_is_sent_and_answered_are_named(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/docs#append_messages") as watched:
        page = watched.page
        sent = page.locator("#append_messages")
        expect(sent).to_be_in_viewport()
        for field in ("sharding_key", "properties", "queue_offset"):
            assert sent.locator(".name", has_text=field).count() >= 1
        expect(page.locator("#append_messages .body").last).to_contain_text('-d \'{"messages":[{"body"')
        answered = page.locator("#query_messages [data-status='200']")
        answered.locator("summary", has_text="Example").first.click()
        expect(answered.locator(".body").first).to_contain_text('"next_cursor":')
        expect(page.locator("#contents [aria-current]")).to_contain_text("/v1/topics/{topic}/messages")


def test_an_address_that_is_no_encoding_leaves_the_document_shown(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/docs#%") as watched:
        page = watched.page
        expect(page.locator("#contents")).to_contain_text("/v1/stats")
        expect(page.locator("#get_stats")).to_be_attached()
        page.evaluate("location.hash = '%zz'")
        page.evaluate("location.hash = 'append_messages'")
        expect(page.locator("#append_messages")).to_be_in_viewport()
        expect(page.get_by_role("alert")).to_have_count(0)


def test_calls_are_filtered_and_reached_by_keyboard_from_the_page(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url) as watched:
        page = watched.page
        page.get_by_role("link", name="API").click()
        page.get_by_label("Filter calls").fill("receipt")
        expect(page.locator("#contents")).to_contain_text("calls")
        shown = page.locator("article.call:visible")
        assert 0 < shown.count() < 10
        assert page.locator("#contents h2:visible").all_text_contents() == ["admin"]
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert "#" in page.url
        page.get_by_label("Filter calls").fill("")
        expect(page.locator("#get_stats")).to_be_visible()


def test_it_fits_a_narrow_screen_in_both_themes(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, "/docs", viewport={"width": 360, "height": 740}, color_scheme="dark") as watched:
        page = watched.page
        expect(page.locator("#get_stats")).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 24)"
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"


def test_a_document_that_cannot_be_had_is_said(browser: Browsing, shop: PageWorld) -> None:
    with browser.at(shop.url, allowed=("503",)) as watched:
        page = watched.page
        page.route("**/openapi.json", lambda route: route.fulfill(status=503, json={"detail": "it stops"}))
        page.goto(f"{shop.url}/docs")
        expect(page.get_by_role("alert")).to_contain_text("it stops")
