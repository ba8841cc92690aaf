"""Tag expressions as RocketMQ's consumers write them: ``TagA || TagB``, and ``*`` for every message."""

from __future__ import annotations

from dataclasses import dataclass

from tiering.errors import InvalidRequestError
from tiering.format.hashing import tag_hash

EVERYTHING = "*"
_SEPARATOR = "||"
_MAX_TAGS = 100


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Messages that have one of some tags. A queue unit holds a hash only, so the text is compared as well."""

    tags: frozenset[str]
    hashes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter | None:
        """The filter of an expression; None for one that every message passes: nothing, an empty text or ``*``.

        Raises :class:`InvalidRequestError` for separators without a tag, and for more than 100 tags.
        """
        if not expression or expression == EVERYTHING:
            return None
        tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip()))
        if not 1 <= len(tags) <= _MAX_TAGS:
            raise InvalidRequestError(
                f"tag expression with {len(tags)} tags", hint=f"1 to {_MAX_TAGS} tags separated by ||, or *"
            )
        return cls(tags, frozenset(tag_hash(tag) for tag in tags))
