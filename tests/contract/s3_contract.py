"""What an S3 server has to do beside the contract of every store, as one suite over all servers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.contract.contract_base import PART_BYTES, Backend
from tests.contract.object_store_contract import FailedStoreContract, ObjectStoreContract
from tests.support.s3_server import S3Server
from tiering.cold.object_store import ObjectStore
from tiering.cold.s3 import S3ObjectStore
from tiering.errors import InvalidRequestError, ObjectNotFoundError, ObjectStoreUnavailableError

ROOT = "the/root"


class S3Contract(ObjectStoreContract, FailedStoreContract):
    """Subclass it and give a fixture ``server``."""

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
                connect_timeout_s=1,
                read_timeout_s=1,
                max_attempts=1,
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
