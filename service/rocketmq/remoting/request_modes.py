"""Whether the consumers of a group pull or pop a topic, where they leave that to the broker.

What tools set is kept in the log, as messages of a topic of its own, the last one of a topic and group counts::

    {"format": 1, "topic": "orders", "group": "billing", "mode": "pop"}

So it survives whatever the log survives, a restore and a failover too. *Killed before the append*: nothing was set.
*After it*: it was, whether or not anybody was told.
"""

from __future__ import annotations

import json
import logging
import threading
from enum import StrEnum

from tierlog.service.delivery.copies import NO_HOST, messages_from
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import Clock
from tierlog.tiering.base.errors import TopicNotFoundError
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.message.batch import validate_topic

#: Its only queue is 0.
MODE_TOPIC = "rmq_sys_tierlog_modes"
_FORMAT = 1
_LOG = logging.getLogger("tierlog")


class RequestMode(StrEnum):
    """How a consumer gets messages."""

    PULL = "pull"
    """Each queue is one consumer's."""
    POP = "pop"
    """Each message is one consumer's."""


class RequestModes:
    """The modes of one store. Thread safe; the first question reads the topic, and may wait for the archive."""

    def __init__(self, store: Store, clock: Clock, default: RequestMode) -> None:
        self._store = store
        self._clock = clock
        self._default = default
        self._lock = threading.Lock()
        self._modes: dict[tuple[str, str], RequestMode] | None = None

    def of(self, topic: str, group: str) -> RequestMode:
        """Returns the mode of a group for a topic."""
        with self._lock:
            return self._load().get((topic, group), self._default)

    def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Sets it, durably."""
        document = {"format": _FORMAT, "topic": validate_topic(topic), "group": validate_group(group), "mode": mode}
        with self._lock:
            known = self._load()
            self._store.make_topic(MODE_TOPIC, 1, may_make=True)
            messages = self._store.client_messages()
            body = json.dumps(document).encode()
            messages.add(MODE_TOPIC, 0, body, b"", born_ms=self._clock.now_ms(), born_host=NO_HOST)
            self._store.append(messages)
            known[topic, group] = mode

    def _load(self) -> dict[tuple[str, str], RequestMode]:
        if self._modes is None:
            found: dict[tuple[str, str], RequestMode] = {}
            try:
                for message in messages_from(self._store, MODE_TOPIC, 0, 0):
                    found |= _decode(message.record.body)
            except TopicNotFoundError:
                found = {}
            self._modes = found
        return self._modes


def _decode(body: bytes) -> dict[tuple[str, str], RequestMode]:
    """Reads one mode; nothing from what a later version, or nobody, wrote."""
    try:
        document = json.loads(body)
        if document["format"] != _FORMAT:
            return {}
        return {(document["topic"], document["group"]): RequestMode(document["mode"])}
    except (ValueError, LookupError, TypeError) as error:
        _LOG.warning("a message of %s is passed over: %s", MODE_TOPIC, error)
        return {}
