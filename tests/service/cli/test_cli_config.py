"""``tierlog config``: every setting, and where its value comes from."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from docs.tools.settings import page
from tierlog.service.config.settings import Settings
from tierlog.service.exit_codes import DONE, WRONG_USE
from tierlog.service.main import main


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIERLOG_")]:
        monkeypatch.delenv(name)


def asked(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    assert main(["config", "--format", "json", *flags]) == DONE
    return {row.pop("name"): row for row in json.loads(capsys.readouterr().out)["settings"]}


def test_each_value_says_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text(
        "create_topics = false\n[hot]\nretention_ms = 5000\nsegment_bytes = 65536\n[cold]\ngrace_ms = 90000000\n"
    )
    monkeypatch.setenv("TIERLOG_HOT_RETENTION_MS", "6000")
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", "http://127.0.0.1:9000")
    found = asked(capsys, "--config", str(file), "--segment-bytes", "131072")
    assert found["create_topics"] == {"value": False, "default": True, "source": "file"}
    said = {name: (row["value"], row["source"]) for name, row in found.items()}
    assert said["hot.retention_ms"] == (6000, "TIERLOG_HOT_RETENTION_MS")
    assert said["hot.segment_bytes"] == (131072, "flag")
    assert said["cold.grace_ms"] == (90_000_000, "file")
    assert said["cold.s3_endpoint"] == ("http://127.0.0.1:9000", "TIERLOG_S3_ENDPOINT")
    assert said["serve.port"] == (8080, "default")
    changed = asked(capsys, "--config", str(file), "--changed")
    assert set(changed) == {
        "create_topics", "hot.retention_ms", "hot.segment_bytes", "cold.grace_ms", "cold.s3_endpoint",
    }  # fmt: skip


def test_variables_that_nothing_reads_are_told_when_a_service_starts_and_with_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIERLOG_FLAVOUR", "mild")
    assert main(["config", "--changed"]) == DONE
    assert capsys.readouterr().err == "tierlog: TIERLOG_FLAVOUR is in the environment, and nothing reads it\n"
    assert main(["serve", "--role", "querier"]) == WRONG_USE
    assert "TIERLOG_FLAVOUR is in the environment" in capsys.readouterr().err
    monkeypatch.setenv("TIERLOG_SERV_PORT", "9000")
    assert main(["config"]) == WRONG_USE
    assert "did you mean TIERLOG_SERVE_PORT?" in capsys.readouterr().err


def test_every_setting_of_the_reference_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = page()
    found = asked(capsys)
    assert set(found) == set(re.findall(r"^\| `([a-z0-9_.]+)`", text, re.MULTILINE))
    assert found["serve.port"]["value"] == Settings().serve.port


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hot]\nretention = 5\n", "did you mean 'hot.retention_ms'?"),
        ("[hto]\nretention_ms = 5\n", "there is no setting 'hto'"),
        ("hot.retention_ms = -1\n", "hot.retention_ms"),
        ("[hot\n", "not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_what_was_meant(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tierlog.toml"
    file.write_text(text)
    assert main(["config", "--config", str(file)]) == WRONG_USE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "json", "ndjson", "csv", "arrow"])
def test_settings_come_out_in_every_format(form: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["config", "--format", form]) == DONE
    assert b"hot.retention_ms" in capfdbinary.readouterr().out
