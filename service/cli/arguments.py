"""Flags that several commands share, and the parser, whose errors are in our words with what may have been meant.

Imports nothing heavy: ``tierlog --help`` reads every command's flags.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tierlog.service.cli.errors import say, say_error
from tierlog.service.config.suggestions import did_you_mean
from tierlog.service.exit_codes import WRONG_USE
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.times import parse_time, seconds_hint

#: What a time may be, for the help of a flag.
TIMES = "2h (ago), today, 14:30, ms or RFC 3339"
#: Forms of rows, and of what is one document.
ROW_FORMS = ("table", "json", "ndjson", "csv", "arrow")
DOCUMENT_FORMS = ("table", "json", "ndjson")
#: Flags that override settings, by destination.
OVERRIDES = {
    "segment_bytes": "hot.segment_bytes",
    "queue_file_units": "hot.queue_file_units",
    "index_slots": "index.slots",
    "index_items": "index.items",
}


def add_target(parser: argparse.ArgumentParser, *, writes: bool, remote: bool = True, cold: bool = True) -> None:
    """Adds --root, --url, --cold and what goes with them."""
    group = parser.add_argument_group("where")
    group.add_argument("--root", type=Path, metavar="DIR", help="open the store in this directory")
    if remote:
        group.add_argument("--url", metavar="URL", help="ask a running service, for example http://127.0.0.1:8080")
        group.add_argument("--token-file", type=Path, metavar="FILE", help="with --url: its token; else TIERLOG_TOKEN")
        group.add_argument("--ca-file", type=Path, metavar="FILE", help="with --url: PEM file of who signed for it")
    if cold:
        text = "with --root: the store's archive (remembered)"
        if not writes:
            text += "; alone: read this archive directly"
        group.add_argument("--cold", metavar="URL", help=f"{text}; file:///dir or s3://bucket/prefix")
        group.add_argument("--store-id", metavar="ID", help="a new store's id; with --cold alone or --url: this store")
        if writes:
            text = "with --root and --cold: make the store from its archive first, in an empty directory"
            group.add_argument("--restore", action="store_true", help=text)
    if not writes:
        group.add_argument("--read-only", action="store_true", help="take no lock, write nothing; may be in use")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds --config and the sizes."""
    group = parser.add_argument_group("settings (docs/configuration.md)")
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    group.add_argument("--segment-bytes", metavar="N", help="bytes of a segment of a new store, or 64MiB")
    group.add_argument("--queue-file-units", type=int, metavar="N", help="units of a queue file of a new store")
    group.add_argument("--index-slots", type=int, metavar="N", help="hash slots of a new index file")
    group.add_argument("--index-items", type=int, metavar="N", help="items of a new index file")


def add_format(parser: argparse.ArgumentParser, *, forms: Sequence[str] = ROW_FORMS, times: bool = False) -> None:
    """Adds --format and --color; with ``times`` also --local-time."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=forms, help="table on a terminal, ndjson in a pipe unless told")
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto",
        help="colours in a table: on a terminal without NO_COLOR (auto), always or never",
    )  # fmt: skip
    if times:
        group.add_argument(
            "--local-time", action="store_true",
            help="times in this machine's zone, not UTC: those of a table, and those given without a zone",
        )  # fmt: skip


def asked_times(arguments: argparse.Namespace, *names: str) -> list[int | None]:
    """Returns the times that flags give, in ms since the epoch, None for those that are absent.

    Relative ones are of one moment, the clock of this machine. A time that looks like seconds gets a note.
    """
    now_ms, is_local = SystemClock().now_ms(), getattr(arguments, "local_time", False)
    found: list[int | None] = []
    for name in names:
        text: str | None = getattr(arguments, name)
        hint = None if text is None else seconds_hint(text)
        if hint is not None:
            say(hint)
        found.append(None if text is None else parse_time(text, now_ms, local=is_local))
    return found


def overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns what the flags say about settings; None where they say nothing."""
    return {name: getattr(arguments, flag, None) for flag, name in OVERRIDES.items()}


