"""``tierlog adopt``: a RocketMQ broker's store becomes the archive of a new store, and a volume that continues it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_document
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError
from tierlog.tiering.base.progress_bar import bar

if TYPE_CHECKING:
    from tierlog.tiering.hot.identity import StoreIdentity

HELP = "put a RocketMQ broker's store into an archive, and continue it in a volume"
EXAMPLES = (
    (
        "an archive that can be queried, with nothing running",
        "tierlog adopt /mnt/broker-a/store --cold file:///mnt/archive --store-id broker-a",
    ),
    (
        "the same, and a volume that `tierlog serve --root ./broker-a` goes on with",
        "tierlog adopt /mnt/broker-a/store --root ./broker-a --cold file:///mnt/archive --store-id broker-a",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds whose log, and where it goes."""
    parser.add_argument(
        "broker_root", type=Path, metavar="STORE_DIR", help="the broker's storePathRootDir; only read, and not in use"
    )
    parser.add_argument("--store-id", default="rocketmq", metavar="ID", help="of the new store (%(default)s)")
    group = parser.add_argument_group("where")
    group.add_argument("--root", type=Path, metavar="DIR", help="also make a volume here, which takes new messages")
    group.add_argument(
        "--cold", metavar="URL", help="the archive, file:///dir or s3://bucket/prefix; else `cold` beside --root"
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings, for --root")
    add_format(parser, forms=DOCUMENT_FORMS)


def run(arguments: argparse.Namespace) -> int:
    """Prints what the archive holds; exit code 1 if messages lie behind damage. Killed, it is run again.

    Killed before the archive's one commit: there is no such store. After that: running it again finds the archive, and
    makes the volume or goes on with it.
    """
    from tierlog.index.new_store.adoption import adopt_log, cut_off_of, summary_of
    from tierlog.index.new_store.broker_log import BrokerLog
    from tierlog.index.new_store.part import EPOCH, NewStore
    from tierlog.tiering.base.randomness import SystemRandomness
    from tierlog.tiering.hot.identity import validate_store_id
    from tierlog.tiering.objects.urls import canonical_url

    root: Path | None = arguments.root
    cold_url: str | None = arguments.cold
    if cold_url is None and root is not None:
        cold_url = f"file://{root.absolute().parent / 'cold'}"
    if cold_url is None:
        raise InvalidRequestError("no archive", hint="give --cold URL, or --root DIR with the archive beside it")
    cold_url, store_id = canonical_url(cold_url), validate_store_id(arguments.store_id) or ""
    log = BrokerLog.find(arguments.broker_root.absolute())
    store = NewStore(cold_url, store_id, log.segment_bytes)
    volume = None if root is None else _volume_at(root, store_id)
    if root is not None and volume is not None and volume.restoring_from is not None:
        _make_volume(arguments, root, cold_url)  # it had begun, so the archive is there, and is checked below
    with bar(" steps", f"adopting {store_id}") as progress:
        adopted = adopt_log(store, log, SystemRandomness(), progress)
    if root is not None and volume is None:
        if adopted.head.epoch > EPOCH:
            raise ConflictError(
                f"a volume has taken store {store_id!r} over already", path=cold_url,
                hint="open that one, or restore another: tierlog serve --restore",
            )  # fmt: skip
        _make_volume(arguments, root, cold_url)
    print_document(
        {
            **summary_of(store, adopted.head, is_new=adopted.is_new),
            "cold": cold_url,
            "root": None if root is None else str(root),
            **cut_off_of(adopted.plan),
        },
        OutputStyle.of(arguments),
    )
    if not adopted.plan.cut_off:
        return DONE
    say(f"the log is damaged at {adopted.plan.end}: {adopted.plan.cut_off} whole messages behind it are not archived")
    return NOTHING


def _volume_at(root: Path, store_id: str) -> StoreIdentity | None:
    """Returns the volume that is there already; raises :class:`InvalidRequestError` for another store's directory."""
    from tierlog.tiering.base.fs import LocalFileSystem
    from tierlog.tiering.base.paths import StorePaths
    from tierlog.tiering.hot.identity import StoreIdentity

    identity = StoreIdentity.read(LocalFileSystem(), StorePaths(root.absolute()))
    if identity is not None and identity.store_id != store_id:
        raise InvalidRequestError(
            f"this is the directory of store {identity.store_id!r}", path=str(root), hint="name another --root"
        )
    return identity


def _make_volume(arguments: argparse.Namespace, root: Path, cold_url: str) -> None:
    from tierlog.service.cli.targets import settings_of
    from tierlog.service.engine.store import Store

    Store.open(
        root, cold_url=cold_url, store_id=arguments.store_id, restore=True, settings=settings_of(arguments)
    ).close()
