"""The page's files: all of them sent, names that change with their contents, nothing asked of other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from tests.support.service.page_world import page_world
from tierlog.service.api.routes.page import read_web_files

WEB = Path(str(files("tierlog.service").joinpath("web")))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("page")
    with page_world(folder) as world, httpx.Client(base_url=world.url, timeout=60) as found:
        yield found


def test_every_file_of_the_page_is_sent_under_a_name_that_may_be_kept_for_ever(client: httpx.Client) -> None:
    found = read_web_files()
    assert set(found.parts) == {str(path.relative_to(WEB)) for path in WEB.rglob("*.*") if path.suffix != ".html"}
    for path, file in found.parts.items():
        answer = client.request("GET", f"/web/{found.digest}/{path}")
        assert (answer.status_code, answer.content) == (200, file.content)
        assert answer.headers["content-type"].partition(";")[0] in ("text/javascript", "text/css", "image/svg+xml")
        assert "immutable" in answer.headers["cache-control"]
    for stale in (f"/web/{'0' * 16}/js/main.js", f"/web/{found.digest}/js/none.js", f"/web/{found.digest}/index.html"):
        assert client.request("GET", stale).status_code == 404


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_names_the_files_of_its_version_and_is_asked_for_again_each_time(
    client: httpx.Client, path: str
) -> None:
    digest = read_web_files().digest
    answer = client.request("GET", path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert len(answer.headers["etag"]) > 10
    named = re.findall(r'<(?:link|script)[^>]* (?:href|src)="(/[^"]*)"', answer.text)
    assert named
    for part in named:
        assert part.startswith(f"/web/{digest}/")
        assert client.request("GET", part).status_code == 200
    for place in re.findall(r'<a[^>]* href="(/[^"#]*)', answer.text):
        assert client.request("GET", place).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_policy_allows_nothing_but_this_service_and_no_markup_from_text(client: httpx.Client, path: str) -> None:
    policy = client.request("GET", path).headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules["script-src"], rules["style-src"], rules["connect-src"]} == {"'self'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in policy


def test_modules_are_small_import_what_is_there_and_name_no_other_host() -> None:
    for path in WEB.rglob("*.js"):
        text = path.read_text()
        assert text.count("\n") < 400, path
        for name in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / name).resolve().is_file(), (path, name)
    for path in [*WEB.rglob("*.js"), *WEB.rglob("*.css"), *WEB.glob("*.html")]:
        hosts = set(re.findall(r"https?://[\w.]+", path.read_text()))
        assert hosts <= {"http://www.w3.org"}, path  # the name of SVG, which nobody asks
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", path.read_text()), path
