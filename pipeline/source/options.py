"""The options of the data source ``tierlog``: one table, one parser, one error on the driver for whatever is wrong."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Any

from tierlog.tiering.base.errors import InvalidRequestError, StoreError
from tierlog.tiering.base.times import parse_time
from tierlog.tiering.base.types import Durability
from tierlog.tiering.message.batch import validate_topic_or_generation
from tierlog.tiering.objects.urls import canonical_url
from tierlog.tiering.remote.endpoint import ServiceAddress

#: What Spark itself hands to every source and sink, whatever the user wrote.
_OF_SPARK = frozenset({"checkpointlocation", "queryname", "outputmode"})
#: What it adds to them for ``CREATE TABLE``.
_OF_TABLE = frozenset({"owner", "provider"})
_A_VIEW = "CREATE TEMPORARY VIEW name USING tierlog OPTIONS (cold '…')"
_PATH = "path"
"""``load(path)``, ``save(path)`` and ``start(path)``: another way to say ``cold``."""

EARLIEST, LATEST = "earliest", "latest"


class SourceUse(Flag):
    """The use that a source is opened for."""

    READ = auto()
    READ_STREAM = auto()
    WRITE = auto()
    WRITE_STREAM = auto()


class View(StrEnum):
    """The view: what a row stands for."""

    MESSAGES = "messages"
    """A message."""
    KEYS = "keys"
    """A message and one of the keys that it is found by."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one read or write, checked."""

    cold: str | None = None
    """Canonical URL of the archive."""
    url: str | None = None
    """URL of a running service."""
    store: str | None = None
    """The one store that is meant; None: all that lie in the archive."""
    view: View = View.MESSAGES
    partition_bytes: int | None = None
    """What a task reads, about, before compression, at least a frame; None: see
    :func:`pipeline.read.partitions.plan_parts`.
    """
    start: str | int = EARLIEST
    """Where a stream begins: :data:`EARLIEST`, :data:`LATEST`, or a store time in ms."""
    max_messages_per_trigger: int | None = None
    topic: str | None = None
    """Of a write the topic of all rows, None: a column says it; of a read see :attr:`topics`."""
    keys: frozenset[str] | None = None
    """Messages that are found by one of them; in the view ``keys`` rows of these keys alone. None: all."""
    from_ms: int | None = None
    to_ms: int | None = None
    """Store times that are read, ``[from_ms, to_ms)``; None: no bound."""
    tags: frozenset[str] | None = None
    """Messages with one of these tags; None: all."""
    columns: tuple[str, ...] | None = None
    """The columns that there are, in this order; None: all of the view."""
    producer: str | None = None
    """The producer of rows for a service, so that the same write done again appends nothing twice; None: drawn."""
    durability: Durability = Durability.FLUSHED
    """When a service has to say that it has them."""
    segment_bytes: int | None = None
    """Size of the log segments of an archive that is written; None: as the service's."""
    index_slots: int | None = None
    """Hash slots of its index objects; None: as the service's."""
    index_items: int | None = None
    """Most items of one of its index objects; None: as the service's."""
    fail_on_data_loss: bool = True
    """Whether a stream ends with an error if messages are gone before it has read them."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics of a read, written with commas between, each with all its generations or, as ``name@1``, with one.

        None: all. :class:`InvalidRequestError` for no name.
        """
        names = self.topic.split(",") if self.topic is not None else ()
        return frozenset(validate_topic_or_generation(name.strip()) for name in names)

    @classmethod
    def parse(cls, given: Mapping[str, str], use: SourceUse) -> SourceOptions:
        """Names count without their case. Raises :class:`InvalidRequestError` for an unknown option, a malformed value,
        an option that says nothing for ``use``, and where neither ``cold`` nor ``url`` is given.
        """
        named = {name.lower(): value for name, value in given.items() if name.lower() not in _OF_SPARK}
        if named.keys() >= _OF_TABLE:
            raise InvalidRequestError(
                "a table of the catalogue cannot be read: Spark gives a source in Python none of its options",
                hint=f"use {_A_VIEW}",
            )
        path = named.pop(_PATH, None)
        if path is not None:
            if "cold" in named and canonical_url(named["cold"]) != canonical_url(path):
                raise InvalidRequestError("the path and option 'cold' name different archives", hint="give one of them")
            named["cold"] = path
        values: dict[str, Any] = {}
        for name, text in named.items():
            option = _OPTIONS.get(name)
            if option is None:
                raise _unknown(name, use)
            if not option.uses & use:
                raise InvalidRequestError(f"option {option.name!r} has no meaning here", hint=_for_use(use))
            try:
                values[option.field] = option.parse(text)
            except StoreError as error:
                raise InvalidRequestError(f"option {option.name!r}: {error.message}", hint=error.hint) from error
        options = cls(**values)
        if options.cold is None and options.url is None:
            raise InvalidRequestError(
                "neither an archive nor a service is named",
                hint="give option 'cold', 'url' or, to read, both"
                + ("" if given else f"; instead of a table {_A_VIEW}"),
            )
        if options.from_ms is not None and options.to_ms is not None and options.from_ms >= options.to_ms:
            raise InvalidRequestError(
                f"nothing lies between {named['from']} and {named['to']}", hint="'from' is inside, 'to' is behind"
            )
        return options


