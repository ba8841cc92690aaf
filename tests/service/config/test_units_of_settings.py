"""Settings with units: 72h beside a number of ms, 512MiB beside a number of bytes, from every source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from docs.tools.chart_files import settings_schema
from docs.tools.settings import page
from tierlog.service.config.settings import Settings
from tierlog.service.exit_codes import DONE, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.errors import InvalidRequestError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIERLOG_")]:
        monkeypatch.delenv(name)


def _settings(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _settings(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


DURATIONS = [name for name in _settings() if name.endswith(("_ms", "_s")) and not name.endswith("_per_s")]
SIZES = [name for name in _settings() if "_bytes" in name]


def value_of(settings: Settings, name: str) -> object:
    group, _, key = name.rpartition(".")
    return getattr(getattr(settings, group), key)


@pytest.mark.parametrize("name", DURATIONS)
def test_every_duration_takes_a_unit(name: str) -> None:
    default = value_of(Settings(), name)
    assert isinstance(default, int | float)
    ms = round(default * (1 if name.endswith("_ms") else 1000))
    assert value_of(Settings.load(overrides={name: f"{ms}ms"}), name) == default
    with pytest.raises(InvalidRequestError, match=rf"setting {re.escape(name)} = '3y': not a duration: .* ms, s, m, h"):
        Settings.load(overrides={name: "3y"})


@pytest.mark.parametrize("name", SIZES)
def test_every_size_takes_a_unit(name: str) -> None:
    default = value_of(Settings(), name) or 65_536
    assert value_of(Settings.load(overrides={name: f"{default}B"}), name) == default
    with pytest.raises(InvalidRequestError, match=rf"setting {re.escape(name)} = '3h': not a size: .*MiB"):
        Settings.load(overrides={name: "3h"})


def test_units_come_from_file_and_environment_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text('[hot]\nretention_ms = "72h"\nmax_bytes = "10GB"\nroll_age_ms = 5\n[cold]\nread_timeout_s = "1m"\n')
    monkeypatch.setenv("TIERLOG_COLD_RETENTION_MS", "90d")
    monkeypatch.setenv("TIERLOG_COLD_CACHE_BYTES", "512 MiB")
    monkeypatch.setenv("TIERLOG_COLD_CONNECT_TIMEOUT_S", "500ms")
    settings = Settings.load(file)
    assert (settings.hot.retention_ms, settings.hot.roll_age_ms) == (259_200_000, 5)
    assert (settings.hot.max_bytes, settings.cold.cache_bytes) == (10_000_000_000, 512 << 20)
    assert settings.cold.retention_ms == 7_776_000_000
    assert (settings.cold.read_timeout_s, settings.cold.connect_timeout_s) == (60.0, 0.5)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0B", 0), ("1kB", 1000), ("1KB", 1000), ("1KiB", 1024), ("5MB", 5_000_000), ("5 MiB", 5 << 20), ("2GiB", 2 << 30),
     ("1TB", 10**12), ("1TiB", 1 << 40), ("1024", 1024), ("1_024", 1024)],
)  # fmt: skip
def test_a_size_is_a_number_and_a_unit(text: str, count: int) -> None:
    assert Settings.load(overrides={"hot.max_bytes": text}).hot.max_bytes == count


@pytest.mark.parametrize("text", ["", "GB", "1.5GiB", "1gb", "1kiB", "1Mb", "1M", "-1GB", "1GB2", "1d"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"hot\.max_bytes"):
        Settings.load(overrides={"hot.max_bytes": text})


def test_the_bounds_hold_with_a_unit() -> None:
    with pytest.raises(InvalidRequestError, match=r"cold\.grace_ms = 31708800000: input should be less"):
        Settings.load(overrides={"cold.grace_ms": "367d"})
    with pytest.raises(InvalidRequestError, match=r"hot\.segment_bytes = 2147483648: input should be less"):
        Settings.load(overrides={"hot.segment_bytes": "2GiB"})


def test_a_number_and_a_name_without_a_unit_stay_what_they_are() -> None:
    assert Settings.load(overrides={"serve.port": "80"}).serve.port == 80
    with pytest.raises(InvalidRequestError, match=r"serve\.port = '80ms'"):
        Settings.load(overrides={"serve.port": "80ms"})


def test_flags_take_sizes_with_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--changed", "--format", "json", "--segment-bytes", "64MiB"]) == DONE
    (row,) = json.loads(capsys.readouterr().out)["settings"]
    assert (row["name"], row["value"], row["source"]) == ("hot.segment_bytes", 64 << 20, "flag")
    assert main(["config", "--segment-bytes", "64 apples"]) == WRONG_USE
    assert "hot.segment_bytes" in capsys.readouterr().err


def test_the_charts_schema_takes_what_settings_take() -> None:
    """Helm refuses by it before a pod is made."""
    hot = settings_schema()["properties"]["hot"]["properties"]
    number, text = hot["retention_ms"]["anyOf"]
    assert (number["type"], number["minimum"], text["type"]) == ("integer", 0, "string")
    assert "default" in hot["retention_ms"]
    assert re.search(text["pattern"], "72h")
    assert not re.search(text["pattern"], "72")
    assert [form["type"] for form in hot["segment_bytes"]["anyOf"]] == ["integer", "null", "string"]
    for size in ("512MiB", "10GB", "1kB", "7B"):
        assert re.search(hot["max_bytes"]["anyOf"][1]["pattern"], size)
    assert "anyOf" not in hot["disk_full_percent"]


def test_the_reference_page_says_so() -> None:
    head = page().partition("## Top level")[0]
    assert "`72h`" in head
    assert "`512MiB`" in head
