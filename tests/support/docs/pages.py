"""The pages of the documentation, taken apart into what a test can run.

A fenced block is run by its language (CONTRIBUTING.md has the table), in the order of the page. HTML comments, which no
reader sees, say what else a block needs::

    <!-- docs: slow -->                   the page is run by make test-all
    <!-- docs: s3 -->                     an S3 server, with the buckets that the page names
    <!-- docs: sizes -->                  stores have the default sizes; elsewhere they are small
    <!-- docs: spark -->                  a Spark session named spark; the page is among Spark's tests
    <!-- docs: setup
    given log shop.log 2000               shell commands before the next block
    -->
    <!-- docs: setup python
    import io                             the same in Python
    -->
    <!-- docs: exit 1 -->                 the last command of the next block ends with 1
    <!-- docs: prints -->                 the next block is what the Python block before it prints
    <!-- docs: not run: why -->           the next block is only looked at
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

#: What a block may be in; ``text`` is for what nobody could run.
LANGUAGES = frozenset({"console", "sh", "python", "usage", "toml", "json", "yaml", "promql", "text"})

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>.*)$")
_COMMENT = re.compile(r"<!--\s*docs:\s*(?P<text>.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or a hidden one of a ``setup`` comment."""

    page: str
    line: int
    language: str
    text: str
    exit_code: int = 0
    is_printed: bool = False
    not_run: str | None = None
    is_hidden: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """Its blocks in order, and what it needs as a whole."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    needs: frozenset[str]


def all_pages() -> list[Page]:
    """The README and everything in docs."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [parse(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")) for file in files]


def parse(name: str, text: str) -> Page:
    """Take a page apart; ValueError where a comment or a fence cannot be right."""
    blocks: list[Block] = []
    needs: set[str] = set()
    pending: dict[str, str] = {}
    for kind, line, body, info in _parts(name, text):
        if kind == "comment":
            word, _, rest = body.partition(" ") if not body.startswith("setup") else ("setup", "", body)
            if word in ("slow", "s3", "spark", "sizes"):
                needs.add(word)
            elif word == "setup":
                first, _, script = rest.partition("\n")
                language = "python" if first.strip() == "setup python" else "sh"
                blocks.append(Block(name, line, language, script, is_hidden=True))
            elif word == "exit" or body == "prints":
                pending[word] = rest
            elif body.startswith("not run:") and body[8:].strip():
                pending["not run"] = body[8:].strip()
            else:
                raise ValueError(f"{name}:{line}: what is `docs: {body}`?")
        else:
            blocks.append(
                Block(
                    name, line, info, body,
                    int(pending.pop("exit", 0)), pending.pop("prints", None) is not None, pending.pop("not run", None),
                )
            )  # fmt: skip
    if pending:
        raise ValueError(f"{name}: no block follows the comment {sorted(pending)}")
    return Page(name, text, tuple(blocks), frozenset(needs))


def _parts(name: str, text: str) -> Iterator[tuple[str, int, str, str]]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is not None:
            end = number + 1
            while end < len(lines) and lines[end].strip() != fence["ticks"]:
                end += 1
            if end == len(lines):
                raise ValueError(f"{name}:{number + 1}: the block does not end")
            body = [line.removeprefix(fence["indent"]) for line in lines[number + 1 : end]]
            yield "block", number + 1, "\n".join(body), fence["info"].strip()
            number = end + 1
        elif lines[number].lstrip().startswith("<!-- docs:"):
            end = number
            while "-->" not in lines[end]:
                end += 1
            comment = _COMMENT.match("\n".join(lines[number : end + 1]).strip())
            if comment is None:
                raise ValueError(f"{name}:{number + 1}: not a comment of its own")
            yield "comment", number + 1, comment["text"], ""
            number = end + 1
        else:
            number += 1


@dataclass(frozen=True, slots=True)
class Command:
    """What follows a ``$``, and what the page shows of its output."""

    text: str
    shown: str


def commands_of(block: Block) -> list[Command]:
    """The commands of a ``console`` block; one goes on while its line ends with a backslash or a quote is open."""
    commands: list[Command] = []
    lines = block.text.split("\n")
    number = 0
    while number < len(lines):
        if not lines[number].startswith("$ "):
            raise ValueError(f"{block}: output without a command: {lines[number]!r}")
        command = [lines[number][2:]]
        number += 1
        while number < len(lines) and (command[-1].endswith("\\") or _is_open("\n".join(command))):
            command.append(lines[number])
            number += 1
        shown = []
        while number < len(lines) and not lines[number].startswith("$ "):
            shown.append(lines[number])
            number += 1
        commands.append(Command("\n".join(command), "\n".join(shown).strip("\n")))
    return commands


def _is_open(command: str) -> bool:
    """Whether a quote is open, or a here-document without its end."""
    here = re.search(r"<<-?\s*'?(\w+)'?", command)
    if here is not None:
        return here[1] not in command.split("\n")[1:]
    quote = ""
    skip = False
    for letter in command:
        if skip:
            skip = False
        elif letter == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
    return bool(quote)
