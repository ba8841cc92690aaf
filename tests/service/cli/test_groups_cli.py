"""``tierlog groups``: how far groups are; moving and deleting one, which is asked about first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.terminal import in_terminal
from tests.support.service.served import served
from tests.support.stores.engines import tiny_settings
from tierlog.service.cli.remote import RemoteTarget
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.base.errors import UnavailableError
from tierlog.tiering.hot.consumer_groups import Queue
from tierlog.tiering.message.batch import Message

Run = Callable[..., list[dict[str, Any]]]


class World:
    """A store with 10 messages in both queues of ``orders``, of which group ``billing`` has done 4 and none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine = Store.open(root, settings=tiny_settings(), store_id="store-a")
        self.engine.create_topic("orders", 2)
        self.engine.append([Message("orders", b"%d" % number, queue_id=number % 2) for number in range(20)])
        self.engine.groups.commit("billing", {("orders", "store-a", 0): 4})

    def offsets(self) -> list[int]:
        found: dict[Queue, int] = dict(self.engine.groups.committed("billing").offsets)
        return [found[queue] for queue in sorted(found)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.engine.close()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with served(world.engine, tiny_settings()) as address:
        yield address


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def ask(*argv: str, code: int = DONE) -> list[dict[str, Any]]:
        assert main(["groups", "--format", "ndjson", *argv]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


LISTED = {
    "group": "billing", "generation": 0, "members": 0, "queues": 1, "store_id": "store-a", "topics": ["orders"],
    "lag": 6,
}  # fmt: skip


def test_groups_are_listed_alike_by_a_service_and_in_a_store(world: World, url: str, run: Run) -> None:
    assert run("--url", url) == run("--root", str(world.root)) == [LISTED]
    assert run("billing", "--url", url) == run("billing", "--root", str(world.root)) == [
        {
            "topic": "orders", "store_id": "store-a", "queue_id": 0, "offset": 4, "min_offset": 0, "max_offset": 10,
            "lag": 6,
        }
    ]  # fmt: skip


def test_a_store_without_groups_has_none(tmp_path: Path, run: Run) -> None:
    Store.open(tmp_path / "s", settings=tiny_settings()).close()
    assert run("--root", str(tmp_path / "s"), code=NOTHING) == []
    run("billing", "--root", str(tmp_path / "s"), code=NOTHING)


@pytest.mark.parametrize(
    ("argv", "offsets"),
    [
        (("first",), [0, 0]),
        (("latest",), [10, 10]),
        (("1h",), [0, 0]),
        (("now",), [10, 10]),
        (("today-1d",), [0, 0]),
        (("7", "--topic", "orders", "--queue", "1"), [4, 7]),
        (("latest", "--queue", "1"), [4, 10]),
        (("latest", "--store-id", "store-a"), [10, 10]),
    ],
)
def test_a_group_is_moved(world: World, url: str, run: Run, argv: tuple[str, ...], offsets: list[int]) -> None:
    before = world.offsets()
    planned = run("billing", "--reset-to", *argv, "--dry-run", "--url", url)
    assert world.offsets() == before
    assert run("billing", "--reset-to", *argv, "--yes", "--url", url) == planned
    assert world.offsets() == offsets


def test_a_group_of_a_store_that_is_not_served_is_moved_and_deleted(world: World, run: Run) -> None:
    root = str(world.root)
    world.engine.close()
    moved = run("billing", "--reset-to", "latest", "--yes", "--root", root)
    assert [(one["queue_id"], one["offset"], one["new_offset"]) for one in moved] == [(0, 4, 10), (1, None, 10)]
    assert [one["lag"] for one in run("billing", "--root", root)] == [0, 0]
    assert run("billing", "--delete", "--yes", "--root", root) == [{"group": "billing", "removed": True}]
    assert run("--root", root, code=NOTHING) == []


@pytest.mark.parametrize(
    "argv",
    [
        ("--reset-to", "first"),
        ("--delete",),
        ("billing", "--topic", "orders"),
        ("billing", "--delete", "--dry-run"),
        ("billing", "--reset-to", "7", "--yes"),
        ("billing", "--reset-to", "11", "--queue", "0", "--yes"),
        ("billing", "--reset-to", "1772344800345", "--yes"),
        ("billing", "--reset-to", "soon", "--yes"),
    ],
)
def test_what_makes_no_sense_is_refused(world: World, url: str, run: Run, argv: tuple[str, ...]) -> None:
    run(*argv, "--url", url, code=WRONG_USE)
    assert world.offsets() == [4]


def test_a_script_is_asked_nothing(world: World, url: str, run: Run) -> None:
    run("billing", "--reset-to", "latest", "--url", url)
    assert world.offsets() == [10, 10]
    run("billing", "--delete", "--url", url)
    assert run("--url", url, code=NOTHING) == []


def test_a_group_with_members_is_neither_moved_nor_deleted(world: World, url: str, run: Run) -> None:
    world.engine.groups.join("billing", ["orders"])
    for act in (("--reset-to", "first"), ("--delete",)):
        run("billing", *act, "--yes", "--url", url, code=FAILED)
    assert world.offsets() == [4]
    assert RemoteTarget(url).groups()[0]["members"] == 1


def test_a_store_that_does_not_answer_hides_no_groups_of_others(
    world: World, url: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, call = RemoteTarget(url), RemoteTarget._call
    stores = [{"store_id": store_id} for store_id in ("dead", world.engine.store_id)]
    monkeypatch.setattr(RemoteTarget, "cluster", lambda self: {"stores": stores})

    def answered(self: RemoteTarget, method: str, path: str, *args: Any, **more: Any) -> Any:
        if path.endswith("store_id=dead"):
            raise UnavailableError("store dead does not answer")
        return call(self, method, path, *args, **more)

    monkeypatch.setattr(RemoteTarget, "_call", answered)
    assert [group["group"] for group in target.groups()] == ["billing"]
    assert "stores that do not answer: dead" in capsys.readouterr().err
    del stores[1]
    with pytest.raises(UnavailableError):
        target.groups()


def test_on_a_terminal_one_is_asked_first(world: World, url: str) -> None:
    reset = ("groups", "billing", "--reset-to", "latest", "--url", url)
    asked = in_terminal(*reset, typed="n\n")
    assert asked.code == NOTHING
    assert asked.lines[1].split() == ["topic", "store", "queue", "committed", "new", "by"]
    assert asked.lines[2].split() == ["orders", "store-a", "0", "4", "10", "+6"]
    assert "Reset 2 queues of group 'billing'? [y/N]" in asked.text
    assert "nothing was changed" in asked.text
    assert world.offsets() == [4]
    assert in_terminal(*reset, typed="y\n").code == DONE
    assert world.offsets() == [10, 10]
    delete = ("groups", "billing", "--delete", "--url", url)
    assert in_terminal(*delete, typed="\n").code == NOTHING
    assert world.offsets() == [10, 10]
    assert in_terminal(*delete, typed="yes\n").code == DONE
    assert world.engine.groups.all() == []


def test_a_table_shows_who_is_behind_and_who_reads_what(world: World, url: str) -> None:
    member = world.engine.groups.join("billing", ["orders"])
    listed = in_terminal("groups", "--url", url)
    assert listed.lines[0].split() == ["group", "topics", "members", "lag", "home"]
    assert listed.lines[1].split() == ["billing", "orders", "1", "16", "store-a"]
    shown = in_terminal("groups", "billing", "--url", url)
    assert shown.lines[0].split() == ["topic", "store", "queue", "committed", "end", "lag", "member"]
    assert shown.lines[2].split() == ["orders", "store-a", "1", "10", "10", member.member_id]
    assert "members 1, generation 1, lag 16" in shown.text


def test_what_stays_as_it_is_is_told(world: World, url: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    world.engine.append([Message("pays", b"x", queue_id=0)])
    world.engine.groups.commit("billing", {("pays", "store-a", 0): 1})
    world.engine.removal.delete_topic("pays")
    assert main(["groups", "billing", "--reset-to", "latest", "--yes", "--url", url]) == DONE
    assert "1 queues stay as they are: their topic was deleted" in capsys.readouterr().err
