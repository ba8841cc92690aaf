"""Which store a request is meant for: the rule by which a node or a querier answers itself or sends it on.

New messages and new topics go to the topic's home, calls of a consumer group to the group's, and everything else to the
store that ``store_id`` names. A call that may make a group goes to the store that would be chosen for it: that one
decides, once it knows that the caller may. All others only look, and where there is no home they are answered here, as
by a store that is alone and does not have the group. A querier has no store of its own: of what only a store can answer
it asks the one store that can be meant, and has the caller choose where there are several. What changes the cluster's
table any store can do, and has it on record: a querier leaves it to one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from service.cluster.view import ClusterView
from tiering.batch import validate_topic
from tiering.errors import InvalidRequestError, NotFoundError, UnavailableError
from tiering.group_offsets import validate_group

STORE_ID = "store_id"

_TOPIC = re.compile("/v1/topics/([^/]+)(?:/(.*))?", re.DOTALL)
_GROUP = re.compile("/v1/groups/([^/]+)(?:/(.*))?", re.DOTALL)
_MAKES_GROUP = (("POST", "members"), ("PUT", "offsets"))
_READS = ("/v1/topics", "/v1/files", "/v1/stats")
_TABLE = re.compile("/v1/cluster/(?:topics/[^/]+|(?:closed|stores)/([^/]+))")
_MESSAGE = re.compile("/v1/messages/[^/]+")
#: As in :mod:`service.api.exact`.
_MOST_ARGUMENTS = 64
#: Of one store as it is now, and so nothing that a querier knows.
_OF_A_STORE = ("/v1/groups", "/v1/timeline")


class TopicFinder(Protocol):
    """What a querier knows of topics. Thread safe."""

    def stores_with_topic(self, topic: str) -> Sequence[str]:
        """Ids of the stores that have a topic, as far as it is known; none for an unknown one. May ask archives."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says about the store that it is meant for."""

    store_id: str | None = None
    topic: str | None = None
    group: str | None = None
    #: Whether it brings messages or makes a topic, which the topic's home does, or may make a group.
    is_new: bool = False
    #: Whether only a store can answer it.
    needs_store: bool = False
    #: The store that a change of the cluster's table is about, or "" for one about a topic; None for other calls.
    changes_table: str | None = None
    #: Whether ``store_id`` is an argument of the call itself, which a querier answers for whatever store is named.
    is_message: bool = False
    #: Whether a querier can answer it from the archive of a store that has no service.
    reads_archive: bool = False


@dataclass(frozen=True, slots=True)
class Meant:
    """The store that answers a request, known or not; None if this process does."""

    store_id: str | None
    #: Whether it is the home of a group, and so the answer of every such call from now on.
    is_home: bool = False


def asked_of(method: str, path: str, query: bytes) -> Asked:
    """Read a request of ``/v1``; :class:`InvalidRequestError` if it names a store twice, or a topic or group badly."""
    method = "GET" if method == "HEAD" else method
    store_id = _store_id(query)
    if (found := _GROUP.fullmatch(path)) is not None:
        return Asked(store_id, group=validate_group(found[1]), is_new=(method, found[2]) in _MAKES_GROUP)
    if (found := _TOPIC.fullmatch(path)) is not None:
        topic, rest = found[1], found[2]
        if (method, rest) in (("POST", "messages"), ("PUT", None)):
            return Asked(store_id, topic=validate_topic(topic), is_new=True)
        is_of_a_store = (method, rest) in (("DELETE", None), ("PUT", "hold"), ("GET", "hot"))
        needs_store = is_of_a_store or (rest or "").startswith("queues/")
        reads_archive = (method, rest) in (("GET", None), ("GET", "messages"))
        return Asked(store_id, topic=topic, needs_store=needs_store, reads_archive=reads_archive)
    if method in ("PUT", "DELETE") and (found := _TABLE.fullmatch(path)) is not None:
        return Asked(store_id, changes_table=found[1] or "")
    needs_store = path in _OF_A_STORE or path.startswith("/v1/admin/")
    is_message, reads_archive = _MESSAGE.fullmatch(path) is not None, method == "GET" and path in _READS
    return Asked(store_id, needs_store=needs_store, is_message=is_message, reads_archive=reads_archive or is_message)


