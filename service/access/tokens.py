"""Bearer tokens, and their entries in the tokens file and in the environment: each a token's hash and its rights.
An entry may have a secret too, with which its holder signs requests to the doors for RocketMQ's clients.

A token is ``tierlog_`` and 256 random bits in hex. Nobody guesses 256 bits, however fast the hash, so a plain
SHA-256 keeps a token as safe as a slow password hash would, and checking one costs about a microsecond. The prefix
lets scanners of repositories and logs recognise a token that went astray.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tierlog.service.access.caller import Caller, Scope
from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.randomness import Randomness
from tierlog.tiering.base.times import parse_time

PREFIX = "tierlog_"
SECRET_PREFIX = "tierlogsecret_"
_RANDOM_BYTES = 32
#: A longer token cannot be ours, and is not hashed.
MAX_LENGTH = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Characters of topics' names, and those that a shell pattern adds.
_PATTERN = re.compile(r"[%|A-Za-z0-9_*?!\[\]^-]{1,255}")
#: What separates entries and their fields in the environment is no part of a secret.
_SECRET = re.compile(r"[A-Za-z0-9._~+/=@%-]{16,256}")
_FIELDS = {"name", "sha256", "secret", "scopes", "topics", "expires"}
_HINT = "`tierlog token` prints a token and its entry"


def new_token(randomness: Randomness) -> str:
    """Makes a token that nobody has; only its :func:`digest` should be kept."""
    return PREFIX + randomness.token_hex(_RANDOM_BYTES)


def new_secret(randomness: Randomness) -> str:
    """Makes a secret that nobody has; whoever verifies signatures has to keep it as it is."""
    return SECRET_PREFIX + randomness.token_hex(_RANDOM_BYTES)


def digest(token: str) -> bytes:
    """Returns the SHA-256 of all the token's text: all that is kept of it, and compared."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One token, known by the digest of its text; ``secret`` signs, None where the holder cannot."""

    caller: Caller
    digest: bytes
    expires_ms: int | None = None
    secret: str | None = field(default=None, repr=False)

    def is_valid(self, now_ms: int) -> bool:
        """Whether it has not expired."""
        return self.expires_ms is None or now_ms < self.expires_ms


def find_caller(entries: Iterable[Entry], token: str, now_ms: int) -> Caller | None:
    """Returns the caller whose token it is, None for an unknown or expired one.

    Every entry is compared whole, whichever fits, so that time tells nothing about any of them.
    """
    if len(token) > MAX_LENGTH:
        return None
    given, found = digest(token), None
    for entry in entries:
        is_it = hmac.compare_digest(entry.digest, given)
        if is_it and entry.is_valid(now_ms):
            found = entry.caller
    return found


