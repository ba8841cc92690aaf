"""The SDK's client as tierlog uses it: one bucket, every call bounded in time, errors of ``tiering.base.errors``.

Retries are the SDK's mode ``standard``: pauses of 50 ms and more, 1 s and more where the server says "slow down", each
drawn between nothing and all of it, and a budget of tries that runs dry in a storm, so that 16 threads before a server
that refuses everything send no more than one request a call. ``adaptive`` paces by itself, for minutes if it comes to
that, and no call is bounded then (``docs/decisions/0008-s3-client.md`` has both measured).

No credential leaves this module. The SDK writes signatures and session tokens to its loggers at DEBUG: those records
are dropped. Of an error that may quote a header only the class is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tierlog.tiering.base.clock import Clock, SystemClock
from tierlog.tiering.base.errors import ChecksumMismatchError, InvalidRequestError, ObjectStoreUnavailableError
from tierlog.tiering.objects.s3_protocol import CREDENTIALS_HINT, TimedBody, answer_error

_SDK_LOGGERS = ("boto3", "botocore", "s3transfer")
# Sent in one piece and without asking the server first, which would cost another round trip.
_SMALL_BODY_BYTES = 64 << 10
# A server that joins the parts of an upload may keep silent about it, the longer the more parts there are.
_PARTS_PER_S = 5.0

#: Where a machine says who made it: virtual machines of EC2, of the newer kind and of the older, and of other clouds.
_MAKERS = (
    *(Path("/sys/class/dmi/id", name) for name in ("sys_vendor", "bios_version", "chassis_asset_tag")),
    Path("/sys/hypervisor/uuid"),
)
#: In what the machines of a cloud say that serves metadata as EC2 does, at the same address.
_CLOUDS_LIKE_EC2 = ("amazon", "outscale", "openstack", "e24cloud", "zstack.io")
#: What sends the SDK to another address than EC2's for the role of an instance, from a variable or ``~/.aws/config``.
_METADATA_ENDPOINT = "ec2_metadata_service_endpoint"
_LOOKED_AT = (
    "looked at: AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, AWS_PROFILE (~/.aws/credentials and ~/.aws/config), "
    "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI and _RELATIVE_URI, and on EC2 "
    "the role of the instance"
)

_read_timeout_s: ContextVar[float | None] = ContextVar("read_timeout_s", default=None)


@dataclass(frozen=True, slots=True)
class S3Limits:
    """The limits of time of a call, and of the calls that run at once without waiting for a new connection.

    A request is tried ``max_attempts`` times. A try ends when a connection takes ``connect_timeout_s``, when the
    server is silent for ``read_timeout_s`` plus the time that the bytes sent may take at ``min_bytes_per_s``, or when
    the transfer as a whole is slower than that.
    """

    connections: int = 64
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    min_bytes_per_s: int = 128 << 10
    max_attempts: int = 3

    def patience_s(self, transfer_bytes: int) -> float:
        """Returns how long one try with so many bytes may take once it is connected."""
        return self.read_timeout_s + transfer_bytes / self.min_bytes_per_s

    def call_limit_s(self, transfer_bytes: int) -> float:
        """Returns how long all tries together may take, pauses included."""
        return self.max_attempts * (self.connect_timeout_s + self.patience_s(transfer_bytes)) + 2.0**self.max_attempts


DEFAULT_LIMITS = S3Limits()


class S3Client:
    """Operations of the SDK on one bucket. Thread safe."""

    def __init__(self, bucket: str, endpoint_url: str | None, limits: S3Limits, clock: Clock | None = None) -> None:
        self.limits = limits
        self.clock = clock or SystemClock()
        #: Whether some answer has shown that the bucket exists.
        self.bucket_seen = False
        self._bucket = bucket
        self._client = _make_client(endpoint_url, limits)

    def call(self, operation: str, key: str, tolerated: str = "", **arguments: Any) -> Any:
        """One operation of the SDK; None for the answer with the code ``tolerated``."""
        from botocore.exceptions import ClientError

        patience_s = self.limits.patience_s(0)
        body = arguments.get("Body")
        if body is not None:
            patience_s = self.limits.patience_s(len(body))
            limit_s = self.limits.call_limit_s(len(body))
            arguments["Body"] = (
                bytearray(body) if len(body) <= _SMALL_BODY_BYTES else TimedBody(body, self.clock, limit_s)
            )
        elif "MultipartUpload" in arguments:
            patience_s += len(arguments["MultipartUpload"]["Parts"]) / _PARTS_PER_S
        token = _read_timeout_s.set(patience_s)
        try:
            with sdk_errors(key):
                answer = getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            code = str(error.response.get("Error", {}).get("Code", ""))
            if tolerated and tolerated in (code, str(status)):
                return None
            message = str(error.response.get("Error", {}).get("Message", ""))
            raise answer_error(status, code, message, key) from error
        finally:
            _read_timeout_s.reset(token)
        self.bucket_seen = True
        return answer

    def close(self) -> None:
        self._client.close()


@contextmanager
def sdk_errors(key: str) -> Iterator[None]:
    """Turns what the SDK and its transport raise into our errors, except answers of the server."""
    from botocore import exceptions
    from urllib3.exceptions import HTTPError

    try:
        yield
    except exceptions.ClientError:
        raise
    except exceptions.FlexibleChecksumError as error:
        raise ChecksumMismatchError("the bytes do not match their checksum", path=key) from error
    except exceptions.NoCredentialsError as error:
        raise InvalidRequestError("there are no credentials for the object store", hint=_LOOKED_AT) from error
    except exceptions.PartialCredentialsError as error:
        raise InvalidRequestError(str(error), path=key, hint=CREDENTIALS_HINT) from error
    except exceptions.ParamValidationError as error:
        raise InvalidRequestError(str(error), path=key) from error
    except (exceptions.ConnectionError, exceptions.ReadTimeoutError, exceptions.ConnectionClosedError) as error:
        # they name the address, and no header
        raise ObjectStoreUnavailableError(f"the object store failed: {error}", path=key) from error
    except exceptions.HTTPClientError as error:
        # Whatever went wrong while sending: a header that cannot be sent is quoted in the text and in the cause.
        inner = error.kwargs.get("error", error)
        what = "the transfer took too long" if isinstance(inner, TimeoutError) else type(inner).__name__
        raise ObjectStoreUnavailableError(f"the object store failed: {what}", path=key) from None
    except (exceptions.BotoCoreError, HTTPError, OSError) as error:
        raise ObjectStoreUnavailableError(f"the object store failed: {error}", path=key) from error


def _make_client(endpoint_url: str | None, limits: S3Limits) -> Any:
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    if endpoint_url is not None and "@" in urlsplit(endpoint_url).netloc:
        raise InvalidRequestError(
            "the endpoint of the object store has a user or a password in it",
            hint="credentials come from the usual AWS variables and files",
        )
    config = Config(
        connect_timeout=limits.connect_timeout_s,
        read_timeout=limits.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": limits.max_attempts},
        max_pool_connections=limits.connections,
        signature_version="s3v4",
        s3={"addressing_style": "auto" if endpoint_url is None else "path"},
        # We send our own; the SDK's default would add trailers that some servers do not read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        core = botocore.session.get_session()
        if not _may_have_instance_role(core):  # nobody would answer, and each client would wait for seconds
            core.get_component("credential_provider").remove("iam-role")
        session = boto3.session.Session(botocore_session=core)
        region = session.region_name or "us-east-1"
        client = session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    except (BotoCoreError, ValueError) as error:
        raise InvalidRequestError(f"no S3 client can be made: {error}") from error
    client.meta.events.register("before-parameter-build.s3", _set_read_timeout)
    _keep_secrets_out_of_logs()
    return client


def _may_have_instance_role(core: Any) -> bool:
    """Whether somebody may answer a session of the SDK with the role of an instance.

    So it is where an address for that is set, on a machine of EC2 or of a cloud that is like it, and on one that does
    not say who made it.
    """
    if core.get_config_variable(_METADATA_ENDPOINT):
        return True
    makers = []
    for file in _MAKERS:
        with suppress(OSError):
            makers.append(file.read_text(encoding="utf-8", errors="replace").lower())
    named = any(cloud in maker for maker in makers for cloud in _CLOUDS_LIKE_EC2)
    return named or not makers or any(maker.startswith("ec2") for maker in makers)


def _set_read_timeout(context: dict[str, Any], **_: Any) -> None:
    read_timeout_s = _read_timeout_s.get()
    if read_timeout_s is not None:
        context["read_timeout"] = read_timeout_s


def _is_not_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _keep_secrets_out_of_logs() -> None:
    """A filter, as a level is easily undone, on each logger, as those of a parent do not see its children's records."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _SDK_LOGGERS:
            logging.getLogger(name).addFilter(_is_not_debug)