EXIT_CODES = "exit codes: 0 done, 1 findings or nothing found, 2 wrong use or bad input, 3 failed, 4 answer incomplete"


class CommandParser(argparse.ArgumentParser):
    """A parser that ends with exit code 2, the usage and one error for wrong flags."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses as the base class does, but the command that was asked refuses a flag that does not exist."""
        given = sys.argv[1:] if args is None else list(args)
        for parser in (self, *_children(self)):
            parser._form = asked_form(given)
        found, unknown = self.parse_known_args(given, namespace)
        if unknown:
            command = _command_of(self, getattr(found, "command", None))
            flags = [flag for action in command._actions for flag in action.option_strings]
            command.refuse(
                f"unknown argument {unknown[0]!r}" + (f" (and {len(unknown) - 1} more)" if unknown[1:] else ""),
                _flag_hint(unknown[0].partition("=")[0], flags) if unknown[0].startswith("-") else None,
            )
        return found

    _form: str | None = None

    def error(self, message: str) -> NoReturn:
        """Refuses what the base class found to be wrong."""
        self.refuse(message, None)

    def refuse(self, message: str, hint: str | None) -> NoReturn:
        """Prints the error and ends."""
        if self._form is None:
            print(f"usage: {self.prog} {self._short_usage()}", file=sys.stderr)
        say_error(InvalidRequestError(message, hint=hint or f"`{self.prog} --help` tells more"), self._form)
        self.exit(WRONG_USE)

    def _short_usage(self) -> str:
        """Returns the arguments without the flags, which fill a screen."""
        words = [action.metavar or action.dest for action in self._actions if not action.option_strings]
        return " ".join(["[flags]", *map(str, words)])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        what = "command" if isinstance(action, argparse._SubParsersAction) else "/".join(action.option_strings)
        self.refuse(
            f"no such {what} {value!r}" if what == "command" else f"{what or action.dest} cannot be {value!r}",
            did_you_mean(str(value), known) or f"one of {', '.join(known)}",
        )


def asked_form(argv: Sequence[str]) -> str | None:
    """Returns ``json`` or ``ndjson`` if it is asked for, also where the rest cannot be read."""
    for number, word in enumerate(argv):
        if word.startswith("--format"):
            value = word.partition("=")[2] or next(iter(argv[number + 1 : number + 2]), "")
            return value if value in ("json", "ndjson") else None
    return None


def with_examples(examples: Iterable[tuple[str, str]]) -> str:
    """Writes what stands below a command's flags: examples as (what it does, command), and the exit codes."""
    lines = [line for says, command in examples for line in (f"  # {says}", f"  {command}")]
    return "\n".join(["examples:", *lines, "", EXIT_CODES] if lines else [EXIT_CODES])


_A_MESSAGE = "`tierlog message ID` shows the message with an id"
#: Where what a flag was meant to ask is answered, if not by a flag of this command.
_ANSWERED_BY = {
    "--id": _A_MESSAGE,
    "--message-id": _A_MESSAGE,
    "--tag": "`tierlog tail TOPIC --tag EXPR` reads messages by their tag",
}


def _flag_hint(flag: str, flags: Iterable[str]) -> str | None:
    return _ANSWERED_BY.get(flag) or did_you_mean(flag, flags)


def _children(parser: CommandParser) -> Iterator[CommandParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _command_of(parser: CommandParser, name: str | None) -> CommandParser:
    return next((child for child in _children(parser) if child.prog == f"{parser.prog} {name}"), parser)


class VersionAction(argparse.Action):
    """``--version``, looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, **more)

    def __call__(self, parser: argparse.ArgumentParser, *given: object, **more: object) -> None:
        """Prints it and ends."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("tierlog")
        except PackageNotFoundError:  # a checkout that was not installed
            found = "(not installed)"
        print(f"tierlog {found}")
        parser.exit()
