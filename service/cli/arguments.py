"""Flags that several commands share. Imports nothing heavy: ``tierlog --help`` reads every command's flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

#: Flags that override settings, by destination.
OVERRIDES = {
    "segment_bytes": "hot.segment_bytes",
    "queue_file_units": "hot.queue_file_units",
    "index_slots": "index.slots",
    "index_items": "index.items",
}


def add_target(parser: argparse.ArgumentParser, *, writes: bool, remote: bool = True, cold: bool = True) -> None:
    """--root, --url, --cold and what goes with them."""
    group = parser.add_argument_group("where")
    group.add_argument("--root", type=Path, metavar="DIR", help="open the store in this directory")
    if remote:
        group.add_argument("--url", metavar="URL", help="ask a running service, for example http://127.0.0.1:8080")
        group.add_argument("--token-file", type=Path, metavar="FILE", help="with --url: its token; else TIERLOG_TOKEN")
        group.add_argument("--ca-file", type=Path, metavar="FILE", help="with --url: PEM file of who signed for it")
    if cold:
        text = "with --root: the store's archive (remembered)"
        if not writes:
            text += "; alone: read this archive directly"
        group.add_argument("--cold", metavar="URL", help=f"{text}; file:///dir or s3://bucket/prefix")
        group.add_argument("--store-id", metavar="ID", help="a new store's id; with --cold alone or --url: this store")
        if writes:
            text = "with --root and --cold: make the store from its archive first, in an empty directory"
            group.add_argument("--restore", action="store_true", help=text)
    if not writes:
        group.add_argument("--read-only", action="store_true", help="take no lock, write nothing; may be in use")
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """--config and the sizes."""
    group = parser.add_argument_group("settings (docs/configuration.md)")
    group.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings")
    group.add_argument("--segment-bytes", type=int, metavar="N", help="bytes of a segment of a new store")
    group.add_argument("--queue-file-units", type=int, metavar="N", help="units of a queue file of a new store")
    group.add_argument("--index-slots", type=int, metavar="N", help="hash slots of a new index file")
    group.add_argument("--index-items", type=int, metavar="N", help="items of a new index file")


#: Forms of rows, and of what is one document.
ROW_FORMS = ("table", "json", "ndjson", "csv", "arrow")
DOCUMENT_FORMS = ("table", "json", "ndjson")


def add_format(parser: argparse.ArgumentParser, *, forms: Sequence[str] = ROW_FORMS, times: bool = False) -> None:
    """--format and --color; with ``times`` --local-time."""
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=forms, help="table on a terminal, ndjson in a pipe unless told")
    group.add_argument(
        "--color", choices=("auto", "always", "never"), default="auto",
        help="colours in a table: on a terminal without NO_COLOR (auto), always or never",
    )  # fmt: skip
    if times:
        group.add_argument("--local-time", action="store_true", help="times of a table in this machine's zone, not UTC")


def overrides(arguments: argparse.Namespace) -> dict[str, object]:
    """What the flags say about settings; None where they say nothing."""
    return {name: getattr(arguments, flag, None) for flag, name in OVERRIDES.items()}
