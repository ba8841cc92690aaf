"""What an S3 server has to do beside the contract of every store, as one suite over all servers."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.cluster_contract import ClusterContract
from tests.contract.contract_base import PART_BYTES, Backend, keys
from tests.contract.object_store_contract import FailedStoreContract, ObjectStoreContract
from tests.support.objects.s3_server import S3Server
from tierlog.tiering.base.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    PreconditionFailedError,
    StoreError,
)
from tierlog.tiering.objects.object_store import ObjectStore
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_protocol import crc32_text
from tierlog.tiering.objects.s3_store import MultipartUpload, S3ObjectStore

_REPOSITORY = Path(__file__).parents[2]
ROOT = "the/root"


class S3Contract(ObjectStoreContract, FailedStoreContract, ClusterContract):
    """Subclass it and give a fixture ``server``."""

    #: Whether conditions take a deleted object as absent where versions are kept.
    delete_marker_ends_conditions = True

    @pytest.fixture
    def server(self) -> S3Server:
        raise NotImplementedError

    @pytest.fixture
    def bucket(self, server: S3Server) -> str:
        return server.new_bucket()

    @pytest.fixture
    def backend(self, server: S3Server, bucket: str) -> Backend:
        client = server.client
        store = S3ObjectStore(bucket, ROOT, endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)

        def raw_set(key: str, data: bytes) -> None:
            client.put_object(Bucket=bucket, Key=f"{ROOT}/{key}", Body=data)

        def raw_get(key: str) -> bytes | None:
            try:
                data: bytes = client.get_object(Bucket=bucket, Key=f"{ROOT}/{key}")["Body"].read()
            except client.exceptions.NoSuchKey:
                return None
            return data

        return Backend(store, raw_set, raw_get)

    @pytest.fixture
    def failed_store(self, server: S3Server) -> Iterator[ObjectStore]:
        """A port that nobody listens on, and that nobody else can take meanwhile; ``server`` brings credentials."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            store = S3ObjectStore(
                "bucket",
                endpoint_url=f"http://127.0.0.1:{taken.getsockname()[1]}",
                part_bytes=PART_BYTES,
                limits=S3Limits(connect_timeout_s=1, read_timeout_s=1, max_attempts=1),
            )
            yield store
            store.close()

    def test_a_missing_bucket_is_not_a_missing_object(self, server: S3Server) -> None:
        for call in ("head", "get"):
            store = S3ObjectStore("no-such-bucket", endpoint_url=server.endpoint_url)
            with pytest.raises(InvalidRequestError) as caught:
                getattr(store, call)("k")
            assert caught.value.hint is not None
            assert "bucket" in caught.value.hint
        with pytest.raises(InvalidRequestError):
            store.put("k", b"", if_match="x")

    def test_not_found_after_the_bucket_was_seen(self, backend: Backend) -> None:
        backend.store.put("k", b"")
        with pytest.raises(ObjectNotFoundError):
            backend.store.head("other")

    def test_objects_beside_the_prefix_are_not_listed(self, server: S3Server, bucket: str) -> None:
        for key in ("root/x", "root-2/x", "other"):
            server.client.put_object(Bucket=bucket, Key=key, Body=b"")
        store = S3ObjectStore(bucket, "root", endpoint_url=server.endpoint_url)
        assert [info.key for info in store.list("")] == ["x"]

    def test_the_server_knows_the_checksum_of_a_put_and_of_an_upload(self, backend: Backend) -> None:
        backend.store.put("put", b"abc")
        backend.store.upload("upload", [bytes(PART_BYTES), b"abc"])
        for key in ("put", "upload"):
            assert backend.store.head(key).crc32 is not None

    def test_a_checksum_made_from_parts_is_not_taken_for_one_of_the_object(self, server: S3Server, bucket: str) -> None:
        client, where = server.client, {"Bucket": bucket, "Key": "k"}
        upload = {**where, "UploadId": client.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")["UploadId"]}
        part = client.upload_part(**upload, PartNumber=1, Body=b"abc", ChecksumAlgorithm="CRC32")
        parts = [{"PartNumber": 1, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]}]
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        store = S3ObjectStore(bucket, endpoint_url=server.endpoint_url)
        assert store.head("k").crc32 is None
        assert store.get("k")[0] == b"abc"

    def test_a_lost_answer_to_the_end_of_an_upload_is_found_out(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = backend.store
        assert isinstance(store, S3ObjectStore)
        call = store._uploads._call

        def lose(operation: str, key: str, tolerated: str = "", **arguments: object) -> object:
            answer = call(operation, key, tolerated, **arguments)
            if operation == "complete_multipart_upload":
                raise ObjectStoreUnavailableError("scripted lost answer")
            return answer

        monkeypatch.setattr(store._uploads, "_call", lose)
        info = store.upload("k", [bytes(PART_BYTES), b"abc"])
        assert info.size_bytes == PART_BYTES + 3
        assert backend.raw_get("k") == bytes(PART_BYTES) + b"abc"

    def test_an_upload_if_absent_refuses_an_existing_object(self, server: S3Server, bucket: str) -> None:
        store = S3ObjectStore(bucket, ROOT, endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
        for pieces in ([bytes(PART_BYTES), b"one"], [b"small"]):
            store.upload_if_absent("k", pieces)
            for other in ([bytes(PART_BYTES), b"two"], [b"two"]):
                with pytest.raises(PreconditionFailedError):
                    store.upload_if_absent("k", other)
            assert store.get("k")[0] == b"".join(pieces)
            assert list(store.list_uploads("")) == []
            store.delete("k")

    def test_the_path_of_large_objects(self, store: ObjectStore, seed: int) -> None:
        data = random.Random(seed).randbytes(64 << 20)
        store.put("put", data)
        store.upload("upload", (data[start : start + (3 << 20)] for start in range(0, len(data), 3 << 20)))
        for key in ("put", "upload"):
            found, info = store.get(key)
            assert found == data
            assert info.size_bytes == len(data)
            assert info.crc32 in (None, zlib.crc32(data))
            assert store.get_range(key, 33 << 20, (33 << 20) + 100_000) == data[33 << 20 : (33 << 20) + 100_000]
            assert store.get_range(key, len(data) - 1, len(data)) == data[-1:]

    def test_keys_of_every_legal_character_come_back(self, backend: Backend, store: ObjectStore) -> None:
        printable = [chr(code) for code in range(0x20, 0x7F) if chr(code) != "/"]
        others = [
            "\u00a0",
            "\u00ad",
            "\u0301",
            "\u200b",
            "\u202e",
            "\u2028",
            "\ufeff",
            "\ufffd",
            "\U0001f600",
            "\U0010fffd",
        ]
        expected = {f"odd/{letter}x{number}" for number, letter in enumerate(printable + others)}
        expected |= {f"odd/x{letter}" for letter in printable + others if letter != "."}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, key.encode()), expected))
        assert keys(store, "odd/") == sorted(expected, key=str.encode)
        for key in expected:
            assert store.get(key)[0] == backend.raw_get(key) == key.encode()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store.delete, expected))
        assert keys(store) == []

    def test_a_bucket_that_keeps_versions_works_like_any_other(self, server: S3Server, bucket: str) -> None:
        server.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        store = S3ObjectStore(bucket, endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
        first = store.put("k", b"one", if_absent=True)
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"two", if_absent=True)
        second = store.put("k", b"two", if_match=first.etag)
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"three", if_match=first.etag)
        assert store.get("k") == (b"two", store.head("k"))
        store.delete("k")
        store.delete("k")
        with pytest.raises(ObjectNotFoundError):
            store.head("k")
        with pytest.raises(ObjectNotFoundError):
            store.get("k")
        assert keys(store) == []
        if self.delete_marker_ends_conditions:
            with pytest.raises(PreconditionFailedError):
                store.put("k", b"four", if_match=second.etag)
            store.put("k", b"five", if_absent=True)
        store.put("k", b"six")
        store.upload("up", [bytes(PART_BYTES), b"x"])
        assert keys(store) == ["k", "up"]

    def test_what_a_killed_uploader_left_can_be_found_and_dropped(self, server: S3Server, bucket: str) -> None:
        store = S3ObjectStore(bucket, ROOT, endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("endless_uploader.py")), bucket, ROOT, server.endpoint_url],
            env={**os.environ, "PYTHONPATH": str(_REPOSITORY)}, stdout=subprocess.PIPE, text=True,
        ) as uploader:  # fmt: skip
            assert uploader.stdout is not None
            assert uploader.stdout.readline() == "two parts are stored\n"
            uploader.kill()
        assert keys(store) == []
        (pending,) = store.list_uploads(self.pending_prefix)
        assert pending.key == "up/x"
        store.abort_upload(pending)
        assert list(store.list_uploads(self.pending_prefix)) == []


