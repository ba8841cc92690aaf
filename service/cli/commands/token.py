"""``tierlog token``: a new token, and the entry by which a service knows it."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, asked_times
from tierlog.service.exit_codes import DONE

HELP = "make a token for a service: printed once, with the entry for its tokens file"
EXAMPLES = (
    (
        "the token into a file for its holder, its entry into that of the service",
        "tierlog token shop --scope produce --topic shop >shop.token 2>>tokens.toml",
    ),
    (
        "an application that writes and reads its own topics",
        "tierlog token shop --scope produce --scope read --topic 'shop-*'",
    ),
    (
        "monitoring, which sees the store's numbers and no topic, until the year ends",
        "tierlog token prometheus --scope read --no-topic --expires 2027-01-01",
    ),
    (
        "a client of RocketMQ, with the access key and the secret that it signs with",
        "tierlog token shop --rocketmq --scope produce --scope read --topic 'shop-*'",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds whose token, and what for."""
    parser.add_argument("name", metavar="NAME", help="who will hold it; stands in the audit log")
    group = parser.add_argument_group("rights")
    group.add_argument(
        "--scope", action="append", required=True, choices=("produce", "read", "admin"), help="may be repeated"
    )
    topics = group.add_mutually_exclusive_group(required=True)
    topics.add_argument("--topic", action="append", metavar="PATTERN", help="shell pattern, may be repeated; '*': all")
    topics.add_argument("--no-topic", action="store_true", help="no topic at all")
    group.add_argument("--expires", metavar="T", help="when it ends to be good, such as now+90d; unless told, never")
    group.add_argument(
        "--rocketmq", action="store_true", help="with a secret too, for a client of RocketMQ; its access key is NAME"
    )
    add_format(parser, forms=DOCUMENT_FORMS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the token alone on standard output, and on standard error the entry, as a tokens file takes it.

    What is said beside the entry are comments of TOML, so that either stream can be sent to where it belongs. With
    ``--format json`` all is one document on standard output. The token is kept nowhere.
    """
    import json
    import sys

    from tierlog.service.access.tokens import digest, new_secret, new_token, read_lines, read_toml
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.randomness import SystemRandomness
    from tierlog.tiering.base.times import format_time

    token = new_token(SystemRandomness())
    scopes, topics = list(dict.fromkeys(arguments.scope)), arguments.topic or []
    secret = new_secret(SystemRandomness()) if arguments.rocketmq else None
    hashed = digest(token).hex()
    fields: dict[str, str | list[str]] = {"name": arguments.name, "sha256": hashed, "scopes": scopes, "topics": topics}
    if secret is not None:
        fields["secret"] = secret
    known_by = hashed if secret is None else f"{hashed}/{secret}"
    line = ":".join([arguments.name, known_by, ",".join(scopes), ",".join(topics)])
    entry = "[[token]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    (expires_ms,) = asked_times(arguments, "expires")
    if expires_ms is not None:
        expires = format_time(expires_ms)
        if expires_ms <= SystemClock().now_ms():
            print(
                f"# --expires {arguments.expires} has passed, no service takes this token; now+90d is in 90 days",
                file=sys.stderr,
            )
        entry += f"expires = {expires}\n"
        line += f":{expires}"
    read_toml(entry, "the new entry")  # refuse here what a service would refuse
    read_lines(line, "the new entry")
    if arguments.format in ("json", "ndjson"):
        keys = {} if secret is None else {"access_key": arguments.name, "secret_key": secret}
        print(json.dumps({"token": token, **keys, "entry": entry, "line": line}, ensure_ascii=False))
        return DONE
    print(token)
    sys.stdout.flush()
    signs = "" if secret is None else f"# For RocketMQ's clients: access key {arguments.name}, secret key {secret}\n"
    print(
        f"# That is the token, kept nowhere else; give it to its holder. Its entry, for access.tokens_file:\n"
        f"{signs}{entry}"
        f"# The same as a line of TIERLOG_ACCESS_TOKENS:\n# {line}",
        file=sys.stderr,
    )
    return DONE
