"""Reading of flags: errors in our words, with what may have been meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from service.cli.errors import WRONG_USE, say_error
from service.suggestions import did_you_mean
from tiering.errors import InvalidRequestError

EXIT_CODES = "exit codes: 0 done, 1 findings or nothing found, 2 wrong use or bad input, 3 failed, 4 answer incomplete"


class CommandParser(argparse.ArgumentParser):
    """Ends with exit code 2, the usage and one error for wrong flags."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class, but a flag that does not exist is told by the command that was asked."""
        given = sys.argv[1:] if args is None else list(args)
        for parser in (self, *_children(self)):
            parser._form = asked_form(given)
        found, unknown = self.parse_known_args(given, namespace)
        if unknown:
            command = _command_of(self, getattr(found, "command", None))
            flags = [flag for action in command._actions for flag in action.option_strings]
            command.refuse(
                f"unknown argument {unknown[0]!r}" + (f" (and {len(unknown) - 1} more)" if unknown[1:] else ""),
                did_you_mean(unknown[0].partition("=")[0], flags) if unknown[0].startswith("-") else None,
            )
        return found

    _form: str | None = None

    def error(self, message: str) -> NoReturn:
        """Called by the base class."""
        self.refuse(message, None)

    def refuse(self, message: str, hint: str | None) -> NoReturn:
        """Say it and end."""
        if self._form is None:
            print(f"usage: {self.prog} {self._short_usage()}", file=sys.stderr)
        say_error(InvalidRequestError(message, hint=hint or f"`{self.prog} --help` tells more"), self._form)
        self.exit(WRONG_USE)

    def _short_usage(self) -> str:
        """Arguments without the flags, which fill a screen."""
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
    """``json`` or ``ndjson`` if it is asked for, also where the rest cannot be read."""
    for number, word in enumerate(argv):
        if word.startswith("--format"):
            value = word.partition("=")[2] or next(iter(argv[number + 1 : number + 2]), "")
            return value if value in ("json", "ndjson") else None
    return None


def with_examples(examples: Iterable[tuple[str, str]]) -> str:
    """What stands below a command's flags: examples as (what it does, command), and the exit codes."""
    lines = [line for says, command in examples for line in (f"  # {says}", f"  {command}")]
    return "\n".join(["examples:", *lines, "", EXIT_CODES] if lines else [EXIT_CODES])


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
        """Print it and end."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("tierlog")
        except PackageNotFoundError:  # a checkout that was not installed
            found = "(not installed)"
        print(f"tierlog {found}")
        parser.exit()
