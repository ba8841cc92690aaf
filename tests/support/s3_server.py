"""moto's S3 server, in this process and on a free loopback port, for the whole session."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer


@dataclass(frozen=True)
class S3Server:
    """An endpoint, a client that is not the code under test, and a maker of fresh buckets."""

    endpoint_url: str
    client: Any
    new_bucket: Callable[[], str]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Credentials are in the environment while the server runs, as a user would give them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "AWS_PROFILE",
            "AWS_DEFAULT_REGION",
            "AWS_REGION",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("NO_PROXY", "127.0.0.1")
        _make_puts_atomic(patch)
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)  # or every request is printed
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint_url = f"http://{host}:{port}"
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint_url,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        numbers = itertools.count()

        def new_bucket() -> str:
            name = f"bucket-{next(numbers)}"
            client.create_bucket(Bucket=name)
            return name

        yield S3Server(endpoint_url, client, new_bucket)
        client.close()
        server.stop()


def _make_puts_atomic(patch: pytest.MonkeyPatch) -> None:
    """moto checks a condition and stores the object in two steps, and lets other requests in between."""
    lock = threading.Lock()
    unlocked = S3Response.put_object

    def put_object(self: Any) -> Any:
        with lock:
            return unlocked(self)

    patch.setattr(S3Response, "put_object", put_object)
