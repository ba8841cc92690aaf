"""The contract suite over MinIO and versitygw."""

from __future__ import annotations

import pytest

from tests.contract.s3_contract import S3Contract
from tests.support.s3_server import S3Server


class TestMinio(S3Contract):
    pending_prefix = "up/x"  # it lists pending uploads of one exact key only

    @pytest.fixture
    def server(self, minio: S3Server) -> S3Server:
        return minio


class TestVersitygw(S3Contract):
    @pytest.fixture
    def server(self, versitygw: S3Server) -> S3Server:
        return versitygw