def store_meant(
    asked: Asked, cluster: ClusterView, topics: TopicFinder | None = None, *, tells_homes: bool = True
) -> Meant:
    """The store that answers a request. Without ``tells_homes`` no error says where a group is, or that it is there.

    Waits for a bucket only for the home of a group, and where :func:`asks_elsewhere` says so. Raises
    :class:`InvalidRequestError` if several stores may be meant, or another than the one that has the group, and
    :class:`UnavailableError` if it cannot be known now.
    """
    if asked.group is not None:
        return _of_group(asked, asked.group, cluster, tells_homes=tells_homes)
    return Meant(_of_no_group(asked, cluster, topics))


def _of_group(asked: Asked, group: str, cluster: ClusterView, *, tells_homes: bool) -> Meant:
    known = cluster.known_home_of_group(group)
    home = cluster.choice_for_group(group) if known is None and asked.is_new else known
    if home is None:
        return Meant(_without_home(asked, cluster))
    if asked.store_id not in (None, home):
        if not tells_homes and not asked.is_new:
            raise NotFoundError(f"no such group {group!r}")
        kept = f"by store {home!r}" if tells_homes else "by another store"
        raise InvalidRequestError(
            f"group {group!r} is kept {kept}, not by {asked.store_id!r}",
            hint="leave store_id out: every node knows where a group is",
        )
    return Meant(_other(home, cluster), is_home=known is not None)


def _without_home(asked: Asked, cluster: ClusterView) -> str | None:
    """Any store says that it does not have the group; a querier, which cannot, has the first one say so."""
    if asked.store_id is not None:
        return _other(asked.store_id, cluster)
    if cluster.own_store is not None:
        return None
    places = cluster.stores()
    if not places:
        raise _nobody_known()
    return places[0].store_id


def _of_no_group(asked: Asked, cluster: ClusterView, topics: TopicFinder | None) -> str | None:
    if asked.store_id is not None:
        is_own_call = asked.is_message or (asked.reads_archive and not _has_service(asked.store_id, cluster))
        return None if is_own_call and cluster.own_store is None else _other(asked.store_id, cluster)
    if asked.changes_table is not None and cluster.own_store is None:
        return _any_store(cluster, without=asked.changes_table)
    if asked.is_new and asked.topic is not None:
        return _other(cluster.home_of_topic(asked.topic), cluster)
    if asked.needs_store and cluster.own_store is None:
        return _only_store(asked, cluster, topics)
    return None


def asks_elsewhere(asked: Asked, cluster: ClusterView) -> bool:
    """Whether :func:`store_meant` may wait for a bucket, and so belongs on a thread."""
    if asked.group is not None:
        return True
    is_chosen = asked.store_id is not None or asked.is_new or not asked.needs_store
    return cluster.own_store is None and asked.topic is not None and not is_chosen


def _has_service(store_id: str, cluster: ClusterView) -> bool:
    try:
        cluster.place_of(store_id)
    except NotFoundError:
        return False
    return True


def _other(store_id: str, cluster: ClusterView) -> str | None:
    return None if store_id == cluster.own_store else store_id


def _any_store(cluster: ClusterView, *, without: str) -> str:
    """The first one that is not itself what is spoken of, which may be down."""
    known = [place.store_id for place in cluster.stores()]
    if not known:
        raise _nobody_known()
    return next((store_id for store_id in known if store_id != without), known[0])


def _only_store(asked: Asked, cluster: ClusterView, topics: TopicFinder | None) -> str:
    known = [place.store_id for place in cluster.stores()]
    if len(known) == 1:
        return known[0]
    if not known:
        raise _nobody_known()
    if asked.topic is not None and topics is not None:
        having = sorted(topics.stores_with_topic(asked.topic))
        if len(having) == 1:
            return having[0]
        if having:
            raise InvalidRequestError(
                f"topic {asked.topic!r} is in several stores: {', '.join(having)}", hint="name one with store_id"
            )
    raise InvalidRequestError(
        f"only a store can answer this, and there are several: {', '.join(known)}", hint="name one with store_id"
    )


def _nobody_known() -> UnavailableError:
    return UnavailableError("no store is known yet", hint="is the cluster's table there, and the bucket?")


def _store_id(query: bytes) -> str | None:
    if b"store" not in query and b"%" not in query:
        return None
    try:
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_ARGUMENTS)
    except ValueError:
        return None  # whoever answers it refuses it
    named = [value for name, value in given if name == STORE_ID]
    if len(named) > 1:
        raise InvalidRequestError(f"argument {STORE_ID!r} is given twice")
    return named[0] if named else None
