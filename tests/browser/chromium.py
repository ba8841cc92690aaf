"""Chromium under a test: what it says in its console and whom it asks is watched."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Page, expect, sync_playwright

#: Where CI and Debian have it.
EXECUTABLE = shutil.which("chromium") or "/usr/bin/chromium"
#: A machine may be busy.
_PATIENCE_MS = 40_000
_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]


@dataclass
class Watched:
    """A page, and what went on in it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()
    """Parts of errors that the test is about."""

    def check(self, url: str) -> None:
        """No error but those allowed, and nobody else was asked."""
        found = [text for text in self.errors if not any(part in text for part in self.allowed)]
        assert not found, found
        hosts = {urlsplit(asked).netloc for asked in self.requests if not asked.startswith(("blob:", "data:"))}
        assert hosts <= {urlsplit(url).netloc}, hosts


@dataclass
class Browsing:
    """An open browser."""

    browser: Browser

    @contextlib.contextmanager
    def at(self, url: str, path: str = "/", *, allowed: tuple[str, ...] = (), **context: Any) -> Iterator[Watched]:
        """A page in a window of its own, checked at its end."""
        window = self.browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **context}
        )
        window.set_default_timeout(_PATIENCE_MS)
        watched = Watched(window.new_page(), allowed=allowed)
        page = watched.page
        page.on("console", lambda said: watched.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("request", lambda request: watched.requests.append(request.url))
        page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
        )
        try:
            page.goto(url + path)
            yield watched
            watched.check(url)
        finally:
            window.close()


@contextlib.contextmanager
def browsing() -> Iterator[Browsing]:
    """A browser, closed at the end."""
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=_FLAGS)
        try:
            yield Browsing(browser)
        finally:
            browser.close()
