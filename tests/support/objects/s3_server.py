"""S3 servers on free loopback ports, and moto's in this process for the whole session.

All servers of one test session take the same credentials, drawn for it: a server of somebody else that happens to
have taken the port is not mistaken for ours.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.loaders import Loader, create_loader
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

ACCESS_KEY = "key" + secrets.token_hex(6)
SECRET_KEY = secrets.token_hex(16)
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Server:
    """An endpoint, a client that is not the code under test, and a maker of fresh buckets."""

    endpoint_url: str
    client: Any
    new_bucket: Callable[[], str]
    #: Of a server that runs by itself, to be stopped and continued.
    process_id: int | None = None


@contextlib.contextmanager
def s3_environment() -> Iterator[None]:
    """Credentials in the environment, as a user would give them, and nothing of this machine's own set-up."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "AWS_PROFILE",
            "AWS_DEFAULT_REGION",
            "AWS_REGION",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr("botocore.session.create_loader", _shared_loader)
        yield


@functools.cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)


def _shared_loader(data_path: str | None = None) -> Loader:
    """Reads the SDK's descriptions of services once a process: they take longer than most tests that make a client."""
    loader = _loader(data_path)
    del loader.search_paths[len(set(loader.search_paths)) :]  # each session adds a folder, always the same
    return loader


@contextlib.contextmanager
def server_at(endpoint_url: str) -> Iterator[S3Server]:
    """A client for the server at this address, with the credentials of this session."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            s3={"addressing_style": "path"},
            signature_version="s3v4",
            retries={"total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=60,
        ),
    )
    numbers = itertools.count()

    def new_bucket() -> str:
        name = f"bucket-{next(numbers)}"
        client.create_bucket(Bucket=name)
        return name

    try:
        yield S3Server(endpoint_url, client, new_bucket)
    finally:
        client.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """moto, which runs wherever Python does; it accepts any credentials and any checksum."""
    with s3_environment(), pytest.MonkeyPatch.context() as patch:
        _make_puts_atomic(patch)
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)  # or every request is printed
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        with server_at(f"http://{host}:{port}") as found:
            yield found
        server.stop()


def _make_puts_atomic(patch: pytest.MonkeyPatch) -> None:
    """moto checks a condition and stores the object in two steps, and lets other requests in between."""
    lock = threading.Lock()
    unlocked = S3Response.put_object

    def put_object(self: Any) -> Any:
        with lock:
            return unlocked(self)

    patch.setattr(S3Response, "put_object", put_object)
