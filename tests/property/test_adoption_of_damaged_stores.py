"""A broker's directory with any damage, archived: every message that is whole is there byte for byte, or that is said.

What is whole is known from what RocketMQ said of the store before anything was damaged.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.rocketmq.golden import expected, unpack
from tierlog.index.new_store.broker_log import BrokerLog, LogPlan, survey_segment
from tierlog.index.new_store.commit import publish
from tierlog.index.new_store.part import NewStore
from tierlog.index.objects.derivation import IndexSizes
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.cold.segment.reader import SegmentReader

NAMES = ("clean", "crashed-stale", "upgrade/5.5.0")
SEEDS = range(24)
#: How many of them are in `make test`.
_QUICK = 8
_NUMBERS = (b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\x03" + bytes(7), b"\xcb\xd4\x31\x94")


@dataclass(frozen=True)
class Adopted:
    """What an archive was made of, and what the job says lies behind it."""

    records: dict[int, bytes]
    cut_off: int


@pytest.fixture(scope="module", params=NAMES)
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    return name, unpack(name, tmp_path_factory.mktemp("sound"))


def adopted(root: Path, cold: Path) -> Adopted:
    """What the ingest job does, without Spark."""
    log = BrokerLog.find(root)
    plan = LogPlan.of(log, [survey_segment(segment) for segment in log.segments])
    store = NewStore(f"file://{cold}", "broker", log.segment_bytes, IndexSizes(500, 600))
    topics, parts = plan.new_topics(), [task.run() for task in plan.tasks(store)]
    publish(
        store, parts, topics, SeededRandomness(1), volume_id=plan.fingerprint, log_begin=plan.begin, groups=plan.groups
    )
    manifest = store.manifest
    head, reader = manifest.refresh(), manifest.reader(scan=True)
    records = {
        entry.base + position: bytes(item)
        for entry in manifest.log_entries(reader, head)
        for position, item in SegmentReader(reader, entry).raw_items()
    }
    return Adopted(records, plan.cut_off)


def damage(root: Path, chance: random.Random) -> None:
    """One to three of: bytes overwritten, a file cut, gone, swapped with another, or one that does not belong there."""
    for _ in range(chance.randint(1, 3)):
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
        logs = [path for path in files if path.parent.name == "commitlog"]
        path = chance.choice(logs if logs and chance.random() < 0.7 else files)
        data = bytearray(path.read_bytes())
        match chance.randrange(8):
            case 0 | 1:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case 2:
                at = chance.randrange(len(data))
                data[at : at + 512] = bytes(len(data[at : at + 512]))
            case 3:
                at, number = chance.randrange(len(data)), chance.choice(_NUMBERS)
                data[at : at + len(number)] = number[: len(data) - at]
            case 4:
                del data[chance.randrange(len(data)) :]
            case 5:
                path.unlink()
                continue
            case 6:
                other = chance.choice(files)
                data = bytearray(other.read_bytes())
            case _:
                _foreign(path.parent, chance)
                continue
        path.write_bytes(data)


def _foreign(folder: Path, chance: random.Random) -> None:
    name = chance.choice(["lost+found", "00000000000000000007", f"{1 << 60:020d}", "x" * 200, "-1", "٣", "~", ".nfs01"])
    if chance.random() < 0.3:
        (folder / name).mkdir(exist_ok=True)
    elif not (folder / name).exists():
        (folder / name).write_bytes(chance.randbytes(chance.choice([0, 1, 20, 5000])))


def whole(root: Path, messages: list[dict[str, Any]], segment_bytes: int) -> dict[int, str]:
    """Offsets of the messages whose bytes in the log are still what they were, with the digest of each."""
    found = {}
    for message in messages:
        offset, size = message["physicalOffset"], message["size"]
        path = root / "commitlog" / f"{offset - offset % segment_bytes:020d}"
        if path.is_file():
            with path.open("rb") as file:
                file.seek(offset % segment_bytes)
                if hashlib.sha256(file.read(size)).hexdigest() == message["recordSha256"]:
                    found[offset] = message["recordSha256"]
    return found


@pytest.mark.parametrize(
    "seed", [*SEEDS[:_QUICK], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[_QUICK:])]
)
def test_what_is_whole_is_archived_or_missed_aloud(sound: tuple[str, Path], tmp_path: Path, seed: int) -> None:
    name, original = sound
    messages = expected(name)["messages"]
    root = tmp_path / "broker"
    shutil.copytree(original, root)
    damage(root, random.Random(f"{name} {seed}"))
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    try:
        done = adopted(root, tmp_path / "cold")
    except StoreError:
        done = None
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    if done is None:
        return
    there = whole(root, messages, 262_144)
    end = max((offset + len(data) for offset, data in done.records.items()), default=0)
    begin = min(done.records, default=0)
    for offset, digest in there.items():
        if begin <= offset < end:
            assert hashlib.sha256(done.records[offset]).hexdigest() == digest
    assert done.records.keys() <= {message["physicalOffset"] for message in messages}
    behind = [offset for offset in there if offset >= end]
    if behind:
        assert done.cut_off, f"{len(behind)} whole messages lie behind {end}, and nothing says so"


def test_without_damage_nothing_is_missed(sound: tuple[str, Path], tmp_path: Path) -> None:
    name, original = sound
    done = adopted(original, tmp_path / "cold")
    assert sorted(done.records) == [message["physicalOffset"] for message in expected(name)["messages"]]
    assert done.cut_off == 0
