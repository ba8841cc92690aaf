"""``tierlog repair``: restore derived data from the log or the archive."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output_style import printable
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_repairable
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.progress_bar import Progress, bar
from tierlog.tiering.checks.findings import Finding

if TYPE_CHECKING:
    from tierlog.index.maintenance.repair import RepairReport

HELP = "rebuild derived data (queues, index, archived objects) from the log or the archive"
EXAMPLES = (
    (
        "what would be done",
        "tierlog repair --dry-run --root ./store",
    ),
    (
        "an archive without a store",
        "tierlog repair --cold s3://bucket/prefix",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where, and whether only to look."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--format", choices=DOCUMENT_FORMS, help="lines (table) unless told")
    add_target(parser, writes=True, remote=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 if nothing is wrong any more, 1 if something is left; it can be run again, and stopped."""
    with interruptible(), bar("objects", "repairing") as move:
        local, report = _repair(arguments, move)
    done = [*local, *report.done]
    if arguments.format == "json":
        print(json.dumps({**report.to_json(), "done": [{"object": each.object, "text": each.text} for each in done]}))
    elif arguments.format == "ndjson":
        for each, is_done in [(each, True) for each in done] + [(each, False) for each in report.left]:
            print(json.dumps({"is_done": is_done, "object": each.object, "text": each.text}))
    else:
        for each in done:
            print(printable(str(each)))
        for each in report.left:
            print(printable(f"{'found' if arguments.dry_run else 'left'}: {each}"))
    if report.left:
        say(f"{len(report.left)} findings" + ("" if arguments.dry_run else " are left"))
        return NOTHING
    return DONE


def _repair(arguments: argparse.Namespace, progress: Progress) -> tuple[list[Finding], RepairReport]:
    local: list[Finding] = []
    if arguments.root is not None:
        from tierlog.service.engine.checks import repair_local
        from tierlog.tiering.base.fs import LocalFileSystem

        with open_repairable(arguments, read_only=True) as engine:
            lines = engine.check()
        local = repair_local(LocalFileSystem(), arguments.root, lines, dry_run=arguments.dry_run)
    with open_repairable(arguments, read_only=arguments.dry_run) as target:
        return local, target.repair(dry_run=arguments.dry_run, progress=progress)
