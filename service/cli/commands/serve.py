"""``tierlog serve``: the service of one store, a querier over many, or a gateway, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import add_settings
from tierlog.service.exit_codes import DONE

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
    (
        "sends of RocketMQ's gRPC clients on a core of their own",
        "tierlog serve --role gateway --stores http://127.0.0.1:8080 --config gateway.toml --port 8180",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which store, and where to listen."""
    group = parser.add_argument_group("where")
    group.add_argument(
        "--role", choices=("node", "querier", "gateway"), default="node",
        help=(
            "node: serve the store at --root; querier: answer queries over many stores, without one of its own; "
            "gateway: take what RocketMQ's gRPC clients send, for the service that --stores names"
        ),
    )  # fmt: skip
    group.add_argument("--root", metavar="DIR", help="of a node: the store, made if it is not there")
    group.add_argument(
        "--stores", nargs="+", metavar="URL",
        help=(
            "of a querier: services (http://…) and archives (s3://…, file://…); else those of the cluster of --cold; "
            "of a gateway: one service"
        ),
    )  # fmt: skip
    group.add_argument("--cold", metavar="URL", help="its archive (remembered): file:///dir or s3://bucket/prefix")
    group.add_argument(
        "--store-id",
        metavar="ID",
        help="a new store's id, needed beside others; with --restore: which one, if several lie there",
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
    """Serves until asked to stop; then flushes and closes, within 10 s."""
    import gc
    from pathlib import Path

    gc.disable()  # imports make no garbage, and collecting takes a tenth of the start
    try:
        from tierlog.service.api.application.process import serve, serve_gateway, serve_querier
        from tierlog.service.cli.arguments import overrides
        from tierlog.service.cli.errors import say
        from tierlog.service.cli.kernel_compilation import compile_at_first_start
        from tierlog.service.config.settings import Settings, unknown_variables
        from tierlog.tiering.base.errors import InvalidRequestError
        from tierlog.tiering.kernels import cache
    finally:
        gc.freeze()
        gc.enable()

    # the settings, with the flags over them
    settings = Settings.load(
        arguments.config,
        {
            **overrides(arguments),
            "serve.host": arguments.host,
            "serve.port": arguments.port,
            "cluster.stores": None if arguments.stores is None else " ".join(arguments.stores),
        },
    )
    for name in unknown_variables():
        say(f"{name} is in the environment, and nothing reads it")
    # a gateway
    if arguments.role == "gateway":
        _refuse_store(arguments)
        sources = settings.cluster.sources
        if arguments.cold is not None or len(sources) != 1 or not sources[0].startswith(("http://", "https://")):
            raise InvalidRequestError("a gateway is for one service", hint="give --stores http://HOST:PORT")
        serve_gateway(settings, sources[0])
        return DONE
    # a querier over many stores
    if arguments.role == "querier":
        _refuse_store(arguments)
        if arguments.cold is None and not settings.cluster.sources:
            raise InvalidRequestError(
                "a querier needs something to read", hint="give --cold URL, or --stores with services and archives"
            )
        compile_at_first_start(cache.CHOICE, say)
        serve_querier(settings, cold_url=arguments.cold)
        return DONE
    # a node with its store
    if arguments.root is None:
        raise InvalidRequestError(
            "a node needs its store", hint="give --root DIR, or --role querier to answer for the stores of others"
        )
    if arguments.stores is not None:
        raise InvalidRequestError("a node serves its own store alone", hint="--stores goes with --role querier")
    compile_at_first_start(cache.CHOICE, say)
    serve(
        Path(arguments.root), settings, cold_url=arguments.cold, store_id=arguments.store_id, restore=arguments.restore
    )
    return DONE


def _refuse_store(arguments: argparse.Namespace) -> None:
    """Refuses flags about a store: other roles keep nothing, so whoever names a directory means something else."""
    from tierlog.tiering.base.errors import InvalidRequestError

    for flag, value in (("--root", arguments.root), ("--store-id", arguments.store_id)):
        if value is not None:
            raise InvalidRequestError(
                f"a {arguments.role} has no store, and {flag} names one",
                hint=f"leave {flag} out, or --role {arguments.role}",
            )
    if arguments.restore:
        raise InvalidRequestError(f"a {arguments.role} restores nothing", hint="leave --restore out")
