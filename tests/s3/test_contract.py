"""The contract suite over MinIO and versitygw."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.contract.s3_contract import S3Contract, StrictServerContract
from tests.support.objects.real_s3 import running_server
from tests.support.objects.s3_server import S3Server
from tierlog.tiering.objects.s3_store import S3ObjectStore


class TestMinio(S3Contract, StrictServerContract):
    @pytest.fixture
    def server(self, minio: S3Server) -> S3Server:
        return minio

    def test_uploads_that_a_restarted_server_forgot_to_list_are_removed_by_itself(self, tmp_path: Path) -> None:
        extra = {"MINIO_API_STALE_UPLOADS_EXPIRY": "3s", "MINIO_API_STALE_UPLOADS_CLEANUP_INTERVAL": "1s"}
        with running_server("minio", tmp_path) as server:
            bucket = server.new_bucket()
            server.client.create_multipart_upload(Bucket=bucket, Key="a/k")
            store = S3ObjectStore(bucket, endpoint_url=server.endpoint_url)
            assert [pending.key for pending in store.list_uploads("a/")] == ["a/k"]
        with running_server("minio", tmp_path, extra) as server:
            store = S3ObjectStore(bucket, endpoint_url=server.endpoint_url)
            assert list(store.list_uploads("a/")) == []
            deadline = time.monotonic() + 60
            while list(store.list_uploads("a/k")):
                assert time.monotonic() < deadline
                time.sleep(0.5)


class TestVersitygw(S3Contract, StrictServerContract):
    # Where it keeps versions, it compares with the one before the delete marker. No name of ours is used again.
    delete_marker_ends_conditions = False

    @pytest.fixture
    def server(self, versitygw: S3Server) -> S3Server:
        return versitygw
