"""The key index while its store is opened: a long log is derived, and nobody keeps the index's files beside it yet."""

from __future__ import annotations

from collections.abc import Callable

from tiering.hot.dispatch import LogRange, LogSubscriber


class Recovering:
    """Hands records on, and seals what they fill: an opening that is cut off has not to begin anew."""

    def __init__(self, subscriber: LogSubscriber, seal_full: Callable[[], object]) -> None:
        self._subscriber = subscriber
        self._seal_full: Callable[[], object] | None = seal_full

    def next_offset(self) -> int:
        """First physical offset not seen yet."""
        return self._subscriber.next_offset()

    def on_records(self, records: LogRange) -> None:
        """Index the records; until :meth:`end`, files that are full by then are durable when this returns."""
        self._subscriber.on_records(records)
        if self._seal_full is not None:
            self._seal_full()

    def end(self) -> None:
        """Wait for no file any more: the store is open, and they are sealed beside it."""
        self._seal_full = None
