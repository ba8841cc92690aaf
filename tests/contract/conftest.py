"""The S3 server of ``tests.support``."""

from tests.support.objects.s3_server import s3_server

__all__ = ["s3_server"]
