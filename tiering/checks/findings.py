"""The findings of a check: exceptions from what must hold, and what is only worth knowing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

#: After so many lines about one object the rest is counted: one broken file is not the whole report.
_MOST_OF_ONE = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One exception; ``object`` is the object of the archive that it is about, None for the local store."""

    object: str | None
    text: str

    def __str__(self) -> str:
        return self.text if self.object is None else f"{self.object}: {self.text}"


@dataclass(slots=True)
class Findings:
    """Collected by the checks. ``notes`` are no exceptions: what lies in the bucket and will go by itself.

    ``unasked`` says in words what could not be looked at, because the object store did not answer: nobody knows whether
    it is as it must be.
    """

    found: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, about: str | None, text: str) -> None:
        """An exception."""
        count = self._counts[about or ""] = self._counts.get(about or "", 0) + 1
        if about is None or count <= _MOST_OF_ONE:
            self.found.append(Finding(about, text))
        elif count == _MOST_OF_ONE + 1:
            self.found.append(Finding(about, "and more of that kind"))

    def extend(self, lines: Iterable[str]) -> Findings:
        """Exceptions of the local store; returns itself."""
        self.found += (Finding(None, line) for line in lines)
        return self

    def note(self, about: str, text: str) -> None:
        self.notes.append(Finding(about, text))

    def count_of(self, about: str) -> int:
        return self._counts.get(about, 0)

    def to_json(self) -> dict[str, object]:
        """Lines as people read them, and the same apart from the objects."""
        return {
            "findings": self.lines(),
            "details": [{"object": finding.object, "text": finding.text} for finding in self.found],
            "notes": [{"object": note.object, "text": note.text} for note in self.notes],
            "unasked": self.unasked,
        }

    def lines(self) -> list[str]:
        return [str(finding) for finding in self.found]
