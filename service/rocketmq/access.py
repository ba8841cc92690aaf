"""Who signed a request of RocketMQ's clients: the signatures of both doors, verified with the secret of an entry.

=========== ======================================================= ==================================================
door        what is signed with HMAC-SHA1                           where the signature is
=========== ======================================================= ==================================================
remoting    the values of all other fields in the order of their    field ``Signature``, base64; the name is
            names, and then the body                                ``AccessKey``
gRPC        the value of ``x-mq-date-time``                         ``authorization``, hexadecimal; the name is
                                                                    ``Credential``
=========== ======================================================= ==================================================

A signature of gRPC says nothing about the call, and one of remoting nothing about the time: both can be sent again by
whoever has seen them. TLS keeps them from being seen.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from tierlog.service.access.caller import ANYBODY, Caller
from tierlog.service.access.control import AccessControl
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import UnauthenticatedError
from tierlog.tiering.rocketmq.frames import ACCESS_KEY, SIGNATURE, signature_of

#: The fields that a signed request has beside its own.
SIGNING_FIELDS = (ACCESS_KEY, SIGNATURE, "SecurityToken")
#: The field that clients up to version 4.9.3 add to look-ups after they have signed.
_UNSIGNED = "_UNIQUE_KEY_QUERY"
_LAST_WITH_UNSIGNED = 399
AUTHORIZATION = "authorization"
DATE_TIME = "x-mq-date-time"
_ALGORITHM = "MQv2-HMAC-SHA1"
_DATE_FORM = "%Y%m%dT%H%M%SZ"
#: Java's client writes the time of its own zone as if it were UTC; zones are from UTC-12 to UTC+14.
_ZONES_MS = (12 * 3_600_000, 14 * 3_600_000)
MAX_SKEW_MS = 15 * 60_000
#: Longer than any header that a client makes.
_MAX_HEADER = 2_048
#: What is compared for a name that nobody has, so that time does not tell which names exist.
_NOBODY = "nobody signs with this"
_HINT = "access key and secret key are `name` and `secret` of an entry in access.tokens_file (docs/access.md)"


class SignedAccess:
    """Finds the caller who signed a request; everybody, where no token was given at all. Thread safe.

    The answer is the same for an unknown name, an entry without a secret, one that was withdrawn or has expired, and a
    wrong signature.
    """

    def __init__(self, control: AccessControl | None, clock: Clock) -> None:
        self._control = control
        self._clock = clock

    @property
    def is_on(self) -> bool:
        """Whether anybody has to sign."""
        return self._control is not None and self._control.is_on

    def of_fields(self, fields: Mapping[str, str], body: bytes | memoryview, version: int) -> Caller:
        """Returns the caller who signed a request of the remoting protocol, all of whose fields are given.

        ``version`` is the client's. Raises :class:`UnauthenticatedError`.
        """
        if self._control is None or not self._control.is_on:
            return ANYBODY
        name, signature = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
        if not name or not signature:
            raise UnauthenticatedError("this needs a signature", hint=_HINT)
        left_out = {SIGNATURE, _UNSIGNED} if version <= _LAST_WITH_UNSIGNED else {SIGNATURE}
        try:
            given = binascii.a2b_base64(signature, strict_mode=True)
        except (binascii.Error, ValueError):
            given = b""
        return self._signer(name, given, lambda secret: signature_of(secret, fields, body, unsigned=left_out))

    def of_metadata(self, metadata: Mapping[str, str]) -> Caller:
        """Returns the caller who signed a gRPC call, whose metadata has names in lower case.

        Raises :class:`UnauthenticatedError`, also if the date is further from now than clocks and time zones explain.
        """
        if self._control is None or not self._control.is_on:
            return ANYBODY
        header, date = metadata.get(AUTHORIZATION, ""), metadata.get(DATE_TIME, "")
        algorithm, _, rest = header.partition(" ")
        if len(header) > _MAX_HEADER or algorithm != _ALGORITHM or not date:
            raise UnauthenticatedError("this needs a signature", hint=_HINT)
        parts = dict(part.strip().split("=", 1) for part in rest.split(",") if "=" in part)
        name = parts.get("Credential", "").partition("/")[0]
        try:
            given = bytes.fromhex(parts.get("Signature", ""))
        except ValueError:
            given = b""
        content = date.encode("utf-8", "surrogateescape")
        caller = self._signer(name, given, lambda secret: hmac.digest(secret.encode(), content, hashlib.sha1))
        self._check_date(date)
        return caller

    def _signer(self, name: str, signature: bytes, right: Callable[[str], bytes]) -> Caller:
        """Returns who has this name, if the signature is ``right`` of the secret."""
        entry = None if self._control is None else self._control.entry(name)
        secret = None if entry is None else entry.secret
        is_right = hmac.compare_digest(right(secret or _NOBODY), signature)
        if entry is None or secret is None or not is_right:
            raise UnauthenticatedError("this signature is of nobody who is known here, or not any more", hint=_HINT)
        return entry.caller

    def _check_date(self, date: str) -> None:
        try:
            signed_ms = int(datetime.strptime(date, _DATE_FORM).replace(tzinfo=UTC).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise UnauthenticatedError(f"`{DATE_TIME}` is not a time such as 20270131T000000Z") from None
        behind_ms, ahead_ms = _ZONES_MS
        if not -behind_ms - MAX_SKEW_MS <= signed_ms - self._clock.now_ms() <= ahead_ms + MAX_SKEW_MS:
            raise UnauthenticatedError(
                "the signature's time is too far from now", hint="set the clocks of the client and of the service"
            )
