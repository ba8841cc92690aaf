"""The traits of a route: the lane that it runs in and the store that it is for, declared once, where it is defined.

The lane and the store of a request are needed before the request is routed. So a table of all declarations by method
and path is made of the routes of the application (:class:`RouteTable`). Which engine a route is handed and whether it
has ``store_id`` follow from its declaration too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from starlette.types import Scope

from tierlog.service.api.lanes import LaneChoice
from tierlog.service.cluster import routing
from tierlog.service.cluster.routing import StoreRule

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])
_ATTRIBUTE = "tierlog_traits"


@dataclass(frozen=True, slots=True)
class RouteTraits:
    """The declaration of one route."""

    lane: LaneChoice
    store: StoreRule | None
    """None if the route is for no store: the process that is asked answers, and there is no ``store_id``."""


def traits(*, lane: LaneChoice, store: StoreRule | None) -> Callable[[_Endpoint], _Endpoint]:
    """Declares the traits of a route; the decorator next to its function, below that of the router."""

    def declared(endpoint: _Endpoint) -> _Endpoint:
        setattr(endpoint, _ATTRIBUTE, RouteTraits(lane, store))
        return endpoint

    return declared


def traits_of(endpoint: Callable[..., Any]) -> RouteTraits:
    """Returns the traits that a function declares for its route; AssertionError if it declares none."""
    found = getattr(endpoint, _ATTRIBUTE, None)
    assert isinstance(found, RouteTraits), f"{endpoint} declares neither lane nor store: @traits is missing"
    return found


class FoundTraits(NamedTuple):
    """The traits of one request, and the names in its path."""

    traits: RouteTraits
    names: Mapping[str, str]


#: The traits of requests that no route takes, by method and path: they are refused where their store is, by the node
#: that would answer if there were such a route. That does not follow from the declarations: routes below one path
#: declare different stores by their methods, and most of these paths have no route. The first line that fits counts.
_UNROUTED = tuple(
    (re.compile(pattern, re.DOTALL), refused)
    for pattern, refused in (
        (r"\S+ /v1/groups/(?P<group>[^/]+)(?:/.*)?", RouteTraits(LaneChoice.READ, routing.GROUP)),
        (r"\S+ /v1/topics/(?P<topic>[^/]+)/queues/.*", RouteTraits(LaneChoice.READ, routing.TOPIC_STORE)),
        (r"\S+ /v1/topics/(?P<topic>[^/]+)(?:/.*)?", RouteTraits(LaneChoice.READ, routing.TOPIC)),
        (r"\S+ /v1/(?:groups|timeline)", RouteTraits(LaneChoice.READ, routing.ONE_STORE)),
        (r"\S+ /v1/messages/[^/]+", RouteTraits(LaneChoice.READ, routing.MESSAGE)),
        (r"\S+ /v1/admin/.*", RouteTraits(LaneChoice.ADMIN, routing.ONE_STORE)),
        ("PUT /v1/cluster/stores/(?P<store>[^/]+)", RouteTraits(LaneChoice.ADMIN, routing.CLUSTER_TABLE)),
        (r"\S+ /v1/.*", RouteTraits(LaneChoice.READ, routing.ANY_PROCESS)),
    )
)
_OUTSIDE = FoundTraits(RouteTraits(LaneChoice.ALWAYS, None), {})


@dataclass(slots=True)
class _Node:
    """A place in the tree of paths: what may follow, and the routes of the path that ends here."""

    parts: dict[str, _Node] = field(default_factory=dict)
    #: The name of the parameter that may follow, and its node.
    name: str = ""
    named: _Node | None = None
    routes: dict[str, RouteTraits] = field(default_factory=dict)

    def follow(self, part: str) -> _Node:
        """Returns the node of a further part of a path with parameters, made if it is not there."""
        if not part.startswith("{"):
            assert self.named is None, f"{part!r} and {{{self.name}}} may stand at one place"
            return self.parts.setdefault(part, _Node())
        name = part[1:-1]
        assert not self.parts, f"{{{name}}} and {next(iter(self.parts))!r} may stand at one place"
        if self.named is None:
            self.name, self.named = name, _Node()
        assert self.name == name, f"{{{name}}} and {{{self.name}}} stand at one place"
        return self.named


class RouteTable:
    """The traits of requests by method and path. A search looks into a dictionary for each part of the path."""

    def __init__(self, routes: Iterable[tuple[str, Iterable[str], RouteTraits]]) -> None:
        """Takes the path of each route, its methods and its traits."""
        self._root = _Node()
        for template, methods, declared in routes:
            if ":path}" in template:
                # several parts in one parameter: only where no route at all would have the same traits
                assert declared == _OUTSIDE.traits, f"{template} needs a place in the table"
                continue
            node = self._root
            for part in template.split("/"):
                node = node.follow(part)
            node.routes.update(dict.fromkeys(methods, declared))

    def find(self, method: str, path: str) -> FoundTraits:
        """Returns the traits of a request. HEAD has those of GET; a request that no route takes has some too."""
        if method == "HEAD":
            method = "GET"
        node, names = self._root, {}
        for part in path.split("/"):
            following = node.parts.get(part)
            if following is None:
                following = node.named
                if following is None or not part:
                    return _unrouted(method, path)
                names[node.name] = part
            node = following
        found = node.routes.get(method)
        return _unrouted(method, path) if found is None else FoundTraits(found, names)

    def of(self, scope: Scope) -> FoundTraits:
        """Returns the traits of a request, looked up once and kept in its scope."""
        found: FoundTraits | None = scope.get("tierlog.traits")
        if found is None:
            found = scope["tierlog.traits"] = self.find(scope["method"], scope["path"])
        return found


def _unrouted(method: str, path: str) -> FoundTraits:
    request = f"{method} {path}"
    for pattern, refused in _UNROUTED:
        if (found := pattern.fullmatch(request)) is not None:
            return FoundTraits(refused, found.groupdict())
    return _OUTSIDE
