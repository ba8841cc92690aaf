"""``tierlog serve``: the service of one store, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_settings
from service.cli.errors import DONE

HELP = "run the service of a store: REST API and page"
EXAMPLES = (
    (
        "a service with its archive in a bucket",
        "tierlog serve --root ./store --cold s3://bucket/prefix --host 0.0.0.0",
    ),
    (
        "a new volume from the bucket alone",
        "tierlog serve --root ./new --cold s3://bucket/prefix --restore",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which store, and where to listen."""
    group = parser.add_argument_group("where")
    group.add_argument("--root", required=True, metavar="DIR", help="the store, made if it is not there")
    group.add_argument("--cold", metavar="URL", help="its archive (remembered): file:///dir or s3://bucket/prefix")
    group.add_argument(
        "--store-id", metavar="ID", help="a new store's id; with --restore: which one, if several lie there"
    )
    group.add_argument(
        "--restore",
        action="store_true",
        help="make the store from its archive, in an empty directory; whoever wrote there is fenced",
    )
    group.add_argument("--host", metavar="H", help="address to listen on, 127.0.0.1 unless told")
    group.add_argument("--port", type=int, metavar="N", help="port to listen on, 8080 unless told")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until asked to stop; then flush and close, within 10 s."""
    from pathlib import Path

    from service.cli.arguments import overrides
    from service.serving import serve
    from service.settings import Settings

    settings = Settings.load(
        arguments.config,
        {**overrides(arguments), "serve.host": arguments.host, "serve.port": arguments.port},
    )
    serve(
        Path(arguments.root), settings, cold_url=arguments.cold, store_id=arguments.store_id, restore=arguments.restore
    )
    return DONE
