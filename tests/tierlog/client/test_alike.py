"""Both clients have the same calls, and what they take by name is what the settings are."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import pytest

import tierlog.client
from tierlog.client import AsyncClient, AsyncConsumer, AsyncProducer, Client, Consumer, Consuming, Producer
from tierlog.client.consumer_settings import ConsumingChanges

_PAIRS = [(Client, AsyncClient), (Producer, AsyncProducer), (Consumer, AsyncConsumer)]


def _calls(kind: type) -> dict[str, list[tuple[str, object, object]]]:
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(found).parameters.values()]
        for name, found in vars(kind).items()
        if callable(found) and not name.startswith("_")
    }


@pytest.mark.parametrize(("one", "other"), _PAIRS)
def test_both_have_the_same_calls(one: type, other: type) -> None:
    ours, theirs = _calls(one), _calls(other)
    ours.pop("wait", None)  # with threads it takes a time; tasks have asyncio.timeout
    theirs.pop("wait", None)
    assert ours == theirs


def test_settings_are_what_a_consumer_takes_by_name() -> None:
    fields = typing.get_type_hints(Consuming)
    assert typing.get_type_hints(ConsumingChanges) == {
        one.name: fields[one.name] for one in dataclasses.fields(Consuming)
    }


def test_every_name_that_is_exported_is_there() -> None:
    assert [name for name in tierlog.client.__all__ if not hasattr(tierlog.client, name)] == []
    assert sorted(tierlog.client.__all__) == tierlog.client.__all__
