"""``tierlog follow``: archive nodes of running RocketMQ brokers, served as any store, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
from pathlib import Path

from tierlog.service.cli.arguments import add_settings
from tierlog.service.exit_codes import DONE

HELP = "follow running RocketMQ brokers into an archive, and serve what they had"
EXAMPLES = (
    (
        "an archive node beside a running broker",
        "tierlog follow --namesrv 10.0.0.1:9876 --broker broker-a --root ./archive --cold s3://bucket/prefix",
    ),
    (
        "on the broker's own machine, from its files",
        "tierlog follow --namesrv 127.0.0.1:9876 --broker broker-a --store /data/rocketmq/store "
        "--root ./archive --cold s3://bucket/prefix",
    ),
    (
        "every RocketMQ tool finds what the broker no longer has",
        "tierlog follow --namesrv 10.0.0.1:9876 --broker broker-a --root ./archive --cold s3://bucket/prefix "
        "--listen 10.0.0.7:10911",
    ),
    (
        "a migration: the store takes messages once the broker is stopped",
        "tierlog follow --namesrv 10.0.0.1:9876 --broker broker-a --root ./archive --cold s3://bucket/prefix --promote",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which brokers, into which store, and where to listen."""
    group = parser.add_argument_group("which brokers")
    group.add_argument("--namesrv", metavar="HOST:PORT[;HOST:PORT]", help="the cluster's nameservers")
    group.add_argument("--broker", action="append", metavar="NAME", help="a broker's name; again for each further one")
    group.add_argument(
        "--mode", choices=("observer", "replica"),
        help="observer (unless told): no producer waits for it; replica: it counts for a SYNC_MASTER",
    )  # fmt: skip
    group.add_argument("--ha", metavar="HOST:PORT", help="where slaves connect, if not where the broker says")
    group.add_argument("--store", type=Path, metavar="DIR", help="read the broker's store directory on this machine")
    group.add_argument(
        "--hold", action="store_true", default=None,
        help="with --store: keep closed segments from the broker's removal by a second name until they are here",
    )  # fmt: skip
    group.add_argument(
        "--access-key", metavar="KEY", help="with what requests are signed; the secret: TIERLOG_FOLLOW_SECRET_KEY"
    )
    group.add_argument("--secret-key-file", type=Path, metavar="FILE", help="or a file with the secret")
    group.add_argument(
        "--promote", action="store_true", default=None,
        help="once the broker is gone and all of its log is here, take messages in its place",
    )  # fmt: skip
    group.add_argument(
        "--promote-now", action="store_true",
        help="take messages in the place of a broker that is gone, though what it had last may not be here",
    )  # fmt: skip
    group = parser.add_argument_group("where")
    group.add_argument("--root", type=Path, required=True, metavar="DIR", help="the stores, DIR/ID for each broker")
    group.add_argument("--cold", metavar="URL", help="the archive (remembered): file:///dir or s3://bucket/prefix")
    group.add_argument("--store-id", metavar="ID", help="id of the only broker's store; else made of its name")
    group.add_argument(
        "--restore", action="store_true", help="make the stores from their archive, in an empty directory, and go on"
    )
    group.add_argument(
        "--listen", metavar="HOST:PORT",
        help="where RocketMQ's tools and clients find the archive, which nameservers are told; nowhere unless told",
    )  # fmt: skip
    group.add_argument("--host", metavar="H", help="address to listen on, 127.0.0.1 unless told")
    group.add_argument("--port", type=int, metavar="N", help="port to listen on, 8080 unless told")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Follows until asked to stop; then flushes and closes, within 10 s."""
    from tierlog.service.api.application.process import follow
    from tierlog.service.cli.arguments import overrides
    from tierlog.service.cli.errors import say
    from tierlog.service.cli.kernel_compilation import compile_at_first_start
    from tierlog.service.config.settings import Settings, unknown_variables
    from tierlog.service.follow.upstream import check_settings
    from tierlog.tiering.kernels import cache

    settings = Settings.load(
        arguments.config,
        {
            **overrides(arguments),
            "serve.host": arguments.host,
            "serve.port": arguments.port,
            "follow.namesrv": arguments.namesrv,
            "follow.broker": None if arguments.broker is None else " ".join(arguments.broker),
            **{
                f"follow.{name}": getattr(arguments, name)
                for name in ("mode", "ha", "store", "hold", "access_key", "secret_key_file", "promote", "listen")
            },
        },
    )
    for name in unknown_variables():
        say(f"{name} is in the environment, and nothing reads it")
    check_settings(settings.follow)  # before anything is compiled or opened
    compile_at_first_start(cache.CHOICE, say)
    follow(
        arguments.root, settings, cold_url=arguments.cold, store_id=arguments.store_id, restore=arguments.restore,
        promote_now=arguments.promote_now,
    )  # fmt: skip
    return DONE
