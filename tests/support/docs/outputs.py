"""Whether a command said what the page shows of it."""

from __future__ import annotations

import re

#: What differs from run to run though nothing is wrong: times, drawn ids, message ids, how long it took.
_SAME = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}(?!\d)"), "TIME"),
    (re.compile(r"(?<!\d)1[6-9]\d{11}(?!\d)"), "MS"),
    (re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{16}(?![0-9A-Za-z])|(?<![0-9A-Za-z])[0-9A-F]{32}(?![0-9A-Za-z])"), "ID"),
    (re.compile(r"(?<=-)[0-9a-f]{8}(?=\.)"), "ID"),
)


def is_as_shown(shown: str, said: str) -> bool:
    """``…`` stands for anything in its line, alone in a line for any lines; blanks and rules count as one."""
    parts = []
    for line in shown.strip("\n").split("\n"):
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(piece) for piece in _plain(line).split("…")) + r"\s*\n")
    lines = [_plain(line) for line in said.strip("\n").split("\n")]
    return re.fullmatch("".join(parts), "\n".join(lines) + "\n") is not None


def _plain(line: str) -> str:
    for pattern, word in _SAME:
        line = pattern.sub(word, line)
    line = re.sub(r"(-{3,}|─{3,}|━{3,})", "---", line)
    return re.sub(r"[ \t]+", " ", line).strip()
