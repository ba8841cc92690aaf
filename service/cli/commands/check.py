"""``tierlog check``: verify every invariant."""

from __future__ import annotations

import argparse
import json
import sys

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output_style import printable
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_reader, open_store
from tierlog.service.exit_codes import DONE, INCOMPLETE, NOTHING
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.progress_bar import Progress, bar

HELP = "verify every invariant, read only; one line per finding"
EXAMPLES = (
    (
        "a store in use",
        "tierlog check --root ./store",
    ),
    (
        "every byte of an archive",
        "tierlog check --deep --cold s3://bucket/prefix",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where to check and how thoroughly."""
    parser.add_argument("--deep", action="store_true", help="read every byte of the archive and compare all of it")
    parser.add_argument("--format", choices=DOCUMENT_FORMS, help="lines (table) unless told")
    add_target(parser, writes=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 without findings, 1 with, 4 without if some of it could not be asked.

    Nothing is changed, so the store may be in use.
    """
    with interruptible(), bar("objects", "checking") as move:
        report = _report(arguments, move)
    unasked = report.get("unasked", [])
    match arguments.format:
        case "json":
            print(json.dumps({"findings": report["details"], "notes": report["notes"], "unasked": unasked}))
        case "ndjson":
            for kind in ("details", "notes"):
                for row in report[kind]:
                    print(json.dumps({"is_finding": kind == "details", **row}))
        case _:
            for finding in report["findings"]:
                print(printable(finding))
            for note in report["notes"]:
                say(f"note: {note['object']}: {note['text']}")
    for words in unasked:
        say(words)
    if report["findings"]:
        say(f"{len(report['findings'])} findings")
        return NOTHING
    if unasked:
        return INCOMPLETE
    if sys.stdout.isatty() and arguments.format in (None, "table"):
        print("no findings")
    return DONE


def _report(arguments: argparse.Namespace, progress: Progress) -> Json:
    if arguments.root is not None and arguments.url is None:
        from tierlog.service.engine.checks import broker_findings, remember_damage
        from tierlog.tiering.base.fs import LocalFileSystem
        from tierlog.tiering.checks.findings import Findings

        if arguments.cold is None and (found := broker_findings(arguments.root)) is not None:
            return Findings().extend(found).to_json()
        with open_store(arguments, read_only=True) as store:
            report, damaged = store.check_report(deep=arguments.deep, progress=progress), store.damaged_ranges
        remember_damage(LocalFileSystem(), arguments.root, damaged)
        return report.to_json()
    with open_reader(arguments, read_only=True) as target:
        return target.check(deep=arguments.deep, progress=progress)
