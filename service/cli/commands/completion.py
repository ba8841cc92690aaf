"""``tierlog completion``: a script that makes a shell complete commands, flags, choices and files."""

from __future__ import annotations

import argparse
import sys

from tierlog.service.exit_codes import DONE

HELP = "print a script for a shell that completes commands, flags, choices and files"
EXAMPLES = (
    ("bash, for this user", "tierlog completion bash > ~/.local/share/bash-completion/completions/tierlog"),
    ("zsh, where fpath has ~/.zfunc", "tierlog completion zsh > ~/.zfunc/_tierlog"),
    ("tcsh, now", "tierlog completion tcsh > ~/.tierlog.tcsh && source ~/.tierlog.tcsh"),
)
SHELLS = ("bash", "zsh", "tcsh")
#: Flags and arguments that are files or directories.
_FILES = {"files", "config", "out", "rocketmq", "target", "token_file"}
_FOLDERS = {"root", "old_root"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which shell."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or tcsh")


def run(arguments: argparse.Namespace) -> int:
    """Prints the script; nothing of it depends on a store."""
    import shtab

    parser: argparse.ArgumentParser = arguments.parser
    for command in _commands(parser):
        for action in command._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # how shtab is told
            elif action.dest in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # likewise
    sys.stdout.write(shtab.complete(parser, shell=arguments.shell) + "\n")
    return DONE


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found: list[argparse.ArgumentParser] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.extend(action.choices.values())
    return found
