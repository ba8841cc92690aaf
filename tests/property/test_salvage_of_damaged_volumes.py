"""Salvage of an old volume with any damage: what is whole comes back once, or is named, or salvage refuses.

What was acknowledged is known from the volume before anything was damaged, and what of it is archived from the volume
that took over. The old directory is a real one. Once the damage is undone, a further run brings the rest.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.stores.engines import small_settings
from tests.support.world import World, read_all
from tierlog.service.cli.salvager import PROPERTY, SalvageReport, salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import Durability
from tierlog.tiering.format.properties import decode_properties
from tierlog.tiering.message.batch import Message
from tierlog.tiering.message.stored_message import StoredMessage

KEPT_OUT = "secret"
TOPICS = ("orders", "events", KEPT_OUT)
SEEDS = range(24)
SLOW_SEEDS = range(24, 84)
#: Of a record: what its checksum is in.
_SUM_BYTES = 20
_NUMBERS = (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\x03" + bytes(7), b"\xcb\xd4\x31\x94")


@dataclass(frozen=True)
class Acknowledged:
    """One message that the old volume acknowledged."""

    content: tuple[object, ...]
    offset: int
    record: bytes


@dataclass(frozen=True)
class Lost:
    """A volume that was lost after another took its store over, and its directory."""

    world: World
    new: Store
    root: Path
    acknowledged: dict[str, Acknowledged]
    """By body."""
    before: Counter[str]
    """Bodies on the new volume before anything was salvaged."""
    has_checksums: bool
    """Of whole records, at their ends; else no checksum covers anything but bodies."""

    def salvage(self) -> SalvageReport:
        components = Components(
            self.world.settings.unsized(), self.world.clock, LocalFileSystem(), SeededRandomness(7), self.world.objects
        )
        return salvage(self.root, components, LocalWriter(self.new), lambda done, of: None)

    def read(self, message: Acknowledged) -> bytes:
        """What is left of its record."""
        base = message.offset - message.offset % 4096
        path = self.root / "commitlog" / f"{base:020d}"
        at = message.offset - base
        return path.read_bytes()[at : at + len(message.record)] if path.is_file() else b""

    def whole(self) -> set[str]:
        """Bodies of the messages whose bytes in the log are still what they were."""
        return {body for body, message in self.acknowledged.items() if self.read(message) == message.record}

    def unsure(self) -> set[str]:
        """Bodies of those of which nobody can know whether they are whole: no checksum of the record is there."""
        return {
            body
            for body, message in self.acknowledged.items()
            if (there := self.read(message)) != message.record
            and not (self.has_checksums and there[-_SUM_BYTES:] == message.record[-_SUM_BYTES:])
        }


def _lost(chance: random.Random, root: Path) -> Lost:
    """Rounds of appends, archived up to some of them; then the bucket is away, and the disk is lost."""
    world = World(settings=small_settings())
    has_checksums = chance.random() < 0.75
    world.settings = small_settings(hot__record_checksum=has_checksums)
    old = world.open("old")
    for topic in TOPICS:
        old.create_topic(topic, 2)
    options = old._hot.topics
    options.set_options(options.get(KEPT_OUT), archive=False, cold_retention_ms=None, hold=False)
    old.archive()
    for _ in range(chance.randint(0, 3)):
        _append(old, chance, chance.randint(1, 4))
        old.archive(everything=True)
    for _ in range(chance.randint(1, 4)):
        _append(old, chance, chance.randint(1, 4))
        world.clock.advance(chance.choice((0, 3000)))
        if chance.random() < 0.2:
            old._hot.roll()
        if chance.random() < 0.5:
            old._hot.dispatch()
            old._hot.checkpoint()
    acknowledged = {}
    for message in _all(old):
        record = message.record
        base = record.physical_offset - record.physical_offset % 4096
        at = record.physical_offset - base
        data = world.fs.read(world.place("old") / "commitlog" / f"{base:020d}")[at : at + record.size]
        acknowledged[record.body.decode()] = Acknowledged(_content(message), record.physical_offset, data)
    if chance.random() < 0.5:
        old.close()
    else:
        world.fs.kill()
    _export(world, root)
    new = world.open("new", restore=True)
    before = Counter(message.record.body.decode() for message in _all(new))
    new.append([Message("orders", b"later 1", queue_id=0), Message("orders", b"later 2", queue_id=1)])
    return Lost(world, new, root, acknowledged, before, has_checksums)


def _append(engine: Store, chance: random.Random, count: int) -> None:
    for _ in range(count):
        topic, queue_id = chance.choice(TOPICS), chance.randrange(2)
        messages = [
            Message(
                topic, chance.randbytes(8).hex().encode() * chance.choice((1, 1, 3, 80)), ("key",), "tag",
                {"colour": chance.choice(("red", "blue"))}, queue_id=queue_id,
            )
            for _ in range(chance.randint(1, 12))
        ]  # fmt: skip
        engine.append(messages, Durability.FLUSHED)


def _all(engine: Store) -> Iterator[StoredMessage]:
    for topic in engine.topics():
        for queue in topic.queues:
            yield from read_all(engine, topic.name, queue.queue_id)


def _content(message: StoredMessage) -> tuple[object, ...]:
    """What must come back, but for the marks that a store adds."""
    record = message.record
    added = {PROPERTY, "__CRC32#"}
    properties = {name: value for name, value in decode_properties(record.properties_text).items() if name not in added}
    return record.topic, record.queue_id, record.born_ms, record.body, tuple(sorted(properties.items()))


def _export(world: World, root: Path) -> None:
    source = world.place("old")
    for folder in [each for each in world.fs._folders if each == source or source in each.parents]:
        (root / folder.relative_to(source)).mkdir(parents=True, exist_ok=True)
    for path in [each for each in world.fs._names if source in each.parents]:
        (root / path.relative_to(source)).write_bytes(world.fs.read(path))


def damage(root: Path, chance: random.Random) -> list[str]:
    """One to three of: bytes overwritten, a file cut, gone, swapped with another, or one that does not belong there."""
    volume_id = json.loads((root / "tierlog" / "store.json").read_text())["volume_id"]
    done = []
    for _ in range(chance.randint(1, 3)):
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
        logs = [path for path in files if path.parent.name == "commitlog"]
        path = chance.choice(logs if logs and chance.random() < 0.7 else files)
        sound = path.read_bytes()
        what = _damage(path, files, chance)
        if path.name == "store.json" and path.is_file() and _is_of_another(path, volume_id):
            path.write_bytes(sound)  # nobody could know
        done.append(f"{path.relative_to(root)}: {what}")
    return done


def _is_of_another(path: Path, volume_id: str) -> bool:
    try:
        found = json.loads(path.read_bytes())["volume_id"]
    except (ValueError, LookupError, TypeError):
        return False
    return bool(found != volume_id)


def _damage(path: Path, files: list[Path], chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    match chance.randrange(10):
        case 0 | 1:
            data[at] ^= 1 << chance.randrange(8)
            what = f"bit of {at}"
        case 2 | 3:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
            what = f"zeros at {at}"
        case 4:
            number = chance.choice(_NUMBERS)
            data[at : at + len(number)] = number[: len(data) - at]
            what = f"{number.hex()} at {at}"
        case 5:
            del data[at:]
            what = f"cut at {at}"
        case 6:
            path.unlink()
            return "gone"
        case 7:
            other = chance.choice(files)
            mine, others = path.read_bytes(), other.read_bytes()
            if "store.json" not in (path.name, other.name):
                other.write_bytes(mine)
                data = bytearray(others)
            what = f"swapped with {other.name}"
        case 8 if path.name != "store.json":
            path.unlink()
            path.mkdir()
            return "a folder"
        case _:
            return _foreign(path.parent, chance)
    path.write_bytes(data)
    return what


def _foreign(folder: Path, chance: random.Random) -> str:
    names = ["lost+found", "00000000000000000007", f"{1 << 60:020d}", f"{409600:020d}", "x" * 200, "-1", "٣", "~", "\n"]
    name = chance.choice(names)
    if chance.random() < 0.3:
        (folder / name).mkdir(exist_ok=True)
    elif not (folder / name).exists():
        (folder / name).write_bytes(chance.randbytes(chance.choice([0, 1, 20, 4096, 5000])))
    return f"foreign {name!r}"


def _bytes(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def _check(lost: Lost, unsure: set[str]) -> Counter[str]:
    """Nothing is altered, doubled, elsewhere or invented; what is on the new volume."""
    found = Counter[str]()
    for message in _all(lost.new):
        body = message.record.body.decode()
        if body.startswith("later ") or body in unsure:
            continue
        found[body] += 1
        assert body in lost.acknowledged, f"invented {body}"
        assert _content(message) == lost.acknowledged[body].content
    doubled = [body for body, count in found.items() if count > 1]
    assert not doubled, f"doubled at {[lost.acknowledged[body].offset for body in doubled]}"
    assert not [body for body in lost.before if body not in found and body not in unsure]
    return found


def _salvage_damaged(seed: int, tmp_path: Path) -> set[str]:
    """One seed with every promise; which outcomes it had."""
    chance = random.Random(seed)
    lost = _lost(chance, tmp_path / "old")
    shutil.copytree(lost.root, tmp_path / "sound")
    done = damage(lost.root, chance)
    outcomes = set()
    try:
        whole, bytes_before = lost.whole(), _bytes(lost.root)
        unsure = lost.unsure()
        try:
            report = lost.salvage()
        except StoreError:
            outcomes.add("refused")
        else:
            named = [(each.offset, each.next) for each in report.not_saved]
            outcomes.add("named" if named else "saved")
            if not lost.before.keys() >= lost.acknowledged.keys() and report.appended and named:
                outcomes.add("saved around damage")
            there = _check(lost, unsure)
            for body in whole - there.keys():
                message = lost.acknowledged[body]
                end = message.offset + len(message.record)
                assert any(first <= message.offset and end <= following for first, following in named), message.offset
            assert lost.salvage().appended == 0
        _check(lost, unsure)
        assert _bytes(lost.root) == bytes_before
        shutil.rmtree(lost.root)
        shutil.copytree(tmp_path / "sound", lost.root)
        report = lost.salvage()
        assert not report.not_saved
        assert _check(lost, unsure).keys() == lost.acknowledged.keys() - unsure
        assert lost.salvage().appended == 0
        assert lost.new.check(deep=True) == []
    except BaseException as error:
        error.add_note(f"seed {seed}: {done}")
        raise
    finally:
        lost.new.close()
    return outcomes


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(SLOW_SEEDS, marks=pytest.mark.slow)])
def test_what_is_whole_comes_back_once_or_is_named(seeds: range, tmp_path: Path) -> None:
    outcomes = set[str]()
    for seed in seeds:
        outcomes |= _salvage_damaged(seed, tmp_path / str(seed))
    assert outcomes == {"refused", "named", "saved", "saved around damage"}
