"""Erasure and expiry jobs over a :class:`RemovalWorld`, with the driver and its executors in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from tests.support.stores.removal_world import Erased, RemovalWorld
from tierlog.pipeline.removal.erasure import BulkErasure, ErasureRequest
from tierlog.pipeline.removal.expiry import BulkExpiry
from tierlog.tiering.base.options import ColdOptions
from tierlog.tiering.base.paths import ColdKeys
from tierlog.tiering.base.progress_bar import Progress
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.base.types import END_OF_TIME_MS
from tierlog.tiering.cold.manifest.store import ManifestStore
from tierlog.tiering.lifecycle.expiry import ExpiryRules
from tierlog.tiering.objects.object_store import ObjectStore

A = TypeVar("A")
R = TypeVar("R")


@dataclass
class ArchiveHere:
    """The archive as a job in this process opens it."""

    world: RemovalWorld
    objects: object = None
    seed: int = 1000
    manifest: ManifestStore = field(init=False)
    randomness: SeededRandomness = field(init=False)

    def __post_init__(self) -> None:
        objects = cast(ObjectStore, self.objects or self.world.objects)
        self.randomness = SeededRandomness(self.seed)
        options = ColdOptions(frame_bytes=4096, max_inline_entries=4, page_entries=3)
        self.manifest = ManifestStore(
            objects, ColdKeys("store"), randomness=self.randomness, options=options, clock=self.world.clock
        )


def run_here(function: Callable[[A], R], arguments: Sequence[A]) -> list[R]:
    """Each argument in turn; what would travel to an executor and back goes through pickle."""
    assert isinstance(function, partial)
    archive, *values = function.args
    there = partial(function.func, archive, *pickle.loads(pickle.dumps(values)))
    return pickle.loads(pickle.dumps([there(each) for each in pickle.loads(pickle.dumps(arguments))]))  # type: ignore[no-any-return]


def unseen(done: int, of: int) -> None:
    """Progress that nobody looks at."""


def erasure_of(
    world: RemovalWorld, objects: object = None, *, seed: int = 1000, most: int = 3, **named: bool
) -> BulkErasure:
    """The job, not begun."""
    archive = ArchiveHere(world, objects, seed)
    return BulkErasure(archive, run_here, world.clock, archive.randomness, most=most, **named)


def erase_in_bulk(
    world: RemovalWorld,
    topic: str,
    *keys: str,
    from_ms: int | None = None,
    to_ms: int | None = None,
    job: BulkErasure | None = None,
    progress: Progress = unseen,
    archived_to: int | None = None,
    **options: bool,
) -> dict[str, object]:
    """Run the job from beginning to end, and take note of what it erases: what is archived by then."""
    job = job or erasure_of(world)
    request = ErasureRequest(topic, keys, from_ms, to_ms, **options)
    stone = job.begin(request)
    note(world, request, stone.end)
    job.carry_out(stone, request, progress)
    return job.receipt(stone.tombstone_id)


def note(world: RemovalWorld, request: ErasureRequest, end: int) -> None:
    """Take note of what was erased: messages below an offset."""
    sent = sum(one.offset < end for one in world.sent)
    to_ms = END_OF_TIME_MS if request.to_ms is None else request.to_ms
    for key in request.keys or (None,):
        world.erased.append(Erased(request.topic, key, request.from_ms or 0, to_ms, sent))


def expiry_of(
    world: RemovalWorld, rules: ExpiryRules, objects: object = None, *, seed: int = 2000, **named: bool
) -> BulkExpiry:
    """The job, not begun."""
    return BulkExpiry(ArchiveHere(world, objects, seed), run_here, world.clock, rules, most=3, **named)
