"""``tierlog check``: verify every invariant."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_target
from service.cli.errors import DONE, NOTHING, say
from service.cli.stopping import interruptible
from service.cli.targets import open_reader

HELP = "verify every invariant, read only; one line per finding"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where and how thoroughly."""
    parser.add_argument("--deep", action="store_true", help="read every byte of the archive too")
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 without findings, 1 with; nothing is changed, so the store may be in use."""
    with interruptible():
        findings = _findings(arguments)
    for finding in findings:
        print(finding)
    if findings:
        say(f"{len(findings)} findings")
        return NOTHING
    return DONE


def _findings(arguments: argparse.Namespace) -> list[str]:
    if arguments.root is not None and arguments.url is None and arguments.cold is None:
        from service.checking import broker_findings

        found = broker_findings(arguments.root)
        if found is not None:
            return found
    with open_reader(arguments, read_only=True) as target:
        return target.check(deep=arguments.deep)
