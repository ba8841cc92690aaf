"""``tierlog doctor`` on real servers, with writers in several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.support.objects.s3_server import S3Server
from tierlog.service.main import main

Captured = pytest.CaptureFixture[str]
_SHORT = ("--writers", "16", "--processes", "2", "--rounds", "10")


def _left(server: S3Server, bucket: str) -> list[str]:
    found = server.client.list_objects_v2(Bucket=bucket).get("Contents", [])
    pending = server.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [entry["Key"] for entry in [*found, *pending]]


def _diagnose(
    server: S3Server, patch: pytest.MonkeyPatch, capsys: Captured, arguments: Sequence[str]
) -> tuple[int, dict[str, object], str]:
    patch.setenv("TIERLOG_S3_ENDPOINT", server.endpoint_url)
    bucket = server.new_bucket()
    code = main(["doctor", "--cold", f"s3://{bucket}/some/prefix", "--format", "json", *arguments])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    assert _left(server, bucket) == []
    return code, document, bucket


def test_a_full_race_on_each_server(real_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """64 writers in four processes, 50 rounds of each condition."""
    code, found, _ = _diagnose(real_server, monkeypatch, capsys, ())
    print(json.dumps(found, indent=1))
    assert code == 0, found
    assert found["safe"] is True
    assert [
        (race["condition"], race["writers"], race["rounds"], race["broken"])
        for race in found["races"]  # type: ignore[attr-defined]
    ] == [("if absent", 64, 50, 0), ("if match", 64, 50, 0)]
    assert [row["state"] for row in found["capabilities"]] == ["ok"] * 14  # type: ignore[attr-defined]


def test_a_short_race_on_moto(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    code, found, _ = _diagnose(s3_server, monkeypatch, capsys, _SHORT)
    assert (code, found["safe"]) == (0, True), found


@pytest.mark.parametrize("after_s", [1.5, 4.0])
def test_ctrl_c_leaves_nothing_behind(versitygw: S3Server, after_s: float) -> None:
    bucket = versitygw.new_bucket()
    with subprocess.Popen(
        [sys.executable, "-m", "tierlog.service.main", "doctor", "--cold", f"s3://{bucket}/p", "--rounds", "100000"],
        env={**os.environ, "TIERLOG_S3_ENDPOINT": versitygw.endpoint_url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as doctor:  # fmt: skip
        deadline = time.monotonic() + 60
        while not _left(versitygw, bucket):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(after_s)
        doctor.send_signal(signal.SIGINT)
        _, said = doctor.communicate(timeout=100)
    assert doctor.returncode == 3
    assert said == "tierlog: stopped\n"
    assert _left(versitygw, bucket) == []


def test_a_wrong_secret_is_wrong_use_and_a_dead_server_a_failure(
    versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    bucket = versitygw.new_bucket()
    command = ["doctor", "--cold", f"s3://{bucket}", *_SHORT]
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", versitygw.endpoint_url)
    with monkeypatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
        assert main(command) == 2
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", "http://127.0.0.1:9")
    assert main(command) == 3
    assert "another-secret" not in capsys.readouterr().err
