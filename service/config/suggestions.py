"""Suggestions of what was meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

_LIKENESS = 0.6


def closest(written: str, known: Iterable[str]) -> str | None:
    """Returns the most alike of the known names, None if none is alike enough."""
    import difflib  # only those who mistyped wait for it

    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(written[:200].lower(), names, n=1, cutoff=_LIKENESS)
    return names[found[0]] if found else None


def did_you_mean(written: str, known: Iterable[str]) -> str | None:
    """Returns the question as text, None if there is nothing to suggest."""
    found = closest(written, known)
    return None if found is None or found == written else f"did you mean {found!r}?"
