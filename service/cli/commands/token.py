"""``tierlog token``: a new token, and the entry by which a service knows it."""

from __future__ import annotations

import argparse

from tierlog.service.cli.arguments import DOCUMENT_FORMS, add_format, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.exit_codes import DONE

HELP = "make a token for a service: printed once, with the entry for its tokens file"
EXAMPLES = (
    (
        "an application that writes and reads its own topics",
        "tierlog token shop --scope produce --scope read --topic 'shop-*'",
    ),
    (
        "monitoring, which sees the store's numbers and no topic, until the year ends",
        "tierlog token prometheus --scope read --no-topic --expires 2027-01-01",
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
    add_format(parser, forms=DOCUMENT_FORMS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the token on the first line of standard output, or one JSON document; it is kept nowhere."""
    import json
    import sys

    from tierlog.service.access.tokens import digest, new_token, read_lines, read_toml
    from tierlog.tiering.base.clock import SystemClock
    from tierlog.tiering.base.randomness import SystemRandomness
    from tierlog.tiering.base.times import format_time

    token = new_token(SystemRandomness())
    scopes, topics = list(dict.fromkeys(arguments.scope)), arguments.topic or []
    fields = {"name": arguments.name, "sha256": digest(token).hex(), "scopes": scopes, "topics": topics}
    line = ":".join([arguments.name, digest(token).hex(), ",".join(scopes), ",".join(topics)])
    entry = "[[token]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    (expires_ms,) = asked_times(arguments, "expires")
    if expires_ms is not None:
        expires = format_time(expires_ms)
        if expires_ms <= SystemClock().now_ms():
            say(f"--expires {arguments.expires} has passed, no service takes this token; now+90d is in 90 days")
        entry += f"expires = {expires}\n"
        line += f":{expires}"
    read_toml(entry, "the new entry")  # refuse here what a service would refuse
    read_lines(line, "the new entry")
    if arguments.format in ("json", "ndjson"):
        print(json.dumps({"token": token, "entry": entry, "line": line}, ensure_ascii=False))
        return DONE
    print(token)
    sys.stdout.flush()
    say("this is the token, kept nowhere else; give it to its holder. The entry for access.tokens_file:")
    print(f"\n{entry}", file=sys.stderr)
    say("or for TIERLOG_ACCESS_TOKENS:")
    print(f"\n{line}\n", file=sys.stderr)
    return DONE
