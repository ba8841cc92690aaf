"""The contract suite over moto's S3 server, and what needs no particular server."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.contract_base import PART_BYTES, Backend
from tests.contract.s3_contract import S3Contract
from tests.support.objects.s3_server import S3Server
from tierlog.tiering.base.errors import InvalidRequestError, ObjectStoreUnavailableError
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_store import S3ObjectStore

_REPOSITORY = Path(__file__).parents[2]


class TestMoto(S3Contract):
    @pytest.fixture
    def server(self, s3_server: S3Server) -> S3Server:
        return s3_server

    @pytest.mark.slow  # a thousand requests, which moto answers slowly; other stores are asked quickly
    def test_a_listing_longer_than_a_page_is_complete(self, backend: Backend, store: ObjectStore) -> None:
        super().test_a_listing_longer_than_a_page_is_complete(backend, store)

    @pytest.mark.slow
    def test_keys_of_every_legal_character_come_back(self, backend: Backend, store: ObjectStore) -> None:
        super().test_keys_of_every_legal_character_come_back(backend, store)

    def test_keys_that_break_the_rules_are_not_listed(self, s3_server: S3Server, bucket: str) -> None:
        for key in ("root/x", "root/", "root/bad//key"):
            s3_server.client.put_object(Bucket=bucket, Key=key, Body=b"")
        store = S3ObjectStore(bucket, "root", endpoint_url=s3_server.endpoint_url)
        assert [info.key for info in store.list("")] == ["x"]

    def test_a_server_without_full_object_checksums_gets_none(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # moto keeps the wish for a checksum among the metadata of the upload; now it does not hear it.
        monkeypatch.setattr("moto.s3.responses.metadata_from_headers", lambda _: {})
        store = backend.store
        assert isinstance(store, S3ObjectStore)
        call, made = store._uploads._call, []

        def record(operation: str, key: str, tolerated: str = "", **arguments: object) -> object:
            made.append((operation, any(name.startswith("Checksum") for name in arguments)))
            return call(operation, key, tolerated, **arguments)

        monkeypatch.setattr(store._uploads, "_call", record)
        for _ in range(2):
            assert store.upload("k", [bytes(PART_BYTES), b"abc"]).crc32 is None
        assert backend.raw_get("k") == bytes(PART_BYTES) + b"abc"
        assert list(store.list_uploads("")) == []
        plain = [
            ("create_multipart_upload", False),
            *[("upload_part", False)] * 2,
            ("complete_multipart_upload", False),
        ]
        asked_once = [("create_multipart_upload", True), ("abort_multipart_upload", False)]
        assert made == asked_once + plain * 2


def test_a_server_that_keeps_silent_is_unavailable(s3_server: S3Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = S3ObjectStore(
            "bucket",
            endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}",
            limits=S3Limits(read_timeout_s=0.2, max_attempts=1),
        )
        with pytest.raises(ObjectStoreUnavailableError):
            store.head("k")


def test_a_prefix_that_leaves_no_room_for_keys_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        S3ObjectStore("bucket", "p" * 121)


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        S3ObjectStore("bucket", endpoint_url="not a url")


def test_the_sdk_is_loaded_only_by_a_store() -> None:
    script = "import sys, tierlog.tiering.objects.urls; print(sorted({'boto3', 'botocore'} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout == "[]\n"
