"""How the S3 client behaves before servers that refuse, crawl, keep silent or break off."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.objects.black_hole import black_hole
from tests.support.objects.odd_s3 import Behaviour, odd_s3
from tests.support.objects.s3_server import s3_environment
from tierlog.service.exit_codes import WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError, ObjectStoreUnavailableError, StoreError
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_protocol import TimedBody
from tierlog.tiering.objects.s3_store import S3ObjectStore

_DATA = b"".join(zlib.crc32(b"%d" % number).to_bytes(4, "big") for number in range(300_000))


@pytest.fixture(autouse=True)
def _credentials() -> Iterator[None]:
    with s3_environment():
        yield


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour(_DATA)


def _store(endpoint_url: str, **limits: float) -> S3ObjectStore:
    numbers = {"connect_timeout_s": 2.0, "read_timeout_s": 1.0, **limits}
    return S3ObjectStore("bucket", endpoint_url=endpoint_url, limits=S3Limits(**numbers))  # type: ignore[arg-type]


def test_a_server_that_refuses_everything_is_not_stormed(behaviour: Behaviour) -> None:
    """The budget of retries runs dry: nearly every call becomes a single request, whatever max_attempts says."""
    behaviour.refuse = (503, "ServiceUnavailable")
    with odd_s3(behaviour) as url:
        store = _store(url, max_attempts=5)

        def call(_: int) -> bool:
            with pytest.raises(StoreError) as caught:
                store.get("k")
            return caught.value.retryable

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(call, range(400)))
    assert 400 <= len(behaviour.requests) < 450


def test_one_call_is_tried_as_often_as_the_limits_say(behaviour: Behaviour) -> None:
    behaviour.refuse = (503, "SlowDown")
    with odd_s3(behaviour) as url:
        for attempts in (1, 2):
            behaviour.requests.clear()
            with pytest.raises(StoreError):
                _store(url, max_attempts=attempts).get("k")
            assert len(behaviour.requests) == attempts


@pytest.mark.parametrize("as_parts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_large_body_gets_through_a_slow_line(behaviour: Behaviour, as_parts: bool) -> None:
    """It takes about four times the limit for silence, which is a limit for silence and not for the transfer."""
    behaviour.reads_bytes_per_s = 512 << 10
    data = bytes(2 << 20)
    with odd_s3(behaviour) as url:
        client = _store(url, connect_timeout_s=1, max_attempts=1)._client
        if as_parts:
            client.call("upload_part", "k", Key="k", UploadId="u", PartNumber=1, Body=bytearray(data))
        else:
            client.call("put_object", "k", Key="k", Body=data)
    assert behaviour.received == len(data)


def test_a_silent_server_is_noticed_within_the_limits() -> None:
    limits = S3Limits(connect_timeout_s=0.5, read_timeout_s=0.2, max_attempts=2)
    assert limits.call_limit_s(0) < 6
    with black_hole() as url:
        store = S3ObjectStore("bucket", endpoint_url=url, limits=limits)
        for call in (lambda: store.head("k"), lambda: store.put("k", b"x"), lambda: store.delete("k")):
            with pytest.raises(ObjectStoreUnavailableError):
                call()


def test_a_server_may_be_silent_for_longer_the_more_was_sent() -> None:
    limits = S3Limits(read_timeout_s=10, min_bytes_per_s=128 << 10)
    assert limits.patience_s(0) == 10
    assert limits.patience_s(64 << 20) == 10 + 512


def test_an_answer_that_trickles_is_ended(behaviour: Behaviour) -> None:
    behaviour.trickle_s = 0.05  # 16 hours for the object, and never silent for long
    with odd_s3(behaviour) as url:
        store = _store(url, connect_timeout_s=0.1, read_timeout_s=0.5, min_bytes_per_s=1 << 30, max_attempts=1)
        with pytest.raises(ObjectStoreUnavailableError, match="too long"):
            store.get("k")


def test_a_body_to_send_is_refused_when_its_time_is_up() -> None:
    clock = ManualClock()
    body = TimedBody(b"0123456789", clock, 5)
    assert (len(body), body.read(4), body.tell()) == (10, b"0123", 4)
    assert (body.seek(-2, 1), body.read(), body.read()) == (2, b"23456789", b"")
    clock.advance(5_001)
    body.seek(0)
    with pytest.raises(TimeoutError):
        body.read(1)


def test_a_read_that_breaks_off_goes_on_where_it_broke(behaviour: Behaviour) -> None:
    end = len(_DATA) - 1
    with odd_s3(behaviour) as url:
        behaviour.cuts = [1_000, 500_000]
        assert _store(url).get("k")[0] == _DATA
        asked = [text for _, text in behaviour.requests]
        assert asked == ["", f"bytes=1000-{end}", f"bytes=501000-{end}"]
        behaviour.requests.clear()
        behaviour.cuts = [700]
        assert _store(url).get_range("k", 100, 900_100) == _DATA[100:900_100]
        assert [text for _, text in behaviour.requests] == ["bytes=100-900099", "bytes=800-900099"]


def test_a_line_that_always_breaks_is_given_up(behaviour: Behaviour) -> None:
    behaviour.cuts = [10] * 9
    with odd_s3(behaviour) as url, pytest.raises(ObjectStoreUnavailableError):
        _store(url, max_attempts=3).get("k")
    assert len(behaviour.requests) == 3


def test_two_versions_of_an_object_are_never_joined(behaviour: Behaviour) -> None:
    behaviour.cuts = [10]
    behaviour.replaced_meanwhile = True
    with odd_s3(behaviour) as url, pytest.raises(ObjectStoreUnavailableError, match="replaced"):
        _store(url).get("k")


@pytest.mark.parametrize(
    ("made_by", "environment", "is_asked"),
    [
        ({"sys_vendor": "LENOVO\n", "bios_version": "N2HET70W\n"}, {}, False),
        ({"sys_vendor": "QEMU\n"}, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"sys_vendor": "QEMU\n"}, {"AWS_CONFIG_FILE": "role_elsewhere"}, True),
        ({"sys_vendor": "QEMU\n"}, {"AWS_CONFIG_FILE": "role_elsewhere", "AWS_PROFILE": "plain"}, False),
        ({"sys_vendor": "Amazon EC2\n"}, {}, True),
        ({"sys_vendor": "3DS OUTSCALE\n"}, {}, True),
        ({"sys_vendor": "OpenStack Foundation\n", "bios_version": "1.16.0\n"}, {}, True),
        ({"sys_vendor": "QEMU\n", "chassis_asset_tag": "2b1f.zstack.io\n"}, {}, True),
        ({"sys_vendor": "Google\n", "chassis_asset_tag": "\n"}, {}, False),
        ({"sys_vendor": "Xen\n", "bios_version": "4.11.amazon\n"}, {}, True),
        ({"sys_vendor": "Xen\n", "uuid": "ec2e1916-9099-7caf-fd21-012345abcdef\n"}, {}, True),
        ({}, {}, True),
    ],
)
def test_only_who_may_have_the_role_of_an_instance_waits_for_it(
    made_by: dict[str, str],
    environment: dict[str, str],
    is_asked: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    for name, text in made_by.items():
        (tmp_path / name).write_text(text)
    _no_credentials(tmp_path, monkeypatch, asked)
    (tmp_path / "role_elsewhere").write_text(
        "[default]\nec2_metadata_service_endpoint = http://127.0.0.1:9\n[profile plain]\nregion = eu-west-1\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    store = _store("http://127.0.0.1:1", connect_timeout_s=0.1, max_attempts=1)
    with pytest.raises(InvalidRequestError, match="no credentials for the object store") as refused:
        store.put("k", b"x")
    assert "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY" in (refused.value.hint or "")
    assert bool(asked) == is_asked


def test_a_doctor_without_credentials_ends_before_it_starts_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sys_vendor").write_text("LENOVO")
    asked: list[object] = []
    _no_credentials(tmp_path, monkeypatch, asked)
    monkeypatch.setattr("tierlog.service.cli.race_process.process_racers", lambda *_, **__: pytest.fail("started"))
    assert main(["doctor", "--cold", "s3://bucket/prefix"]) == WRONG_USE
    said = capsys.readouterr().err
    assert "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE" in said
    assert said.count("\n") == 1
    assert asked == []


def _no_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch, asked: list[object]) -> None:
    """Leave nothing where the SDK looks, and take note of whether it asks for the role of an instance."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    makers = tuple(folder / name for name in ("sys_vendor", "bios_version", "chassis_asset_tag", "uuid"))
    monkeypatch.setattr("tierlog.tiering.objects.s3_client._MAKERS", makers)

    def ask(fetcher: object) -> dict[str, str]:
        asked.append(fetcher)
        return {}

    monkeypatch.setattr("botocore.utils.InstanceMetadataFetcher.retrieve_iam_role_credentials", ask)
