"""The caller of a request, and the rights that it has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from tierlog.tiering.base.errors import ForbiddenError
from tierlog.tiering.format.generation import record_topic

#: What to do about a missing right.
ASK = "ask who runs this service"


class Scope(StrEnum):
    """The kinds of requests. ``ADMIN`` is about the store as a whole, and includes no other scope."""

    PRODUCE = "produce"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """A holder of rights: scopes, and the topics they are for as shell patterns (``orders``, ``shop-*``, ``*``)."""

    name: str
    scopes: frozenset[Scope]
    topics: Sequence[str] = ("*",)

    def may(self, scope: Scope, topic: str | None = None) -> bool:
        """Returns whether the caller may do ``scope``, to ``topic`` if one is given."""
        if scope not in self.scopes:
            return False
        if topic is None or self.is_unlimited:
            return True
        name = record_topic(topic)  # a right to a topic is one to all its generations
        return any(fnmatchcase(name, pattern) for pattern in self.topics)

    @property
    def is_unlimited(self) -> bool:
        """Whether the rights are for every topic, so that nothing has to be left out of an answer."""
        return "*" in self.topics

    @property
    def window(self) -> str:
        """The name that tells this caller's numbered appends from those of others, in records too: the same for ever.

        64 bits of the SHA-256 of the name, so that a new token of the same name goes on; empty for :data:`ANYBODY`.
        """
        return "" if self is ANYBODY else hashlib.sha256(self.name.encode()).hexdigest()[:16]

    def check(self, scope: Scope, topic: str | None = None) -> None:
        """Raises :class:`ForbiddenError` unless :meth:`may`; its words are the same whether the topic exists or not."""
        if not self.may(scope, topic):
            what = "" if topic is None else f" topic {topic!r}"
            raise ForbiddenError(f"{self.name!r} has no right to {scope}{what}", hint=ASK)

    def check_everywhere(self, scope: Scope) -> None:
        """Raises :class:`ForbiddenError` unless ``scope`` may be done to the store as a whole, every topic of it."""
        if not (self.is_unlimited and self.may(scope)):
            raise ForbiddenError(f"{self.name!r} has no right to {scope} all topics", hint=ASK)


#: Everybody, where access control is off.
ANYBODY = Caller("anybody", frozenset(Scope))


def every_topic(topic: str) -> bool:
    """Returns True: for callers who may read every topic."""
    return True