@dataclass(frozen=True, slots=True)
class _Option:
    """One row of the table."""

    name: str
    field: str
    parse: Callable[[str], object]
    uses: SourceUse


def _service_url(text: str) -> str:
    return str(ServiceAddress.parse(text))


def _view(text: str) -> View:
    try:
        return View(text.lower())
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no view", hint="messages or keys") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) < 1 << 63:
        raise InvalidRequestError(f"{text[:40]!r} is not a positive number")
    return int(text)


def _start(text: str) -> str | int:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return parse_time(text)
    except InvalidRequestError as error:
        raise InvalidRequestError(error.message, hint=f"{EARLIEST}, {LATEST}, or a store time: {error.hint}") from error


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidRequestError(f"{text[:40]!r} is neither true nor false")
    return text.lower() == "true"


def _durability(text: str) -> Durability:
    try:
        return Durability(text.lower())
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no durability", hint=", ".join(Durability)) from None


def _text(text: str) -> str:
    if not text:
        raise InvalidRequestError("it is empty")
    return text


def _texts(text: str) -> frozenset[str]:
    if not text.startswith("["):
        return frozenset([_text(text)])
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(each, str) and each for each in found):
        raise InvalidRequestError(f"{text[:40]!r} begins as a list", hint='several are a JSON array: ["a", "b"]')
    return frozenset(found)


def _names(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(","))
    if len(set(found)) < len(found):
        raise InvalidRequestError("a name is there twice")
    return found


_READS = SourceUse.READ | SourceUse.READ_STREAM
_WRITES = SourceUse.WRITE | SourceUse.WRITE_STREAM
_ALL = _READS | _WRITES

_OPTIONS = {
    option.name.lower(): option
    for option in (
        _Option("cold", "cold", canonical_url, _ALL),
        _Option("url", "url", _service_url, _ALL),
        _Option("store", "store", _text, _ALL),
        _Option("view", "view", _view, _READS),
        _Option("partition_bytes", "partition_bytes", _count, SourceUse.READ),
        _Option("start", "start", _start, SourceUse.READ_STREAM),
        _Option("maxMessagesPerTrigger", "max_messages_per_trigger", _count, SourceUse.READ_STREAM),
        _Option("topic", "topic", _text, _ALL),
        _Option("key", "keys", _texts, SourceUse.READ),
        _Option("from", "from_ms", parse_time, SourceUse.READ),
        _Option("to", "to_ms", parse_time, SourceUse.READ),
        _Option("tag", "tags", _texts, SourceUse.READ),
        _Option("columns", "columns", _names, _READS),
        _Option("producer", "producer", _text, SourceUse.WRITE),
        _Option("durability", "durability", _durability, _WRITES),
        _Option("segment_bytes", "segment_bytes", _count, SourceUse.WRITE),
        _Option("index_slots", "index_slots", _count, SourceUse.WRITE),
        _Option("index_items", "index_items", _count, SourceUse.WRITE),
        _Option("failOnDataLoss", "fail_on_data_loss", _flag, SourceUse.READ_STREAM),
    )
}


def option_names(use: SourceUse) -> list[str]:
    """Returns the options that mean something for a use, in the order of the table."""
    return [option.name for option in _OPTIONS.values() if option.uses & use]


def _unknown(name: str, use: SourceUse) -> InvalidRequestError:
    near = difflib.get_close_matches(name, list(_OPTIONS), 1)
    suggestion = f"do you mean {_OPTIONS[near[0]].name!r}? " if near else ""
    return InvalidRequestError(f"there is no option {name[:60]!r}", hint=suggestion + _for_use(use))


def _for_use(use: SourceUse) -> str:
    return "there are " + ", ".join(option_names(use))
