"""``tierlog delete``: delete a topic with all its messages; prints where its queues ended, and the receipt."""

from __future__ import annotations

import argparse

from service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from service.cli.documents import print_document
from service.cli.errors import DONE
from service.cli.look import Look
from service.cli.stopping import run_stoppable, stop_flag, stopping_at
from service.cli.targets import open_writer
from tiering.progress import bar

HELP = "delete a topic with all its messages everywhere; answer with a JSON receipt"
EXAMPLES = (
    ("where its queues would end", "tierlog delete orders --dry-run --url http://127.0.0.1:8080"),
    ("delete it, and wait until it is overwritten", "tierlog delete orders --wait --url http://127.0.0.1:8080"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which topic, and whether to wait."""
    parser.add_argument("topic", metavar="TOPIC")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only tell where the queues would end")
    how.add_argument("--wait", action="store_true", help="overwrite what is archived before answering")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 3 if the archive does not answer; the topic is deleted in the store all the same."""
    with stop_flag() as stop, open_writer(arguments) as target, bar("bytes", "rewriting") as move:
        progress = stopping_at(move, stop)
        done = run_stoppable(
            lambda: target.delete_topic(
                arguments.topic, dry_run=arguments.dry_run, wait=arguments.wait, progress=progress
            ),
            stop,
        )
    print_document(done, Look.of(arguments))
    return DONE
