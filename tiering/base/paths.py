"""Every file name and object key of a store is built and parsed here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BASE_OFFSET = re.compile(r"\d{20}")


def base_offset_name(base_offset: int) -> str:
    """20 decimal digits, as RocketMQ names the files of a log."""
    return f"{base_offset:020d}"


def parse_base_offset(name: str) -> int | None:
    """Returns the offset a file is named for, or None for any other name and for what no 64-bit offset is."""
    offset = int(name) if _BASE_OFFSET.fullmatch(name) else None
    return None if offset is None or offset >= 1 << 63 else offset


class StorePaths:
    """The places below one store's root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commitlog = root / "commitlog"
        self.consumequeue = root / "consumequeue"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.tmp = root / "tmp"
        self.tierlog = root / "tierlog"
        self.store_json = self.tierlog / "store.json"
        self.topics_json = self.tierlog / "topics.json"
        self.groups_json = self.tierlog / "groups.json"
        self.deliveries_json = self.tierlog / "deliveries.json"
        self.head_json = self.tierlog / "head.json"
        self.bucket_json = self.tierlog / "bucket.json"
        self.expiry_json = self.tierlog / "expiry.json"
        self.classic_index_json = self.tierlog / "classic_index.json"
        self.index_json = self.tierlog / "index.json"
        self.producers_json = self.tierlog / "producers.json"
        self.audit = self.tierlog / "audit"
        self.tails_json = self.tierlog / "tails.json"
        self.damage_json = self.tierlog / "damage.json"
        self.index = root / "index"
        self.cache = root / "cache"
        self.quarantine = root / "quarantine"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that a store has once, its identity last."""
        return (
            self.checkpoint, self.abort, self.topics_json, self.groups_json, self.deliveries_json, self.head_json,
            self.bucket_json, self.expiry_json, self.damage_json, self.classic_index_json, self.index_json,
            self.producers_json, self.tails_json, self.store_json,
        )  # fmt: skip

    def segment(self, base_offset: int) -> Path:
        return self.commitlog / base_offset_name(base_offset)

    def queue(self, topic: str, queue_id: int) -> Path:
        return self.consumequeue / topic / str(queue_id)


@dataclass(frozen=True, slots=True)
class ColdKeys:
    """Object keys of one store below the archive's prefix; all but head, tails and receipts serve one attempt only."""

    store_id: str

    @property
    def head(self) -> str:
        """The one object that is ever replaced."""
        return f"{self.store_id}/head"

    @property
    def swept(self) -> tuple[str, ...]:
        """Prefixes below which every object is named by the head, directly or not, or has no right to stay."""
        return tuple(f"{self.store_id}/{folder}/" for folder in ("index", "log", "manifest", "state"))

    def segment(self, base_offset: int, epoch: int, nonce: str) -> str:
        return f"{self.store_id}/log/{base_offset_name(base_offset)}-{epoch}-{nonce}.zst"

    def index(
        self, level: int, *, begin_ms: int, first_physical: int, epoch: int, nonce: str,
        slots: tuple[int, int] | None = None,
    ) -> str:  # fmt: skip
        """An index object; ``slots`` are those of a part that was cut by slot range."""
        part = f"-s{slots[0]}.{slots[1]}" if slots is not None else ""
        name = f"{begin_ms}-{base_offset_name(first_physical)}{part}-{epoch}-{nonce}.idx"
        return f"{self.store_id}/index/L{level}/{name}"

    def queue_rows(self, base_offset: int, epoch: int, nonce: str) -> str:
        return f"{self.store_id}/manifest/rows-{base_offset_name(base_offset)}-{epoch}-{nonce}"

    def page(self, kind: str, version: int, nonce: str) -> str:
        """A manifest page; ``kind`` says what it holds."""
        return f"{self.store_id}/manifest/{kind}-{version:012d}-{nonce}"

    def tail(self, first: int) -> str:
        """A piece of the unarchived log, or a fence."""
        return f"{self.store_id}/tail/{base_offset_name(first)}"

    def first_of_tail(self, key: str) -> int | None:
        """Returns the offset that a tail's key names, or None for any other key."""
        return parse_base_offset(key.removeprefix(self.tails))

    @property
    def tails(self) -> str:
        """Prefix of the tails."""
        return f"{self.store_id}/tail/"

    def state(self, nonce: str) -> str:
        """Topics and what else a new volume must know."""
        return f"{self.store_id}/state/{nonce}"

    @property
    def receipts(self) -> str:
        """Prefix of the receipts of erasures."""
        return f"{self.store_id}/receipts/"

    def receipt(self, tombstone_id: str) -> str:
        """The receipt of one erasure; outside the manifest, replaced as the work goes on."""
        return f"{self.receipts}{tombstone_id}.json"

    @property
    def segments(self) -> str:
        """Prefix of the sorted segments."""
        return f"{self.store_id}/log/"


#: Folder below an archive's prefix for what its stores share; no store is called that.
CLUSTER_FOLDER = "cluster"
CLUSTER_TABLE = f"{CLUSTER_FOLDER}/table"


def group_home_key(group: str) -> str:
    """Object that names the store of a consumer group: a legal group name is a legal part of a key."""
    return f"{CLUSTER_FOLDER}/groups/{group}"


_HEAD = re.compile(r"([a-z0-9-]{1,63})/head")


def store_of_head(key: str) -> str | None:
    """Returns the store id of a head's key, or None for any other key."""
    match = _HEAD.fullmatch(key)
    return match[1] if match else None
