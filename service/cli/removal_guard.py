"""What stands between a typed command and the end of messages: a word for a whole topic, and a question on a terminal.

Scripts are asked nothing: a filter, or ``--all``, is their answer. What would go is counted by a dry run where one can
be had; that it cannot be counted refuses and allows nothing.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from tierlog.service.cli.errors import say
from tierlog.service.cli.output_style import printable
from tierlog.service.cli.targets import Writer
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.base.progress_bar import spinner
from tierlog.tiering.base.times import format_time
from tierlog.tiering.base.types import Order

if TYPE_CHECKING:
    from tierlog.index.search.query import Query


def add_words(parser: argparse.ArgumentParser, all_help: str) -> None:
    """Adds --all and --yes."""
    parser.add_argument("--all", dest="whole_topic", action="store_true", help=all_help)
    parser.add_argument("--yes", action="store_true", help="do not ask on a terminal")


def refuse_whole_topic(target: Writer, topic: str, *, would: str, hint: str) -> NoReturn:
    """Raises :class:`InvalidRequestError` that says what would go, or :class:`TopicNotFoundError`."""
    from tierlog.index.search.query import Query

    raise InvalidRequestError(f"this {would} topic {topic!r} as a whole: {extent(target, Query(topic))}", hint=hint)


def is_agreed(target: Writer, query: Query, arguments: argparse.Namespace, *, will: str) -> bool:
    """Whether to go on: asks on a terminal, unless ``--yes`` was said, and takes anything but a yes for a no.

    Of a topic that is not there nothing is asked: the removal itself says so, or tells the archive what it owes it.
    """
    if not is_asked(arguments):
        return True
    try:
        with spinner("counting"):
            found = extent(target, query)
    except TopicNotFoundError:
        return True
    print(printable(f"{will}: {found}."), file=sys.stderr)
    return says_yes("It cannot be undone. Go on?", or_else="nothing was removed")


def is_asked(arguments: argparse.Namespace) -> bool:
    """Whether somebody is to be asked: on a terminal, unless ``--yes`` was said."""
    return not arguments.yes and sys.stdin.isatty() and sys.stderr.isatty()


def says_yes(question: str, *, or_else: str) -> bool:
    """Asks on the terminal; anything but a yes is a no, and ``or_else`` is said."""
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say(or_else)
    return False


def extent(target: Writer, query: Query) -> str:
    """Describes the messages that a removal would match now: how many, and when the first and last were stored.

    Raises :class:`TopicNotFoundError`.
    """
    count = _count(target, query)
    if count == "no messages":
        return count
    ends = [_end(target, query, order) for order in (Order.OLDEST, Order.NEWEST)]
    if None in ends:
        return count
    return f"{count}, stored from {ends[0]} to {ends[1]}"


def _count(target: Writer, query: Query) -> str:
    try:
        matched = target.erase(query, dry_run=True, wait=False, progress=None)["matched"]
    except TopicNotFoundError:
        raise
    except InvalidRequestError as error:  # no cold tier, so there are no erasures that can be tried
        return _in_topic(target, query.topic) or _untold(error)
    except StoreError as error:
        return _untold(error)
    found: int = matched["hot"] + matched["cold"]
    return _messages(found) if matched["complete"] else f"at least {_messages(found)}"


def _in_topic(target: Writer, topic: str) -> str | None:
    with suppress(StoreError):
        found = next((one["messages"] for one in target.topics() if one["topic"] == topic), 0)
        return None if found is None else _messages(found)
    return None


def _untold(error: StoreError) -> str:
    return f"how many messages cannot be told ({error.message})"


def _messages(count: int) -> str:
    return "no messages" if count == 0 else "1 message" if count == 1 else f"{count:,} messages"


def _end(target: Writer, query: Query, order: Order) -> str | None:
    """Returns when the first message in this order was stored; None if nobody says, as to who may not read."""
    from tierlog.index.search.query import Query

    with suppress(StoreError):
        asked = Query(query.topic, query.key, query.from_ms, query.to_ms, limit=1, order=order)
        messages: list[Json] = target.query(asked)["messages"]
        return format_time(messages[0]["store_ms"]) if messages else None
    return None
