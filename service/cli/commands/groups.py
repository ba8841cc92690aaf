"""``tierlog groups``: consumer groups, how far they are, and moving or deleting one that has no members."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tierlog.service.cli.arguments import add_format, add_target, asked_times
from tierlog.service.cli.errors import say
from tierlog.service.cli.output import print_done, rows_out
from tierlog.service.cli.output_style import OutputStyle
from tierlog.service.cli.removal_guard import is_asked, says_yes
from tierlog.service.cli.signals import interruptible
from tierlog.service.cli.targets import Groups, open_groups
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.wire.documents import Json
from tierlog.tiering.base.errors import ConflictError, InvalidRequestError

if TYPE_CHECKING:
    from tierlog.service.engine.groups import ResetQueues, ResetTo
    from tierlog.tiering.hot.consumer_groups import Queue

HELP = "list consumer groups with their lag, show one, or move or delete one that has no members"
EXAMPLES = (
    ("who is behind", "tierlog groups --url http://127.0.0.1:8080"),
    ("every queue of one", "tierlog groups billing --url http://127.0.0.1:8080"),
    ("what was stored in the last two hours once more", "tierlog groups billing --reset-to 2h --url http://127.0.0.1:8080"),
    ("one queue from an offset on", "tierlog groups billing --reset-to 1200 --topic orders --queue 0 --root ./store"),
)  # fmt: skip
_LISTED = {
    "group": "text", "topics": "json", "members": "int", "queues": "int", "lag": "int", "store_id": "text",
    "generation": "int",
}  # fmt: skip
_PROGRESS = {
    "topic": "text", "store_id": "text", "queue_id": "int", "offset": "int", "min_offset": "int", "max_offset": "int",
    "lag": "int",
}  # fmt: skip
_CHANGED = {"topic": "text", "store_id": "text", "queue_id": "int", "offset": "int", "new_offset": "int"}
#: From here on a number is no offset but ms since the epoch: 2001.
_LIKE_MS = 10**12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds which group, and what becomes of it."""
    parser.add_argument("group", metavar="GROUP", nargs="?", help="show its queues; all groups without it")
    act = parser.add_mutually_exclusive_group()
    act.add_argument(
        "--reset-to", metavar="T|first|latest|OFFSET",
        help="go on with what was stored at or after T (2h, today, RFC 3339), with the first message there is, behind "
        "the last one, or at an offset, which a plain number is",
    )  # fmt: skip
    act.add_argument("--delete", action="store_true", help="forget the group and its offsets; messages stay")
    parser.add_argument("--topic", metavar="T", help="with --reset-to: only queues of this topic")
    parser.add_argument("--queue", type=int, metavar="Q", help="with --reset-to: only queues with this id")
    parser.add_argument("--dry-run", action="store_true", help="with --reset-to: only show what would change")
    parser.add_argument("--yes", action="store_true", help="do not ask on a terminal")
    add_format(parser, times=True)
    add_target(parser, writes=True)


def run(arguments: argparse.Namespace) -> int:
    """Returns exit code 1 for a group that is not there, where there are none, and if the answer was no."""
    changes = arguments.reset_to is not None or arguments.delete
    if changes and arguments.group is None:
        raise InvalidRequestError("no group", hint="give GROUP; `tierlog groups` lists them")
    if arguments.reset_to is None and (arguments.topic is not None or arguments.queue is not None or arguments.dry_run):
        raise InvalidRequestError("--topic, --queue and --dry-run go with --reset-to")
    with interruptible(), open_groups(arguments, changes=changes and not arguments.dry_run) as target:
        if arguments.delete:
            return _delete(target, arguments)
        if arguments.reset_to is not None:
            return _reset(target, arguments)
        return _list(target, arguments) if arguments.group is None else _show(target, arguments)


def _list(target: Groups, arguments: argparse.Namespace) -> int:
    from tierlog.service.cli.table import Column

    shown = (
        Column("group", style="name"),
        Column("topics", is_text=True),
        Column("members", is_number=True),
        Column("lag", is_number=True),
        Column("home", rank=1),
    )
    groups = target.groups()
    out = rows_out(
        OutputStyle.of(arguments), "groups", columns=tuple(_LISTED), shown=shown, cells=_group_cells, types=_LISTED
    )
    out.write(groups)
    out.end()
    if not groups:
        say("no consumer groups there")
        return NOTHING
    return DONE


def _group_cells(row: Json) -> Json:
    return {
        "group": row["group"],
        "topics": ", ".join(row["topics"]),
        "members": row["members"],
        "lag": _number(row["lag"]),
        "home": row["store_id"],
    }


