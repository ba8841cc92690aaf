"""Topics that several stores have, told as one."""

from __future__ import annotations

from dataclasses import replace

from service.catalogue import QueueInfo, TopicInfo
from service.wire import Json
from tiering.errors import UnavailableError


def topics_of(document: Json, store_id: str) -> list[TopicInfo]:
    """The topics of a store's answer to ``GET /v1/topics``."""
    try:
        return [topic_of(topic, store_id) for topic in document["topics"]]
    except (KeyError, TypeError) as error:
        raise UnavailableError(f"store {store_id} answered with something else than topics") from error


def topic_of(document: Json, store_id: str) -> TopicInfo:
    """One topic as a store tells of it."""
    try:
        queues = [
            QueueInfo(
                one["queue_id"], one["min_offset"], one["max_offset"],
                None if one["gaps"] is None else [(first, following) for first, following in one["gaps"]], store_id,
            )
            for one in document["offsets"]
        ]  # fmt: skip
        return TopicInfo(
            document["topic"], document["topic_id"], queues, document["archive"], document["cold_retention_ms"],
            document["hold"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(f"store {store_id} answered with something else than a topic") from error


def merged(one: TopicInfo | None, other: TopicInfo) -> TopicInfo:
    """Both as one: the queues of both, and what holds for any part. Its id is the first store's.

    Of two retentions the longer is told, of which None, for ever, is the longest.
    """
    if one is None:
        return other
    kept = (one.cold_retention_ms, other.cold_retention_ms)
    return replace(
        one,
        queues=[*one.queues, *other.queues],
        archive=one.archive or other.archive,
        cold_retention_ms=None if None in kept else max(each for each in kept if each is not None),
        hold=one.hold or other.hold,
    )
