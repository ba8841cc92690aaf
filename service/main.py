"""The command line: ``tierlog COMMAND …``.

Exit codes: 0 done, 1 findings or nothing found, 2 wrong use or bad input, 3 failed, 4 answer incomplete.
"""

from __future__ import annotations

import argparse
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence

from tierlog.service.cli.arguments import CommandParser, VersionAction, with_examples
from tierlog.service.cli.commands import (
    adopt,
    archive,
    check,
    cluster,
    completion,
    config,
    delete,
    doctor,
    dump,
    erase,
    files,
    flush,
    follow,
    groups,
    hold,
    load,
    message,
    query,
    receipts,
    repair,
    restore,
    route,
    salvage,
    serve,
    stats,
    tail,
    token,
    topics,
)
from tierlog.service.cli.errors import say, say_error
from tierlog.service.cli.signals import Stopped
from tierlog.service.exit_codes import DONE, FAILED, exit_code
from tierlog.tiering import kernels
from tierlog.tiering.base.errors import StoreError

#: A module of each command: ``HELP``, ``EXAMPLES``, ``add_arguments`` and ``run``.
COMMANDS = (
    serve,
    load,
    follow,
    query,
    message,
    tail,
    groups,
    topics,
    files,
    stats,
    archive,
    flush,
    check,
    repair,
    erase,
    delete,
    hold,
    receipts,
    salvage,
    restore,
    adopt,
    dump,
    doctor,
    cluster,
    route,
    token,
    config,
    completion,
)
#: New objects between looks for garbage. A start makes some 100,000 that stay, 400,000 with numba, and looking through
#: them again and again took a sixth of it; a command makes little garbage in cycles.
_YOUNG_OBJECTS = 200_000
#: What numba loads if it is there, for settings in a file and for calls of C by kernels: a tenth of a second.
_UNUSED_BY_KERNELS = ("yaml", "cffi")
EXAMPLES = (
    ("a service with its archive in a directory", "tierlog serve --root ./store --cold file://$PWD/cold"),
    ("lines of a log as messages, found by a key", "tierlog load app.log --topic app --key 'id=(\\w+)' --root ./store"),
    ("the newest messages with a key", "tierlog query app --key 4711 --root ./store"),
)


def build_parser() -> CommandParser:
    """Makes the parser of all commands and their flags."""
    parser = CommandParser(
        prog="tierlog",
        description="A message log in two tiers whose archived part can still be searched by key and by time.",
        epilog=with_examples(EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=VersionAction, help="show the version and end")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        child = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=with_examples(module.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(child)
        child.set_defaults(run=module.run, parser=parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. Without ``argv`` it is this process's own, which ends then."""
    gc.set_threshold(_YOUNG_OBJECTS)
    if argv is not None:
        return _run(argv)
    kernels.kept_from_numba = _UNUSED_BY_KERNELS
    try:
        return _run(None)
    finally:
        gc.freeze()  # no look for garbage at the very end: it took a seventh of a short command


def _run(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except StoreError as error:
        say_error(error, getattr(arguments, "format", None))
        return exit_code(error)
    except BrokenPipeError:
        # the reader has seen enough; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (KeyboardInterrupt, Stopped):
        say("stopped")
        _leave(FAILED)
    except OSError as error:
        say_error(_as_ours(error), getattr(arguments, "format", None))
        return FAILED
    return code


def _as_ours(error: OSError) -> StoreError:
    hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    return StoreError(error.strerror or str(error), path=error.filename and str(error.filename), hint=hint)


def _leave(code: int) -> None:
    """Ends now: after a stop, a thread that waits for a dead object store must not keep the process alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
