"""Settings: three sources in rising order, and no value taken silently that somebody got wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from docs.tools.settings import page
from tierlog.service.config.settings import Settings, unknown_variables
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


@pytest.mark.parametrize("service", ["", "SERVE_", "HOT_", "COLD_", "MY_LOG_", "CREATE_TOPICS_"])
def test_what_kubernetes_makes_of_a_services_name_never_stops_a_start(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Service named tierlog-serve gives TIERLOG_SERVE_PORT, the name of a setting."""
    for name, value in (
        ("SERVICE_HOST", "10.0.0.1"), ("SERVICE_PORT", "8080"), ("SERVICE_PORT_HTTP", "8080"),
        ("PORT", "tcp://10.0.0.1:8080"), ("PORT_8080_TCP", "tcp://10.0.0.1:8080"), ("PORT_8080_TCP_PROTO", "tcp"),
        ("PORT_8080_TCP_PORT", "8080"), ("PORT_8080_TCP_ADDR", "10.0.0.1"),
    ):  # fmt: skip
        monkeypatch.setenv(f"TIERLOG_{service}{name}", value)
    assert Settings.load() == Settings()
    assert unknown_variables() == []


def test_variables_that_others_read_below_the_prefix_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIERLOG_SEED", "TIERLOG_TOKEN", "TIERLOG_TOKEN_OVER_HTTP", "TIERLOG_CLIENT_KEY"):
        monkeypatch.setenv(name, "7")
    assert Settings.load() == Settings()
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TIERLOG_HTO_RETENTION_MS", "TIERLOG_HOT_RETENTION_MS"),
        ("TIERLOG_RETENTION_MS", "TIERLOG_HOT_RETENTION_MS"),
        ("TIERLOG_CREATE_TOPIC", "TIERLOG_CREATE_TOPICS"),
        ("TIERLOG_SERV_PORT", "TIERLOG_SERVE_PORT"),
        ("TIERLOG_S3_ENDPOINT_URL", "TIERLOG_S3_ENDPOINT"),
        ("TIERLOG_TOKEN_FLIE", "TIERLOG_TOKEN_FILE"),
        ("tierlog_advertize", "TIERLOG_ADVERTISE"),
    ],
)
def test_a_mistyped_variable_is_refused_with_what_was_meant(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "5")
    with pytest.raises(InvalidRequestError, match=f"nothing reads {name.upper()}; did you mean {meant}\\?"):
        Settings.load()


def test_a_variable_that_is_like_no_other_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIERLOG_FLAVOUR", "TIERLOG_HOST", "TIERLOG_PORT"):
        monkeypatch.setenv(name, "8080")
    monkeypatch.setenv("TIERLOG_HOT", "{}")
    assert Settings.load() == Settings()
    assert unknown_variables() == ["TIERLOG_FLAVOUR", "TIERLOG_HOST", "TIERLOG_PORT"]


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
