"""Writes ``docs/cli.md`` out of the parsers of the command line: ``python -m docs.tools.cli``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from tierlog.service.main import COMMANDS, EXAMPLES, build_parser

_PAGE = Path(__file__).resolve().parents[1] / "cli.md"
_HEAD = """# The command line

<!-- Made by `python -m docs.tools.cli` from service/cli. Change it there. -->

`tierlog COMMAND …` works on a store's directory (`--root DIR`, opened in this process; with `--read-only` without a
lock, also while it is in use), on a running service (`--url URL`), or on an archive alone (`--cold URL`), and
answers the same wherever it is asked. Ranges hold their first ms and not their last.

A time is relative to the clock of this machine, `2h` (two hours ago), `now`, `now-2h`, `now+5m`, `today`, `yesterday`,
`today+8h`, `14:30` (today); or RFC 3339, of which the zone or the time of day may be left out; or ms since the epoch.
Units are `ms`, `s`, `m`, `h`, `d` and `w`. What says no zone is UTC, and days begin at midnight UTC; with
`--local-time` both are those of this machine, as the times of a table then are. A number of ten digits is ms as any
other, and gets a note, because it looks like seconds.

Results go to standard output: a table on a terminal, NDJSON in a pipe, else what `--format` says. Everything else
goes to standard error: progress (on a terminal only), notes, and one error. In a table bodies are cut to the width
of the terminal, keys and times never; bytes have a unit there, and are exact in every other format. `NO_COLOR` and
`--color` are obeyed.

| exit code | means |
|---|---|
| 0 | done |
| 1 | findings, or nothing found |
| 2 | wrong use or bad input; nothing was changed, unless the error says so |
| 3 | failed |
| 4 | the answer is incomplete, for any reason but `--limit` |

With `--format json` or `ndjson` an error is one JSON document on standard error, its members those of the service's
problem documents (`type`, `title`, `detail`, `hint`, `path`, `position`) and `exit_code`; lines before it are notes.
"""
_SHARED = ("where", "settings (docs/configuration.md)", "output")


def page() -> str:
    """Returns the whole page."""
    parsers = dict(_parsers())
    rows = "".join(
        f"| [`{name}`](#tierlog-{name}) | {_cell(module.HELP)} |\n" for name, module in _named(COMMANDS)
    )  # fmt: skip
    text = f"{_HEAD}\n{_examples(EXAMPLES)}\n| command | does |\n|---|---|\n{rows}"
    for name, module in _named(COMMANDS):
        parser = parsers[name]
        text += f"\n## tierlog {name}\n\n{_sentence(module.HELP)}\n\n{_examples(module.EXAMPLES)}"
        text += "".join(_tables(parser))
    return text


def _named(modules: Iterable[ModuleType]) -> Iterator[tuple[str, ModuleType]]:
    for module in modules:
        yield module.__name__.rpartition(".")[2], module


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _examples(examples: Iterable[tuple[str, str]]) -> str:
    return "".join(f"* {_sentence(says)[:-1]}: `{command}`\n" for says, command in examples)


def _tables(parser: argparse.ArgumentParser) -> Iterator[str]:
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if rows:
            title = "" if group.title not in _SHARED else f"\n{_sentence(str(group.title))[:-1]}:\n"
            head = "argument" if not group._group_actions[-1].option_strings else "flag"
            yield f"{title}\n| {head} | default | meaning |\n|---|---|---|\n{''.join(rows)}"


def _row(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        many = {"+": "…", "*": "…"}.get(str(action.nargs), "")
        shown = f"`{value}{many}`"
    elif action.nargs == 0:
        shown = ", ".join(f"`{flag}`" for flag in action.option_strings)
    else:
        shown = ", ".join(f"`{flag} {value}`" for flag in action.option_strings)
    default = action.default
    is_told = default not in (None, False, [], argparse.SUPPRESS)
    said = f"`{default}`" if is_told else "needed" if action.required and action.nargs != "?" else ""
    repeated = isinstance(action, argparse._AppendAction)
    return f"| {_cell(shown)} | {said} | {_cell(action.help or '')}{' (repeatable)' if repeated else ''} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def main() -> int:
    """Writes the page."""
    _PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
