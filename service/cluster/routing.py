"""The store that a request is meant for, by which a node or a querier answers a request itself or sends it on.

New messages and new topics go to the home of the topic, calls of a consumer group to the home of the group, and all
other calls to the store that ``store_id`` names. A call that may make a group goes to the store that would be chosen as
its home: that store decides, once it knows that the caller has the right. Other calls of a group without a home are
answered here, as by a store that is alone and does not have the group.

A querier has no store of its own. If only a store can answer, it asks the one store that can be meant, and has the
caller choose where there are several. Any store can change the table of the cluster and keep a record of it, so a
querier leaves that to one.

Each route declares a :class:`StoreRule`. The rule, the names in the path and ``store_id`` are all that is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from tierlog.service.cluster.view import ClusterView
from tierlog.tiering.base.errors import InvalidRequestError, NotFoundError, UnavailableError
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.message.batch import validate_topic

STORE_ID = "store_id"

#: Maximum number of arguments, more than any call has; a query string with more is refused unread.
MOST_ARGUMENTS = 64


class TopicFinder(Protocol):
    """The topics that a querier knows. Thread safe."""

    def stores_with_topic(self, topic: str) -> Sequence[str]:
        """Ids of the stores that have a topic, as far as is known; none for an unknown topic. May ask archives."""
        ...


@dataclass(frozen=True, slots=True)
class StoreRule:
    """The rule by which the store of a call is found where ``store_id`` does not name one."""

    needs_store: bool = False
    """Only a store can answer: a querier has the caller choose where there are several."""
    is_about_topic: bool = False
    """The call is about the topic in its path, which says more about the store that can be meant."""
    is_about_group: bool = False
    """The call is about the group in its path, and goes to its home."""
    is_new: bool = False
    """It brings messages or makes a topic, which is for the home of the topic, or it may make a group."""
    changes_table: bool = False
    """It changes the table of the cluster, which any store can do, best another than the one in its path."""
    reads_archive: bool = False
    """A querier can answer it from the archive of a store that has no service."""
    is_message: bool = False
    """``store_id`` is an argument of the call itself, which a querier answers for whatever store is named."""


#: The process that is asked answers.
ANY_PROCESS = StoreRule()
TOPIC = StoreRule(is_about_topic=True)
#: The process that is asked answers; a querier also for a store that has an archive and no service.
ARCHIVE = StoreRule(reads_archive=True)
TOPIC_ARCHIVE = StoreRule(is_about_topic=True, reads_archive=True)
#: The process that is asked answers; a querier for whatever store is named.
MESSAGE = StoreRule(reads_archive=True, is_message=True)
#: A store answers, and no querier: it is about one store as it is now.
ONE_STORE = StoreRule(needs_store=True)
TOPIC_STORE = StoreRule(is_about_topic=True, needs_store=True)
#: The home of the topic takes new messages, or makes the topic.
TOPIC_HOME = StoreRule(is_about_topic=True, needs_store=True, is_new=True)
#: The home of the group answers.
GROUP = StoreRule(is_about_group=True, needs_store=True)
#: The home of the group answers; without one, the store that would be chosen makes the group.
NEW_GROUP = StoreRule(is_about_group=True, needs_store=True, is_new=True)
#: Any store answers, and no querier.
CLUSTER_TABLE = StoreRule(changes_table=True)


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """The parts of a request that say which store it is meant for."""

    rule: StoreRule
    store_id: str | None = None
    topic: str | None = None
    group: str | None = None
    #: The store in the path, of a call that changes the table.
    about_store: str | None = None


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """The store that answers a request, in the cluster or not; None if this process does."""

    store_id: str | None
    #: Whether it is the home of a group, and so the target of every such call from now on.
    is_home: bool = False


def routed_request(rule: StoreRule, names: Mapping[str, str], query: bytes) -> RoutedRequest:
    """Reads a request of ``/v1``, with the names in its path.

    Raises :class:`InvalidRequestError` if it names a store twice, or a topic or group badly.
    """
    store_id = _store_id(query)
    group = validate_group(names["group"]) if rule.is_about_group else None
    topic = names["topic"] if rule.is_about_topic else None
    if topic is not None and rule.is_new:
        validate_topic(topic)
    return RoutedRequest(rule, store_id, topic, group, names.get("store"))


def target_store(
    asked: RoutedRequest, cluster: ClusterView, topics: TopicFinder | None = None, *, shows_homes: bool = True
) -> RouteTarget:
    """Finds the store that answers a request. Without ``shows_homes`` no error says where a group is, or that it is.

    Waits for a bucket only for the home of a group, and where :func:`needs_remote_lookup` says so. Raises
    :class:`InvalidRequestError` if several stores may be meant, or another than the one that has the group, and
    :class:`UnavailableError` if it cannot be known now.
    """
    if asked.group is not None:
        return _of_group(asked, asked.group, cluster, shows_homes=shows_homes)
    return RouteTarget(_of_no_group(asked, cluster, topics))


def _of_group(asked: RoutedRequest, group: str, cluster: ClusterView, *, shows_homes: bool) -> RouteTarget:
    known = cluster.known_home_of_group(group)
    home = cluster.choice_for_group(group) if known is None and asked.rule.is_new else known
    if home is None:
        return RouteTarget(_without_home(asked, cluster))
    if asked.store_id not in (None, home):
        if not shows_homes and not asked.rule.is_new:
            raise NotFoundError(f"no such group {group!r}")
        kept = f"by store {home!r}" if shows_homes else "by another store"
        raise InvalidRequestError(
            f"group {group!r} is kept {kept}, not by {asked.store_id!r}",
            hint="leave store_id out: every node knows where a group is",
        )
    return RouteTarget(_other(home, cluster), is_home=known is not None)


def _without_home(asked: RoutedRequest, cluster: ClusterView) -> str | None:
    """Returns the store that says that there is no such group: the one asked, or the first one if a querier was
    asked."""
    if asked.store_id is not None:
        return _other(asked.store_id, cluster)
    if cluster.own_store is not None:
        return None
    places = cluster.stores()
    if not places:
        raise _nobody_known()
    return places[0].store_id


def _of_no_group(asked: RoutedRequest, cluster: ClusterView, topics: TopicFinder | None) -> str | None:
    if asked.store_id is not None:
        is_own_call = asked.rule.is_message or (asked.rule.reads_archive and not _has_service(asked.store_id, cluster))
        return None if is_own_call and cluster.own_store is None else _other(asked.store_id, cluster)
    if asked.rule.changes_table and cluster.own_store is None:
        return _any_store(cluster, without=asked.about_store)
    if asked.rule.is_new and asked.topic is not None:
        return _other(cluster.home_of_topic(asked.topic), cluster)
    if asked.rule.needs_store and cluster.own_store is None:
        return _only_store(asked, cluster, topics)
    return None


def needs_remote_lookup(asked: RoutedRequest, cluster: ClusterView) -> bool:
    """Whether :func:`target_store` may wait for a bucket, and so belongs on a thread."""
    if asked.group is not None:
        return True
    is_chosen = asked.store_id is not None or asked.rule.is_new or not asked.rule.needs_store
    return cluster.own_store is None and asked.topic is not None and not is_chosen


def _has_service(store_id: str, cluster: ClusterView) -> bool:
    try:
        cluster.place_of(store_id)
    except NotFoundError:
        return False
    return True


def _other(store_id: str, cluster: ClusterView) -> str | None:
    return None if store_id == cluster.own_store else store_id


def _any_store(cluster: ClusterView, *, without: str | None) -> str:
    """Returns the first store other than the one that the call is about, which may be down."""
    known = [place.store_id for place in cluster.stores()]
    if not known:
        raise _nobody_known()
    return next((store_id for store_id in known if store_id != without), known[0])


def _only_store(asked: RoutedRequest, cluster: ClusterView, topics: TopicFinder | None) -> str:
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
        given = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_ARGUMENTS)
    except ValueError:
        return None  # whoever answers it refuses it
    named = [value for name, value in given if name == STORE_ID]
    if len(named) > 1:
        raise InvalidRequestError(f"argument {STORE_ID!r} is given twice")
    return named[0] if named else None