class StrictServerContract:
    """What moto lets pass and a real server must not; mix it in, with a fixture ``server``."""

    def test_a_wrong_secret_is_refused(self, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket = server.new_bucket()
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
        store = S3ObjectStore(bucket, endpoint_url=server.endpoint_url)
        calls: list[Callable[[], object]] = [
            lambda: store.put("k", b"x"),
            lambda: store.get("k"),
            lambda: store.delete("k"),
            lambda: list(store.list("")),
        ]
        for call in calls:
            with pytest.raises(InvalidRequestError) as caught:
                call()
            assert "credentials" in (caught.value.hint or "")
            assert "another-secret" not in str(caught.value)

    def test_bytes_that_do_not_match_their_checksum_are_refused(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = S3ObjectStore(server.new_bucket(), endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
        monkeypatch.setattr("tierlog.tiering.objects.s3_store.crc32_text", lambda _: crc32_text(1))
        with pytest.raises(ObjectStoreUnavailableError):  # as if they were damaged on the way: try again
            store.put("put", b"abc")
        monkeypatch.setattr("tierlog.tiering.objects.s3_store.crc32_text", lambda _: crc32_text(1))
        with pytest.raises(ObjectStoreUnavailableError):
            store.upload("upload", [bytes(PART_BYTES), b"abc"])
        assert keys(store) == []

    def test_a_whole_that_does_not_match_its_checksum_is_refused(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each part is right; what the server would make of them is not what was meant."""
        store = S3ObjectStore(server.new_bucket(), endpoint_url=server.endpoint_url, part_bytes=PART_BYTES)
        complete = MultipartUpload.complete

        def damage(upload: MultipartUpload, conditions: dict[str, str]) -> object:
            upload.crc32 ^= 1
            return complete(upload, conditions)

        monkeypatch.setattr(MultipartUpload, "complete", damage)
        with pytest.raises(StoreError):
            store.upload("upload", [bytes(PART_BYTES), b"abc"])
        assert keys(store) == []
