"""Bearer tokens: what one looks like, and what is kept of it.

A token is ``tierlog_`` and 256 random bits in hex. Nobody guesses 256 bits, however fast the hash, so a plain SHA-256
keeps a token as safe as a slow password hash would, and checking one costs about a microsecond. The prefix lets
scanners of repositories and logs recognise a token that went astray.
"""

from __future__ import annotations

import hashlib

from tiering.randomness import Randomness

PREFIX = "tierlog_"
_RANDOM_BYTES = 32
#: A longer one is none of ours, and is not hashed.
MAX_LENGTH = 512


def new_token(randomness: Randomness) -> str:
    """A token that nobody has; only its :func:`digest` should be kept."""
    return PREFIX + randomness.token_hex(_RANDOM_BYTES)


def digest(token: str) -> bytes:
    """What is kept of a token, and compared: SHA-256 of all its text."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
