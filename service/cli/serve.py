"""``tierlog serve``: the service of one store, or a querier over many, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse

from service.cli.arguments import add_settings
from service.cli.errors import DONE

HELP = "run the service of a store, or a querier over many: REST API and page"
EXAMPLES = (
    (
        "a service with its archive in a bucket",
        "tierlog serve --root ./store --cold s3://bucket/prefix --host 0.0.0.0",
    ),
    (
        "queries over all stores of a cluster",
        "tierlog serve --role querier --cold s3://bucket/prefix --host 0.0.0.0",
    ),
    (
        "a new volume from the bucket alone",
        "tierlog serve --root ./new --cold s3://bucket/prefix --restore",
    ),
)

#: More keep more memory that is free: a service of dozens of threads grew by a third in ten minutes, and not with two.
_ARENAS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which store, and where to listen."""
    group = parser.add_argument_group("where")
    group.add_argument(
        "--role", choices=("node", "querier"), default="node",
        help="node: serve the store at --root; querier: answer queries over many stores, without one of its own",
    )  # fmt: skip
    group.add_argument("--root", metavar="DIR", help="of a node: the store, made if it is not there")
    group.add_argument(
        "--stores", nargs="+", metavar="URL",
        help="of a querier: services (http://…) and archives (s3://…, file://…); else those of the cluster of --cold",
    )  # fmt: skip
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
    import gc
    from pathlib import Path

    gc.disable()  # nothing that is imported is garbage; looking through it again and again is a tenth of the start
    try:
        from service.cli.arguments import overrides
        from service.cli.errors import say
        from service.kernels_at_start import compile_at_first_start
        from service.serving import serve, serve_querier
        from service.settings import Settings
        from tiering.errors import InvalidRequestError
        from tiering.kernels import cache
        from tiering.libc import share_arenas
    finally:
        gc.freeze()
        gc.enable()

    share_arenas(_ARENAS)
    settings = Settings.load(
        arguments.config,
        {
            **overrides(arguments),
            "serve.host": arguments.host,
            "serve.port": arguments.port,
            "cluster.stores": None if arguments.stores is None else " ".join(arguments.stores),
        },
    )
    if arguments.role == "querier":
        _refuse_store(arguments)
        if arguments.cold is None and not settings.cluster.sources:
            raise InvalidRequestError(
                "a querier needs something to read", hint="give --cold URL, or --stores with services and archives"
            )
        compile_at_first_start(cache.CHOSEN, say)
        serve_querier(settings, cold_url=arguments.cold)
        return DONE
    if arguments.root is None:
        raise InvalidRequestError(
            "a node needs its store", hint="give --root DIR, or --role querier to answer for the stores of others"
        )
    if arguments.stores is not None:
        raise InvalidRequestError("a node serves its own store alone", hint="--stores goes with --role querier")
    compile_at_first_start(cache.CHOSEN, say)
    serve(
        Path(arguments.root), settings, cold_url=arguments.cold, store_id=arguments.store_id, restore=arguments.restore
    )
    return DONE


def _refuse_store(arguments: argparse.Namespace) -> None:
    """A querier keeps nothing; whoever names a directory means something else."""
    from tiering.errors import InvalidRequestError

    for flag, value in (("--root", arguments.root), ("--store-id", arguments.store_id)):
        if value is not None:
            raise InvalidRequestError(
                f"a querier has no store, and {flag} names one", hint=f"leave {flag} out, or --role querier"
            )
    if arguments.restore:
        raise InvalidRequestError("a querier restores nothing", hint="leave --restore out")
