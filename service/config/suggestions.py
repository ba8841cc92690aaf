"""Suggestions of what was meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

_LIKENESS = 0.6
#: Words that other programs have for one of ours, where likeness leads astray: "desc" is more like "oldest".
_OTHER_WORDS = {
    "newest": ("desc", "descending", "newest-first", "latest", "latest-first", "last"),
    "oldest": ("asc", "ascending", "oldest-first", "earliest", "earliest-first", "first"),
    "ndjson": ("jsonl", "jsonlines", "json-lines"),
    "--from": ("--since", "--after", "--start", "--begin"),
    "--to": ("--until", "--before", "--end"),
    "--limit": ("--max", "--count", "--head", "-n"),
    "--format": ("--output", "-o"),
}
_OUR_WORDS = {other: ours for ours, others in _OTHER_WORDS.items() for other in others}


def closest(written: str, known: Iterable[str], *, likeness: float = _LIKENESS) -> str | None:
    """Returns the one of the known names that others call so, or the most alike; None if none is alike enough.

    The dashes of a flag make no likeness.
    """
    names = {name.lower(): name for name in known}
    ours = names.get(_OUR_WORDS.get(written.lower(), ""))
    if ours is not None:
        return ours
    import difflib  # only those who mistyped wait for it

    bare = {name.lstrip("-"): name for name in names}
    found = difflib.get_close_matches(written[:200].lower().lstrip("-"), bare, n=1, cutoff=likeness)
    return names[bare[found[0]]] if found else None


def did_you_mean(written: str, known: Iterable[str]) -> str | None:
    """Returns the question as text, None if there is nothing to suggest."""
    found = closest(written, known)
    return None if found is None or found == written else f"did you mean {found!r}?"
