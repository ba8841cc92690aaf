"""Settings: three sources in rising order, and no value taken silently that somebody got wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docs.tools.settings import page
from tierlog.service.config.settings import Settings
from tierlog.tiering.base.errors import InvalidRequestError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIERLOG_")]:
        monkeypatch.delenv(name)


def test_flags_win_over_the_environment_and_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('advertise = "10.0.0.1:80"\n[hot]\nretention_ms = 1\nmax_bytes = 1\nroll_age_ms = 1\n')
    monkeypatch.setenv("TIERLOG_HOT_MAX_BYTES", "2")
    monkeypatch.setenv("TIERLOG_HOT_ROLL_AGE_MS", "2")
    settings = Settings.load(file, {"hot.roll_age_ms": 3, "hot.segment_bytes": None})
    assert (settings.hot.retention_ms, settings.hot.max_bytes, settings.hot.roll_age_ms) == (1, 2, 3)
    assert settings.advertise == "10.0.0.1:80"
    assert settings.hot.segment_bytes is None


def test_the_endpoint_of_s3_has_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", "http://127.0.0.1:9000")
    assert Settings.load().cold.s3_endpoint == "http://127.0.0.1:9000"


def test_a_group_as_a_variable_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_COLD", "s3://bucket/prefix")
    with pytest.raises(InvalidRequestError, match=r"the environment: .*cold"):
        Settings.load()


def test_making_settings_directly_does_not_read_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_HOT_RETENTION_MS", "1")
    assert Settings().hot.retention_ms == 72 * 3_600_000


def test_variables_of_other_programs_below_the_prefix_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("TIERLOG_SEED", "7")
    assert Settings.load() == Settings()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"hot.segment_bytes": 65_537}, "hot.segment_bytes"),
        ({"hot.segment_bytes": 2 << 30}, "hot.segment_bytes"),
        ({"index.slots": 0}, "index.slots"),
        ({"index.layout": "other"}, "index.layout"),
        ({"hot.retention": 1}, "hot.retention"),
        ({"serve.port": "http"}, "serve.port"),
        ({"advertise": "node"}, "advertise"),
        ({"hot.disk_full_percent": 101}, "hot.disk_full_percent"),
        ({"hot.disk_full_percent": 74}, "disk_max_used_percent"),
        ({"advertise": "node:80"}, "advertise"),
        ({"advertise": "10.0.0.1:99999"}, "advertise"),
        ({"hotter.retention_ms": 1}, "hotter"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        Settings.load(None, given)


def test_a_misspelled_variable_of_a_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERLOG_HOT_RETENTON_MS", "1")
    with pytest.raises(InvalidRequestError, match=r"hot\.retenton_ms"):
        Settings.load()


@pytest.mark.parametrize("text", [None, "hot = [", b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str | bytes | None) -> None:
    file = tmp_path / "tierlog.toml"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidRequestError) as caught:
        Settings.load(file)
    assert caught.value.path == str(file)


def test_the_sizes_of_an_existing_store_win_over_the_settings() -> None:
    settings = Settings.load(None, {"hot.segment_bytes": 65_536})
    assert settings.hot_options().segment_bytes == 65_536
    assert settings.hot_options(8192, 60).segment_bytes == 8192
    assert settings.hot_options(8192, 60).queue_file_units == 60


def test_the_options_are_the_settings() -> None:
    settings = Settings.load(None, {"cold.frame_bytes": 4096, "hot.max_bytes": 5, "hot.retention_ms": 6})
    assert settings.cold_options().frame_bytes == 4096
    assert settings.retention_options().hot_max_bytes == 5
    assert settings.retention_options().hot_retention_ms == 6


def test_the_reference_page_is_what_the_code_makes_of_it() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m docs.tools.settings"


def test_every_setting_is_on_the_page() -> None:
    text = page()
    for group, fields in {
        "hot": Settings().hot, "index": Settings().index, "cold": Settings().cold, "serve": Settings().serve
    }.items():  # fmt: skip
        for name in type(fields).model_fields:
            assert f"`{group}.{name}`" in text
