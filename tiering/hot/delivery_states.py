"""``tierlog/deliveries.json``: what groups have of their queues above the committed offset.

::

    {"format": 1, "deliveries": [
    {"name": "billing", "queues": [["orders", 0, 17, 25, [[17, 2, 1700000060000, 0, 0, "timeout"], [21, 1, …]]]]}]}

A queue: topic, number, the committed offset when this was noted, the first offset that nobody looked at, and what is
open below it (:class:`OpenMessageState`). Everything else in between is done. A queue of which nothing is open needs no
entry: its committed offset says all. Offsets are committed to ``groups.json`` first, so one that is lower there than
here was set back since, and what is noted here counts no more.

Primary data, written about once a second while it changes and at a clean stop. Killed in between: the file before
stands, what was acknowledged since is delivered again, and no message is lost. A version before deliveries ignores the
file; offsets that it commits meanwhile are followed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tierlog.tiering.base.errors import ClosedError, ReadOnlyError
from tierlog.tiering.base.fs import FileSystem
from tierlog.tiering.base.json_file import JsonFile
from tierlog.tiering.base.paths import StorePaths
from tierlog.tiering.format.store_state import QueueDeliveryState

_FORMAT = 1
_Groups = dict[str, tuple[QueueDeliveryState, ...]]


class DeliveryStates:
    """The deliveries of one store's groups as they are on disk. Thread safe."""

    def __init__(
        self,
        fs: FileSystem,
        paths: StorePaths,
        read_only_reason: Callable[[], str | None],
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        """Reads what is there. ``flush`` makes durable what a group may have been given."""
        self._fs, self._paths = fs, paths
        self._read_only_reason = read_only_reason
        self._flush = flush
        self._lock = threading.Lock()
        self._is_closed = False
        self._texts: dict[str, tuple[tuple[QueueDeliveryState, ...], str]] = {}
        self._file = replace(DELIVERIES_FILE, encode=self._document)
        self._groups: _Groups = dict(self._file.read(fs, paths.deliveries_json) or {})

    def all(self) -> dict[str, tuple[QueueDeliveryState, ...]]:
        """Returns what is noted of each group that has something open."""
        return dict(self._groups)

    def get(self, group: str) -> tuple[QueueDeliveryState, ...]:
        """Returns what is noted of a group."""
        return self._groups.get(group, ())

    def save(self, changed: Mapping[str, Sequence[QueueDeliveryState]]) -> None:
        """Notes the state of some groups durably, all or nothing; a group without any is forgotten."""
        with self._lock:
            groups = {name: queues for name, queues in self._groups.items() if name not in changed}
            groups |= {name: tuple(queues) for name, queues in changed.items() if queues}
            if groups == self._groups:
                return
            if self._is_closed:
                raise ClosedError("the store is closed")
            reason = self._read_only_reason()
            if reason is not None:
                raise ReadOnlyError(f"the store is read-only: {reason}")
            self._flush()  # after a power cut other messages would come at offsets that are noted as done
            self._file.replace(self._fs, self._paths.deliveries_json, groups, self._paths.tmp)
            self._groups = groups

    def forget(self, group: str, queues: Collection[tuple[str, int]]) -> None:
        """Takes back what is noted of some queues of a group, durably: it is about to be set to other places.

        Killed before it is: what was done above the committed offset comes again.
        """
        kept = [queue for queue in self.get(group) if (queue.topic, queue.queue_id) not in queues]
        if len(kept) < len(self.get(group)):
            self.save({group: kept})

    def close(self) -> None:
        """Waits for a write under way; every change from now on is a :class:`ClosedError`."""
        with self._lock:
            self._is_closed = True

    def _document(self, groups: Mapping[str, tuple[QueueDeliveryState, ...]]) -> bytes:
        """Returns the file's text; only groups that changed are put into words again."""
        self._texts = {
            name: known if (known := self._texts.get(name)) and known[0] is queues else (queues, _encode(name, queues))
            for name, queues in groups.items()
        }
        return _document_of([text for _, text in self._texts.values()])


def _document_of(texts: Sequence[str]) -> bytes:
    lines = ",\n".join(texts)
    return f'{{"format": {_FORMAT}, "deliveries": [\n{lines}\n]}}\n'.encode()


def _encode(name: str, queues: Sequence[QueueDeliveryState]) -> str:
    return json.dumps({"name": name, "queues": queues})


def _decode(document: Any) -> _Groups:
    return {entry["name"]: tuple(map(QueueDeliveryState.of, entry["queues"])) for entry in document["deliveries"]}


def _encode_all(groups: _Groups) -> bytes:
    return _document_of([_encode(name, queues) for name, queues in groups.items()])


DELIVERIES_FILE: JsonFile[_Groups] = JsonFile(_decode, _encode_all, (_FORMAT,))