def _show(target: Groups, arguments: argparse.Namespace) -> int:
    from tierlog.service.cli.table import Column

    group = target.group(arguments.group)
    readers = {_queue_of(queue): member["member_id"] for member in group["members"] for queue in member["assignment"]}

    def cells(row: Json) -> Json:
        return {
            "topic": row["topic"],
            "store": row["store_id"],
            "queue": row["queue_id"],
            "committed": _number(row["offset"]),
            "end": _number(row["max_offset"]),
            "lag": _number(row["lag"]),
            "member": readers.get(_queue_of(row)),
        }

    shown = (
        Column("topic", style="name"),
        Column("store", rank=2),
        Column("queue", is_number=True),
        Column("committed", is_number=True),
        Column("end", is_number=True),
        Column("lag", is_number=True),
        Column("member", rank=1),
    )
    out = rows_out(
        OutputStyle.of(arguments), "queues", columns=tuple(_PROGRESS), shown=shown, cells=cells, types=_PROGRESS
    )
    out.write(group["queues"])
    out.end(**{name: value for name, value in group.items() if name != "queues"})
    lag = "unknown" if group["lag"] is None else f"{group['lag']:,}"
    say(f"group {group['group']!r}: members {len(group['members'])}, generation {group['generation']}, lag {lag}")
    for store_id in group["stores_down"]:
        say(f"store {store_id} does not answer: how far its queues go is not known")
    return DONE


def _reset(target: Groups, arguments: argparse.Namespace) -> int:
    from tierlog.service.engine.groups import ResetQueues

    to = _reset_to(arguments)
    store_id = arguments.store_id if arguments.url is not None else None
    queues = ResetQueues(arguments.topic, store_id, arguments.queue)
    plan = _planned(target, arguments.group, to, queues)
    if arguments.dry_run:
        _show_changes(plan, arguments)
        return DONE
    is_shown = is_asked(arguments)
    if is_shown:
        _show_changes(plan, arguments)
        if not says_yes(f"Reset {len(plan)} queues of group {arguments.group!r}?", or_else="nothing was changed"):
            return NOTHING
    done = target.reset_group(arguments.group, to, queues, dry_run=False)
    if not is_shown:
        _show_changes(done, arguments)
    say(f"group {arguments.group!r} goes on there in {len(done)} queues")
    return DONE


def _planned(target: Groups, group: str, to: ResetTo, queues: ResetQueues) -> list[Json]:
    """Returns what would change; one offset is for one queue. Says what is left alone."""
    plan = target.reset_group(group, to, queues, dry_run=True)
    meant = {_queue_of(row) for row in plan}
    left = [
        row
        for row in target.group(group)["queues"]
        if row["offset"] is not None
        and _queue_of(row) not in meant
        and queues.topic in (None, row["topic"])
        and queues.match(_queue_of(row))
    ]
    if left:
        say(f"{len(left)} queues stay as they are: their topic was deleted, or their store cannot be asked from here")
    if to.offset is not None and len(plan) > 1:
        raise InvalidRequestError(
            f"an offset is of one queue, and {len(plan)} are meant", hint="say which with --topic T --queue Q"
        )
    return plan


def _reset_to(arguments: argparse.Namespace) -> ResetTo:
    from tierlog.service.engine.groups import ResetTo

    text: str = arguments.reset_to.strip()
    if text == "first":
        return ResetTo(place="first")
    if text == "latest":
        return ResetTo(place="latest")
    if text.isascii() and text.isdigit():
        if int(text) >= _LIKE_MS:
            raise InvalidRequestError(
                f"--reset-to {text}: a number is an offset, and this looks like ms",
                hint="write the time as 2h, today, or RFC 3339 such as 2026-03-01T00:00:00Z",
            )
        return ResetTo(offset=int(text))
    try:
        (time_ms,) = asked_times(arguments, "reset_to")
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message, hint=f"first, latest, an offset, or a time: {error.hint}") from error
    return ResetTo(time_ms=time_ms)


def _queue_of(row: Json) -> Queue:
    return row["topic"], row["store_id"], row["queue_id"]


def _show_changes(changes: list[Json], arguments: argparse.Namespace) -> None:
    from tierlog.service.cli.table import Column

    shown = (
        Column("topic", style="name"),
        Column("store", rank=1),
        Column("queue", is_number=True),
        Column("committed", is_number=True),
        Column("new", is_number=True),
        Column("by", is_number=True),
    )
    out = rows_out(
        OutputStyle.of(arguments), "queues", columns=tuple(_CHANGED), shown=shown, cells=_change_cells, types=_CHANGED
    )
    out.write(changes)
    out.end()


def _change_cells(row: Json) -> Json:
    before, after = row["offset"], row["new_offset"]
    return {
        "topic": row["topic"],
        "store": row["store_id"],
        "queue": row["queue_id"],
        "committed": _number(before),
        "new": _number(after),
        "by": None if before is None else f"{after - before:+,}",
    }


def _delete(target: Groups, arguments: argparse.Namespace) -> int:
    name: str = arguments.group
    group = target.group(name)
    if group["members"]:
        raise ConflictError(f"group {name!r} has {len(group['members'])} live members", hint="stop its consumers first")
    committed = sum(queue["offset"] is not None for queue in group["queues"])
    question = f"Forget group {name!r} with its offsets in {committed} queues?"
    if is_asked(arguments) and not says_yes(question, or_else="nothing was changed"):
        return NOTHING
    target.remove_group(name)
    print_done({"group": name, "removed": True}, arguments)
    say(f"group {name!r} is forgotten")
    return DONE


def _number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"
