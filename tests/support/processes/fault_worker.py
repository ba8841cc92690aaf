"""A process that appends to a store until its disk refuses, and says in one JSON line what the store did then.

``python -m tests.support.processes.fault_worker FOLDER SEED BATCHES [WRITERS]``: the store is ``FOLDER/store``, the
ledgers lie in ``FOLDER`` itself. Whoever starts it makes the disk refuse, by injected errors or by a real full disk.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.oracles.ledger import QUEUES, TOPIC, Ledger
from tests.support.stores.engines import tiny_settings
from tierlog.service.config.settings import Settings
from tierlog.service.engine.store import Store
from tierlog.tiering.base.errors import ReadOnlyError, StoreError, UnavailableError
from tierlog.tiering.base.types import Durability, PullStatus


def worker_settings(index_items: int = 60) -> Settings:
    """So small that every kind of file is made, filled and left in one run; the disk itself says when it is full."""
    return tiny_settings(
        hot__segment_bytes=16_384, index__items=index_items, hot__flush_interval_ms=5, hot__checkpoint_interval_ms=20,
        hot__disk_max_used_percent=100, hot__disk_full_percent=100,
    )  # fmt: skip


def work(folder: Path, seed: int, batches: int, writers: int, index_items: int = 60) -> dict[str, Any]:
    """Append; ``stage`` says where the disk refused: at opening, while writing, at closing, or nowhere."""
    try:
        engine = Store.open(folder / "store", settings=worker_settings(index_items))
    except StoreError as error:
        return {"stage": "open", "error": str(error)}
    failures: list[StoreError] = []
    if writers:
        engine.start()
        threads = [
            threading.Thread(target=write, args=(engine, Ledger(folder, writer), seed, batches, failures))
            for writer in range(writers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        write(engine, Ledger(folder, 0), seed, batches, failures)
    outcome: dict[str, Any] = {"stage": "none", "error": None}
    if failures or engine.read_only_reason:
        outcome = {"stage": "write", "error": str(failures[0] if failures else engine.read_only_reason)}
        outcome["reason"] = engine.read_only_reason
        outcome["refused"] = all(
            refuses(engine, Ledger(folder, 99), each) for each in (Durability.ASYNC, Durability.FLUSHED)
        )
    outcome["unread"], outcome["undispatched"] = unread(engine, folder, max(writers, 1))
    try:
        engine.close()
    except StoreError as error:
        if outcome["stage"] == "none":
            outcome.update(stage="close", error=str(error))
    return outcome


def write(engine: Store, ledger: Ledger, seed: int, batches: int, failures: list[StoreError]) -> None:
    """Note, append, note that it was acknowledged; until the store refuses."""
    chance = random.Random(seed * 100 + ledger.writer)
    at = ledger.sent.last()
    for number in range(batches):
        end = at + chance.randrange(1, 6)
        ledger.sent.add(end)
        try:
            engine.append([ledger.message(each, chance) for each in range(at, end)])
            ledger.acknowledged.add((at, end))
            if number % 5 == 4:
                engine.flush()
        except StoreError as error:
            failures.append(error)
            return
        at = end


def refuses(engine: Store, ledger: Ledger, durability: Durability) -> bool:
    """Whether one more append is refused as it should be."""
    try:
        engine.append([ledger.message(0, random.Random(0))], durability)
    except ReadOnlyError as error:
        return "read-only" in str(error)
    return False


def unread(engine: Store, folder: Path, writers: int) -> tuple[int, bool]:
    """How many acknowledged messages pulls do not give now, and whether the store says that it cannot show them."""
    found: set[tuple[int, int]] = set()
    undispatched = False
    known = {topic.name for topic in engine.topics()}
    for queue_id in range(QUEUES if TOPIC in known else 0):
        offset = 0
        try:
            while (pulled := engine.pull(TOPIC, queue_id, offset, 1000)).status is PullStatus.FOUND:
                for message in pulled.messages:
                    writer, number = message.record.body.split(b":")[:2]
                    found.add((int(writer), int(number)))
                offset = pulled.next_offset
        except (ReadOnlyError, UnavailableError) as error:
            undispatched = undispatched or "not dispatched" in str(error)
    promised = {(w, number) for w in range(writers) for number in Ledger(folder, w).promised()}
    return len(promised - found), undispatched


if __name__ == "__main__":
    folder, seed, batches, *writers = sys.argv[1:]
    print(json.dumps(work(Path(folder), int(seed), int(batches), int(writers[0]) if writers else 0)))
