"""``tierlog repair``: restore derived data from the log or the archive."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_target
from tierlog.service.cli.errors import say
from tierlog.service.cli.output_style import printable
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_archives, open_store, settings_of
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.errors import CorruptionError, InvalidRequestError
from tierlog.tiering.base.progress_bar import Progress, bar
from tierlog.tiering.checks.findings import Finding

if TYPE_CHECKING:
    from tierlog.index.maintenance.repair import RepairReport

HELP = "rebuild derived data (queues, index, archived objects), and the log from the archive"
EXAMPLES = (
    (
        "what would be done",
        "tierlog repair --dry-run --root ./store",
    ),
    (
        "put damaged segments of the log back from the archive",
        "tierlog repair --from-archive --root ./store",
    ),
    (
        "an archive without a store",
        "tierlog repair --cold s3://bucket/prefix",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where, and whether only to look."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument(
        "--from-archive",
        action="store_true",
        help="first put damaged parts of the log back that the archive has",
    )
    parser.add_argument("--format", choices=DOCUMENT_FORMS, help="lines (table) unless told")
    add_target(parser, writes=True, remote=False)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 0 if nothing is wrong any more, 1 if something is left; it can be run again, and stopped."""
    if arguments.from_archive and (arguments.root is None or arguments.cold is not None):
        raise InvalidRequestError("--from-archive repairs a store's log", hint="name its directory with --root alone")
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
    from tierlog.index.maintenance.repair import RepairReport

    if arguments.root is None:
        with open_archives(arguments) as archives:
            return [], archives.repair(dry_run=arguments.dry_run, progress=progress)
    from tierlog.service.engine.checks import remember_damage, repair_local
    from tierlog.tiering.base.fs import LocalFileSystem

    fs, dry_run = LocalFileSystem(), arguments.dry_run
    log = _repair_log(arguments, progress) if arguments.from_archive else RepairReport()
    try:
        with open_store(arguments, read_only=True) as store:
            lines = store.check()
            log.left += store.damage_left(tried=arguments.from_archive and not dry_run)
            damaged = store.damaged_ranges
        if not dry_run:
            remember_damage(fs, arguments.root, damaged)
        local = log.done + repair_local(fs, arguments.root, lines, dry_run=dry_run)
        with open_store(arguments, read_only=dry_run) as store:
            report = store.repair(dry_run=dry_run, progress=progress)
    except CorruptionError as error:
        if not arguments.from_archive:
            raise
        return log.done, RepairReport(left=[*log.left, Finding(None, str(error))])  # what was put back is told too
    return local, RepairReport(report.done, log.left + report.left)


def _repair_log(arguments: argparse.Namespace, progress: Progress) -> RepairReport:
    from tierlog.service.engine.checks import repair_log
    from tierlog.service.engine.parts import Components
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.randomness import SystemRandomness

    components = Components(settings_of(arguments), SystemClock(), LocalFileSystem(), SystemRandomness())
    return repair_log(arguments.root, components, dry_run=arguments.dry_run, progress=progress)
