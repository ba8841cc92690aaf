"""The tokens file while a service runs: a new one counts within a second, a broken one changes nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tests.support.service.access import line, token
from tierlog.service.access.control import AccessControl
from tierlog.service.access.tokens import digest
from tierlog.service.config.serve import AccessSettings
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.fs import LocalFileSystem, replace_file


def entry(name: str) -> str:
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest(token(name)).hex()}"\nscopes = ["read"]\ntopics = ["*"]\n'


def replaced(path: Path, text: str) -> None:
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    replace_file(LocalFileSystem(), path, text.encode(), scratch)


def names(control: AccessControl, clock: ManualClock, *asked: str) -> list[str]:
    clock.advance(1_000)
    return [name for name in asked if control.caller(token(name)) is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def test_a_replaced_file_counts_within_a_second_and_the_environment_stays(path: Path) -> None:
    clock = ManualClock()
    path.write_text(entry("old"), encoding="utf-8")
    control = AccessControl(AccessSettings(tokens_file=str(path), tokens=line("fixed", "read", "*")), clock)
    assert control.is_on
    assert names(control, clock, "old", "new", "fixed") == ["old", "fixed"]
    replaced(path, entry("new"))
    assert control.caller(token("old")) is not None  # asked again within the second
    assert names(control, clock, "old", "new", "fixed") == ["new", "fixed"]


def test_a_link_that_points_elsewhere_counts_as_a_new_file(tmp_path: Path, path: Path) -> None:
    clock = ManualClock()
    for name in ("one", "two"):
        (tmp_path / name).write_text(entry(name), encoding="utf-8")
    path.symlink_to(tmp_path / "one")
    control = AccessControl(AccessSettings(tokens_file=str(path)), clock)
    path.unlink()
    path.symlink_to(tmp_path / "two")
    assert names(control, clock, "one", "two") == ["two"]


@pytest.mark.parametrize("broken", ["", "[[token]", entry("new") + entry("new"), entry("fixed"), None])
def test_a_broken_or_missing_file_leaves_the_tokens_as_they_were_and_is_logged_once(
    path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    path.write_text(entry("old"), encoding="utf-8")
    control = AccessControl(AccessSettings(tokens_file=str(path), tokens=line("fixed", "read", "*")), clock)
    if broken is None:
        os.unlink(path)
    else:
        replaced(path, broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert names(control, clock, "old", "new", "fixed") == ["old", "fixed"]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    assert "the tokens stay as they were" in caplog.text
    replaced(path, entry("new"))
    assert names(control, clock, "old", "new") == ["new"]


def test_a_file_that_is_wrong_at_the_start_is_refused(path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read the tokens file: No such file"):
        AccessControl(AccessSettings(tokens_file=str(path)), ManualClock())
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidRequestError, match="not UTF-8"):
        AccessControl(AccessSettings(tokens_file=str(path)), ManualClock())
    path.write_text(entry("a"), encoding="utf-8")
    with pytest.raises(InvalidRequestError, match="'a' stands twice"):
        AccessControl(AccessSettings(tokens_file=str(path), tokens=line("a", "read", "*")), ManualClock())


def test_nobody_needs_a_token_only_where_none_was_given() -> None:
    assert not AccessControl(AccessSettings(), ManualClock()).is_on
    with pytest.raises(InvalidRequestError, match="no token in it"):
        AccessControl(AccessSettings(tokens=""), ManualClock())
