"""Generations: what became of a topic that was deleted and made again while its old messages were still in the log.

A RocketMQ broker's log holds both, under one name, and the queues of the second begin again at 0. Each generation has
an entry of its own wherever topics are kept: its own id, queues and options. The entry of the first has the topic's
name; that of a later one has the name and the physical offset at which it begins, ``orders@1073741824``. So an entry's
name alone says which records are its own: those of the topic from there on, up to where the next one begins. Nothing
renames an entry, and whoever reads the same log again gives the same names.

People number them: ``orders@1`` is the oldest, ``orders`` alone the current one. No topic name has an ``@``. For who
remembers where it was, a name must mean the same for ever: ``orders`` the oldest, ``orders@2`` the second
(:func:`lasting_name`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

_MARK = "@"
#: Above every physical offset.
_NO_END = (1 << 63) - 1


class NamedTopic(Protocol):
    """An entry of a topic, wherever it is kept."""

    @property
    def topic_id(self) -> int:
        """Its id."""
        ...

    @property
    def name(self) -> str:
        """The name of the entry."""
        ...


T = TypeVar("T", bound=NamedTopic)


class Generation(NamedTuple):
    """One generation of a topic: the records of that topic in the physical range ``[begin, end)``."""

    topic_id: int
    name: str
    begin: int
    end: int


def entry_name(topic: str, begin: int) -> str:
    """Returns the name of the entry of a generation that begins at a physical offset."""
    return f"{topic}{_MARK}{begin}"


def is_numbered(name: str) -> bool:
    """Whether a name says which generation it is."""
    topic, mark, number = name.rpartition(_MARK)
    return bool(topic and mark) and number.isascii() and number.isdigit()


def record_topic(name: str) -> str:
    """Returns the topic that the records of an entry have; also of what people call a generation."""
    return name.rpartition(_MARK)[0] if is_numbered(name) else name


def begin_of(name: str) -> int:
    """Returns the physical offset at which an entry begins, 0 for the first of its topic."""
    return int(name.rpartition(_MARK)[2]) if is_numbered(name) else 0


def generations_of(topics: Iterable[T], topic: str) -> list[T]:
    """Returns the entries of a topic, oldest first."""
    return sorted((each for each in topics if record_topic(each.name) == topic), key=lambda each: begin_of(each.name))


def chosen(generations: Sequence[T], wanted: str) -> list[T]:
    """Returns those that people mean by a name, of all entries of its topic, oldest first.

    By the topic's name alone all of them, the current one last; by a number one, or none.
    """
    if not is_numbered(wanted):
        return list(generations)
    number = int(wanted.rpartition(_MARK)[2])
    return [generations[number - 1]] if 1 <= number <= len(generations) else []


def ranges_of(topics: Iterable[T], wanted: str) -> tuple[Generation, ...]:
    """Returns what a name stands for in the log, oldest first; nothing if there is no such topic."""
    found = generations_of(topics, record_topic(wanted))
    begins = [begin_of(each.name) for each in found]
    ends = {each.name: end for each, end in zip(found, [*begins[1:], _NO_END], strict=False)}
    return tuple(
        Generation(each.topic_id, each.name, begin_of(each.name), ends[each.name]) for each in chosen(found, wanted)
    )


def shown_name(generations: Sequence[T], name: str) -> str:
    """Returns what people call an entry, of all entries of its topic, oldest first."""
    if generations[-1].name == name:
        return record_topic(name)
    return f"{record_topic(name)}{_MARK}{number_of(generations, name)}"


def number_of(generations: Sequence[T], name: str) -> int | None:
    """Returns the number of an entry, of all entries of its topic, oldest first; None if it is the only one."""
    numbers = {each.name: number for number, each in enumerate(generations, 1)}
    return numbers[name] if len(numbers) > 1 else None


def lasting_name(topic: str, number: int | None) -> str:
    """Returns a name of a generation that never comes to mean another one; None: the only one there is."""
    return f"{topic}{_MARK}{number}" if number is not None and number > 1 else topic


def asked_name(lasting: str) -> str:
    """Returns the name by which people ask for what a lasting name means."""
    return lasting if is_numbered(lasting) else f"{lasting}{_MARK}1"


def is_wanted(lasting: str, names: Collection[str]) -> bool:
    """Whether a generation is meant by any of the names that people give, none meaning all."""
    return not names or record_topic(lasting) in names or asked_name(lasting) in names


class ByGeneration:
    """Numbers by entry, as one asks for the record of a topic at a physical offset.

    A generation without a number has that of the one before: rules are for all generations of a topic.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._by_topic: dict[str, list[tuple[int, int]]] = {}
        for name, number in numbers.items():
            self._by_topic.setdefault(record_topic(name), []).append((begin_of(name), number))

    def of(self, topic: str, offset: int, default: int) -> int:
        """Returns the number for a record."""
        mine = [each for each in self._by_topic.get(topic, ()) if each[0] <= offset]
        return max(mine)[1] if mine else default
