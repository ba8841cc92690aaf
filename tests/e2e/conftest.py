"""The S3 server and the shell of ``tests.support``."""

from tests.support.s3_server import s3_server
from tests.support.shell import shell

__all__ = ["s3_server", "shell"]
