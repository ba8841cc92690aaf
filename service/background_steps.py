"""Which steps the background of one open store repeats, and with what pauses after failures."""

from __future__ import annotations

from collections.abc import Callable

from service.background import Background
from service.opening import StoreParts
from service.repeated import Repeated
from service.settings import Settings
from tiering.backoff import Backoff
from tiering.clock import Clock
from tiering.randomness import Randomness


def make_background(
    parts: StoreParts,
    checkpoint: Callable[[], None],
    remove_due: Callable[[], None],
    settings: Settings,
    clock: Clock,
    randomness: Randomness,
) -> Background:
    """The threads of a store, not started. ``remove_due`` is what a store without a cold tier does beside its index."""

    def repeated(name: str, step: Callable[[], object], error: str | None = None) -> Repeated:
        cold = settings.cold
        first_s, most_s = cold.retry_interval_ms / 1000, cold.retry_max_ms / 1000
        return Repeated(name, step, Backoff(clock, randomness, first_s=first_s, most_s=most_s), error)

    keeping = repeated("keeping the key index", parts.keeping.round)
    # what stops it in a store that can be written is the want of a descriptor, over as soon as anybody closes one
    checkpointing = Repeated("checkpoint", checkpoint, Backoff(clock, randomness, first_s=1.0, most_s=5.0))
    cold_way, archived = parts.cold_way, parts.archived
    beside: list[Repeated] = []
    if cold_way is None or archived is None:
        tiers = [repeated("removal", remove_due, parts.first_contact)]
    else:
        tiers = [
            repeated("rolling and removal", cold_way.local_round),
            repeated("archiving", cold_way.archive_round, parts.first_contact),
            repeated("expiry and erasure", parts.removal.round),
        ]

        def sweep_both() -> None:
            cold_way.sweep_round()
            archived.sweep_round()

        def count() -> None:
            manifest, totals = parts.manifest, parts.totals
            if manifest is not None and totals is not None and manifest.head is not None:
                totals.learn(manifest.reader(scan=True), manifest.head)

        beside = [repeated("sweeping", sweep_both), repeated("counting the archive", count)]
    return Background(parts.hot, checkpointing, keeping, tiers, beside, settings, clock, parts.stopping)
