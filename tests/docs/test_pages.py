"""Every block of the documentation is run, and says what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.docs.pages import LANGUAGES, ROOT, Page, all_pages, commands_of
from tests.support.docs.runner import opened
from tests.support.objects.s3_server import S3Server

#: Blocks that no test can run. A new one needs a reason in its page, and this number.
NOT_RUN = 15
PAGES = all_pages()


def _marks(page: Page) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, name) for name in sorted(page.needs & {"slow", "spark"})]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=_marks(page)) for page in PAGES if page.blocks],
)
def test_page_does_what_it_says(
    page: Page, forked: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = dict(forked)
    if "s3" in page.needs:
        server: S3Server = request.getfixturevalue("s3_server")
        environment["TIERLOG_S3_ENDPOINT"] = server.endpoint_url
        for bucket in set(re.findall(r"\bs3a?://([a-z0-9-]+)", page.text)):
            _empty(server, bucket)
    names: dict[str, Any] = {"spark": request.getfixturevalue("spark")} if "spark" in page.needs else {}
    with opened(page, tmp_path, environment) as run:
        run.names.update(names)
        for block in page.blocks:
            run.run(block)


def _empty(server: S3Server, bucket: str) -> None:
    if bucket not in [one["Name"] for one in server.client.list_buckets()["Buckets"]]:
        server.client.create_bucket(Bucket=bucket)
    for listed in server.client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for found in listed.get("Contents", []):
            server.client.delete_object(Bucket=bucket, Key=found["Key"])


def test_every_block_has_a_language_that_is_run() -> None:
    odd = [f"{block}: {block.language!r}" for page in PAGES for block in page.blocks if block.language not in LANGUAGES]
    assert odd == []


def test_blocks_that_are_not_run_say_why_and_are_few() -> None:
    left_out = [f"{block}: {block.not_run}" for page in PAGES for block in page.blocks if block.not_run is not None]
    print("\n".join(left_out))
    assert len(left_out) == NOT_RUN, left_out


def test_no_command_hides_in_a_block_of_text() -> None:
    hidden = [
        f"{block}: {line}"
        for page in PAGES
        for block in page.blocks
        if block.language == "text" and not block.is_printed
        for line in block.text.split("\n")
        if re.match(r"\s*(\$ |tierlog (?!.*[─▶│])|python -m |make |curl |export |import )", line)
    ]
    assert hidden == []


def test_no_command_hides_in_an_indented_block() -> None:
    hidden = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in page.text.split("\n")
        if re.match(r"^ {4,}(\$ |tierlog |python -m |curl )", line)
        and not any(line.strip() in b.text for b in page.blocks)
    ]
    assert hidden == []


def test_console_blocks_begin_with_a_command() -> None:
    assert all(commands_of(block) for page in PAGES for block in page.blocks if block.language == "console")


def test_make_run_is_what_its_page_runs() -> None:
    recipe = re.search(r"^run:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    assert "-m tierlog.service.demo $(RUN_ARGS)" in recipe[1]
