"""Pictures of the page for the documentation: ``python -m tests.browser.screenshots [FOLDER]``."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.chromium import Browsing, browsing
from tests.support.service.page_world import PageWorld, page_world, tell_the_shops_story
from tierlog.index.search.query import Query
from tierlog.tiering.base.types import Tier

FOLDER = Path("docs/images")
_LINE = ".message .line"


def main() -> int:
    """Take all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as store, page_world(Path(store), **{"cold.cache_bytes": 0}) as world:
        tell_the_shops_story(world)
        with browsing() as browser:
            _all(browser, world, folder)
    return 0


def _all(browser: Browsing, world: PageWorld, folder: Path) -> None:
    def picture(name: str, path: str, **window: Any) -> Any:
        return _Picture(browser, world, folder / f"page-{name}.png", path, window)

    key = _busy_key(world)
    with picture("search", f"/#/search?topic=shop&key={key}") as page:
        expect(page.locator(_LINE).first).to_be_visible()
    with picture("dark", "/#/search?topic=orders", color_scheme="dark") as page:
        page.locator(_LINE).first.click()
    with picture("timeline", "/#/store", viewport={"width": 1280, "height": 330}) as page:
        page.get_by_role("application", name="Timeline").focus()
        for pressed in ["ArrowRight", *["ArrowLeft"] * 7]:
            page.keyboard.press(pressed)
        expect(page.locator(".tip")).to_be_visible()
    with picture("topics", "/#/topics", viewport={"width": 1280, "height": 480}) as page:
        page.locator("[data-topic=shop]").click()
    with picture(
        "coverage", f"/#/search?topic=shop&key={key}&order=oldest", viewport={"width": 1280, "height": 720}
    ) as page:
        page.locator(".coverage summary").click()
    with picture("narrow", f"/#/search?topic=shop&key={key}", viewport={"width": 360, "height": 1100}) as page:
        expect(page.locator(_LINE).first).to_be_visible()
    world.objects.die()
    with picture("incomplete", "/#/search?topic=shop&order=oldest", viewport={"width": 1280, "height": 860}) as page:
        expect(page.locator(".failures")).to_be_visible()
    world.objects.revive()


def _busy_key(world: PageWorld) -> str:
    """The address that most messages of both tiers name."""
    newest = world.engine.query(Query("shop", limit=500)).messages
    keys = {found[0].decode() for one in newest if (found := re.search(rb"10\.\d\.\d\.\d+", one.record.body))}

    def tiers(key: str) -> tuple[int, str]:
        messages = world.engine.query(Query("shop", key, limit=100)).messages
        return min(sum(one.tier is tier for one in messages) for tier in Tier), key

    return max(map(tiers, sorted(keys)))[1]


class _Picture:
    """A page that is photographed at the end of its context."""

    def __init__(self, browser: Browsing, world: PageWorld, file: Path, path: str, window: dict[str, Any]) -> None:
        self._at = browser.at(world.url, path, **window)
        self._file = file
        self._page: Page

    def __enter__(self) -> Page:
        self._page = self._at.__enter__().page
        expect(self._page.locator(".block").first).to_be_visible()
        return self._page

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is None:
            self._page.wait_for_timeout(1_000)  # until what moves stands
            self._page.screenshot(path=self._file)
        self._at.__exit__(*failure)


if __name__ == "__main__":
    sys.exit(main())
