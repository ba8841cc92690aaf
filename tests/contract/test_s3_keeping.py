"""Storage class and encryption at rest, as a server reports what it was told."""

from __future__ import annotations

import zlib

import pytest

from tests.support.objects.s3_server import S3Server
from tierlog.service.config.settings import Settings
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.objects.s3_protocol import S3ObjectOptions
from tierlog.tiering.objects.s3_store import S3ObjectStore

KEYS = ColdKeys("store")
DATA = (KEYS.segment(0, 1, "ab"), KEYS.index(0, begin_ms=0, first_physical=0, epoch=1, nonce="ab"))
SMALL = (KEYS.head, KEYS.queue_rows(0, 1, "ab"), KEYS.page("log", 1, "ab"), KEYS.tail(0), KEYS.state("ab"))
PART_BYTES = 5 << 20


@pytest.mark.parametrize("prefix", ["", "deep/log"])
@pytest.mark.parametrize("parts", [1, 2])
def test_data_is_kept_as_told_and_the_rest_in_the_standard_class(s3_server: S3Server, parts: int, prefix: str) -> None:
    bucket = s3_server.new_bucket()
    keeping = S3ObjectOptions("STANDARD_IA", "aws:kms", "arn:aws:kms:us-east-1:123456789012:key/one")
    store = S3ObjectStore(
        bucket, prefix, endpoint_url=s3_server.endpoint_url, part_bytes=PART_BYTES, keeping=keeping
    )  # fmt: skip
    body = b"x" * (PART_BYTES * (parts - 1) + 1)
    for key in (*DATA, *SMALL):
        assert store.upload(key, [body]).size_bytes == len(body)
        assert store.head(key).crc32 == zlib.crc32(body)
        said = s3_server.client.head_object(Bucket=bucket, Key=f"{prefix}/{key}".lstrip("/"))
        assert said.get("StorageClass", "STANDARD") == ("STANDARD_IA" if key in DATA else "STANDARD"), key
        assert said["ServerSideEncryption"] == "aws:kms"
        assert said["SSEKMSKeyId"] == keeping.sse_kms_key_id
    created = store.put(KEYS.head + "2", b"1", if_absent=True)
    store.put(KEYS.head + "2", b"2", if_match=created.etag)
    said = s3_server.client.head_object(Bucket=bucket, Key=f"{prefix}/{KEYS.head}2".lstrip("/"))
    assert said["ServerSideEncryption"] == "aws:kms"


def test_nothing_is_said_unless_told() -> None:
    assert [S3ObjectOptions().arguments(key) for key in (*DATA, *SMALL)] == [{}] * 7
    assert S3ObjectOptions("GLACIER_IR", "AES256").arguments(DATA[0]) == {
        "StorageClass": "GLACIER_IR", "ServerSideEncryption": "AES256",
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"cold.storage_class": "GLACIER"},
        {"cold.storage_class": "DEEP_ARCHIVE"},
        {"cold.storage_class": "cold"},
        {"cold.sse_kms_key_id": "key"},
        {"cold.sse": "AES256", "cold.sse_kms_key_id": "key"},
        {"cold.sse": "none"},
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match=r"settings? cold.{,80}: ") as refused:
        Settings.load(overrides=settings)
    assert len(str(refused.value)) < 250, "not every setting of the group"
