"""``tierlog restore``: an original commit-log segment out of the archive, into a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, add_settings
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import open_archives
from tierlog.service.exit_codes import DONE
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.progress_bar import bar

HELP = "rebuild an original commit-log segment from the archive"
EXAMPLES = (
    (
        "the segment that holds an offset",
        "tierlog restore --segment 1073741824 --out 00000000001073741824 --cold s3://bucket/prefix",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which segment, and where to."""
    parser.add_argument(
        "--segment", type=_offset, required=True, metavar="OFFSET", help="a physical offset in the segment"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    add_format(parser, forms=DOCUMENT_FORMS)
    group = parser.add_argument_group("where")
    group.add_argument("--root", type=Path, metavar="DIR", help="the archive that this store remembers; may be in use")
    group.add_argument("--cold", metavar="URL", help="an archive; file:///dir or s3://bucket/prefix")
    group.add_argument("--store", dest="store_id", metavar="ID", help="whose, if several stores share the archive")
    add_settings(parser)


def _offset(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no offset")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary, in which it is said whether records were removed."""
    out = arguments.out.absolute()
    if not out.parent.is_dir():
        raise InvalidRequestError("there is no such folder", path=str(out.parent))
    with interruptible(), open_archives(arguments) as archive, bar("bytes", "restoring") as move:
        done = archive.restore_segment(arguments.segment, out, overwrite=arguments.overwrite, progress=move)
    print_document(done, OutputStyle.of(arguments))
    if done["fillers"]:
        say(f"{done['fillers']} records were erased or are not archived: fillers stand in their place")
    return DONE
