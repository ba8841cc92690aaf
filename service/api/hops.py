"""Which headers pass a node on the way to another and back, and which are about one connection only (RFC 9110, 7.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.observing.requests import current_request
from tiering.errors import InvalidRequestError

Pairs = list[tuple[bytes, bytes]]

_OF_A_CONNECTION = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
#: What this node has judged for both, or says in its own way.
_JUDGED_HERE = frozenset(
    (
        b"host", b"expect", b"origin", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site", b"sec-fetch-user",
        b"x-request-id",
    )
)  # fmt: skip
_SAID_HERE = frozenset((b"date", b"server", b"x-request-id"))


def request_headers(given: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> Pairs:
    """Headers of a request as it is sent on, ``more`` in place of others of those names.

    :class:`InvalidRequestError` for a value that is no UTF-8, which the client library would change.
    """
    found = _passed(given, _JUDGED_HERE, more)
    for name, value in found:
        try:
            value.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"header {name.decode('latin-1')!r} is no UTF-8") from None
    request = current_request()
    if request is not None:
        found.append((b"x-request-id", request.request_id.encode()))
    return found


def answer_headers(given: Iterable[tuple[bytes, bytes]], more: Mapping[str, str]) -> Pairs:
    """Headers of an answer as it is handed back."""
    return _passed(given, _SAID_HERE, more)


def _passed(given: Iterable[tuple[bytes, bytes]], left_out: frozenset[bytes], more: Mapping[str, str]) -> Pairs:
    headers = [(name.lower(), value) for name, value in given]
    named = (part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b","))
    ours = {name.lower().encode(): value.encode() for name, value in more.items()}
    dropped = {*_OF_A_CONNECTION, *left_out, *named, *ours}
    if any(name == b"transfer-encoding" for name, _ in headers):
        dropped.add(b"content-length")  # says something else than the body
    return [*((name, value) for name, value in headers if name not in dropped), *ours.items()]
