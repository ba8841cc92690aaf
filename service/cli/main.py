"""The command line: ``tierlog COMMAND …``.

Exit codes: 0 done, 1 findings or nothing found, 2 wrong use or bad input, 3 failed, 4 answer incomplete.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from service.cli import (
    archive,
    check,
    delete,
    doctor,
    dump,
    erase,
    files,
    flush,
    hold,
    load,
    query,
    receipts,
    repair,
    restore,
    salvage,
    serve,
    stats,
    tail,
    topics,
)
from service.cli.errors import DONE, FAILED, exit_code, say
from service.cli.stopping import Stopped
from tiering.errors import StoreError

_COMMANDS = (
    serve,
    load,
    query,
    tail,
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
    dump,
    doctor,
)
_EPILOG = "exit codes: 0 done, 1 findings or nothing found, 2 wrong use or bad input, 3 failed, 4 answer incomplete"


def build_parser() -> argparse.ArgumentParser:
    """All commands and their flags."""
    parser = argparse.ArgumentParser(
        prog="tierlog",
        description="A message log in two tiers whose archived part can still be searched by key and by time.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        name = module.__name__.rpartition(".")[2]
        child = commands.add_parser(name, help=module.HELP, description=module.HELP, epilog=_EPILOG, allow_abbrev=False)
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except StoreError as error:
        say(str(error))
        return exit_code(error)
    except BrokenPipeError:
        # the reader has seen enough; nothing more may be written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (KeyboardInterrupt, Stopped):
        say("stopped")
        _leave(FAILED)
    except OSError as error:
        say(f"{error.strerror or error}" + (f" [{error.filename}]" if error.filename else ""))
        return FAILED
    return code


def _leave(code: int) -> None:
    """End now: after a stop, a thread that waits for a dead object store must not keep the process alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
