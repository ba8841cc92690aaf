"""The S3 servers and the shell of ``tests.support``."""

from tests.support.objects.real_s3 import own_server
from tests.support.objects.s3_server import s3_server
from tests.support.processes.shell import shell

__all__ = ["own_server", "s3_server", "shell"]
