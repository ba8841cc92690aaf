"""``tierlog delete``: delete a topic with all its messages; prints where its queues ended, and the receipt."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_target
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.removal_guard import add_words, is_agreed, refuse_whole_topic
from tierlog.service.cli.signals import interruptible, run_stoppable, stop_flag, stopping_at
from tierlog.service.cli.targets import open_writer
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.progress_bar import bar

HELP = "delete a topic with all its messages everywhere; answer with a JSON receipt"
EXAMPLES = (
    ("where its queues would end", "tierlog delete orders --dry-run --url http://127.0.0.1:8080"),
    ("delete it, and wait until it is overwritten", "tierlog delete orders --all --wait --url http://127.0.0.1:8080"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which topic, and whether to wait."""
    parser.add_argument("topic", metavar="TOPIC")
    add_words(parser, "needed: the topic goes with every message it has")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="only tell where the queues would end")
    how.add_argument("--wait", action="store_true", help="overwrite what is archived before answering")
    add_format(parser, forms=DOCUMENT_FORMS, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 3 if the archive does not answer, where the store has deleted the topic; 1 after a no."""
    from tierlog.index.search.query import Query

    topic = arguments.topic
    with interruptible(), open_writer(arguments) as target:
        if not arguments.dry_run:
            if not arguments.whole_topic:
                hint = "say --all if that is meant; --dry-run tells where its queues would end"
                refuse_whole_topic(target, topic, would="deletes", hint=hint)
            if not is_agreed(target, Query(topic), arguments, will=f"this deletes topic {topic!r}"):
                return NOTHING
        with stop_flag() as stop, bar("bytes", "rewriting") as move:
            progress = stopping_at(move, stop)
            done = run_stoppable(
                lambda: target.delete_topic(topic, dry_run=arguments.dry_run, wait=arguments.wait, progress=progress),
                stop,
            )
    print_document(done, OutputStyle.of(arguments))
    return DONE