def read_toml(text: str, source: str) -> list[Entry]:
    """Reads the entries of a tokens file, at least one; :class:`InvalidRequestError` names every wrong one."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"the tokens file is not TOML: {error}", path=source) from error
    tables = document.pop("token", None)
    if document or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InvalidRequestError(
            "a tokens file consists of tables [[token]] and nothing else, and has at least one", path=source, hint=_HINT
        )
    return _entries([(f"entry {number}", table) for number, table in enumerate(tables, 1)], source)


def read_lines(text: str, source: str) -> list[Entry]:
    """Reads entries as a secret in the environment holds them, one a line or with ``;`` between them.

    ``name:sha256:scopes:topics`` and perhaps ``:expiry``; several scopes and topics have commas between them. A secret
    follows the hash after a slash: ``sha256/secret``.
    """
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in enumerate((part.strip() for part in re.split("[\n;]", text)), 1):
        if not line or line.startswith("#"):
            continue
        name, *rest = line.split(":", 4)
        if len(rest) < 3:
            raise InvalidRequestError(
                f"entry {number} of {source} is not name:sha256[/secret]:scopes:topics[:expiry]", hint=_HINT
            )
        hashed, slash, secret = rest[0].partition("/")
        table: dict[str, Any] = {"name": name, "sha256": hashed}
        if slash:
            table["secret"] = secret
        table |= {field: value.split(",") for field, value in zip(("scopes", "topics"), rest[1:3], strict=True)}
        if len(rest) == 4:
            table["expires"] = rest[3]
        if table["topics"] == [""]:
            table["topics"] = []
        tables.append((f"entry {number}", table))
    return _entries(tables, source)


def check_unique(entries: Iterable[Entry], source: str) -> None:
    """Raises for a name or a token that occurs twice: nobody would know which of the two counts."""
    names: set[str] = set()
    digests: set[bytes] = set()
    for entry in entries:
        if entry.caller.name in names:
            raise InvalidRequestError(f"the name {entry.caller.name!r} stands twice among the tokens", path=source)
        if entry.digest in digests:
            raise InvalidRequestError(f"the token of {entry.caller.name!r} has another entry too", path=source)
        names.add(entry.caller.name)
        digests.add(entry.digest)


def _entries(tables: list[tuple[str, Mapping[str, Any]]], source: str) -> list[Entry]:
    found, wrong = [], []
    for place, table in tables:
        try:
            found.append(_entry(table))
        except StoreError as error:
            name = table.get("name")
            is_named = isinstance(name, str) and _NAME.fullmatch(name) is not None
            wrong.append(f"{place} ({name}): {error.message}" if is_named else f"{place}: {error.message}")
    if wrong:
        raise InvalidRequestError("; ".join(wrong), path=source, hint=_HINT)
    if not found:
        raise InvalidRequestError("there is no token in it, so nobody could come in", path=source, hint=_HINT)
    check_unique(found, source)
    return found


def _entry(table: Mapping[str, Any]) -> Entry:
    """Reads one entry.

    Values of ``sha256`` and ``secret`` are never repeated in an error: they may be the token itself. Nor is any other
    value of an entry with a secret: with a ``:`` in it, the rest of a secret stands where the scopes should.
    """
    unknown = sorted(set(table) - _FIELDS)
    if unknown:
        raise InvalidRequestError(f"there is no field {unknown[0]!r}, only {', '.join(sorted(_FIELDS))}")
    name, hashed = table.get("name"), table.get("sha256")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError("`name` must be 1 to 64 letters, digits, dots, dashes, underlines or @")
    if isinstance(hashed, str) and hashed.startswith(PREFIX):
        raise InvalidRequestError("`sha256` has the token itself, which now counts as lost; it must have its SHA-256")
    if not isinstance(hashed, str) or not _SHA256.fullmatch(hashed):
        raise InvalidRequestError("`sha256` must be the 64 lower-case hex digits of the token's SHA-256")
    secret = table.get("secret")
    if isinstance(secret, str) and (secret.startswith(PREFIX) or digest(secret).hex() == hashed):
        raise InvalidRequestError("`secret` has the token itself, which now counts as lost; the two must differ")
    if "secret" in table and not (isinstance(secret, str) and _SECRET.fullmatch(secret)):
        raise InvalidRequestError("`secret` must be 16 to 256 letters, digits or any of . _ ~ + / = @ % -")
    names = _list(table, "scopes")
    try:
        scopes = frozenset(Scope(one) for one in names)
    except ValueError as error:
        known = ", ".join(repr(str(scope)) for scope in Scope)
        shown = f", not one of {names}" if secret is None else ""
        raise InvalidRequestError(f"a scope is one of {known}{shown}") from (error if secret is None else None)
    if not scopes:
        raise InvalidRequestError("`scopes` is empty, so the token would be good for nothing")
    topics = _list(table, "topics")
    for pattern in topics:
        if not _PATTERN.fullmatch(pattern):
            shown = f"the topic pattern {pattern!r}" if secret is None else "a topic pattern"
            raise InvalidRequestError(f"{shown} fits no topic's name")
    expires_ms = _time(table["expires"]) if "expires" in table else None
    return Entry(Caller(name, scopes, tuple(topics)), bytes.fromhex(hashed), expires_ms, secret)


def _list(table: Mapping[str, Any], field: str) -> list[str]:
    """Reads a required list; an omitted list of rights is an error, not a default."""
    value = table.get(field)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidRequestError(f'`{field}` must be a list of strings, such as ["*"]')
    return [one.strip() for one in value]


def _time(value: object) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidRequestError("`expires` has no time zone: end it with Z for UTC")
        return int(value.timestamp() * 1000)
    if not isinstance(value, str):
        raise InvalidRequestError("`expires` must be a time such as 2027-01-31T00:00:00Z")
    try:
        return parse_time(value)
    except ValueError as error:
        raise InvalidRequestError("`expires` must be a time such as 2027-01-31T00:00:00Z") from error
