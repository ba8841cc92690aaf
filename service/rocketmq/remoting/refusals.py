"""Requests of RocketMQ that are not answered, and why; docs/rocketmq_clients.md has the same for its readers."""

from __future__ import annotations

from collections.abc import Mapping

_SETTINGS = "settings are the service's own (tierlog config), and no client changes them"
_KEY_VALUES = "a nameserver's key-value pairs, and with them order across topics' brokers, are not kept"
_BROKERS = "this is one broker and its own nameserver, which no other broker registers with or copies from"
_USERS = "users and their rights are entries of the tokens file"
_FILES = "files of the log are kept and removed by the service's own rules"
_REQUEST_REPLY = "request and reply between clients is not supported"
_FILTERS = "filtering by expressions of SQL92 or by classes is not supported: subscribe by tags"
_UNITS = "units of topics are not supported"
_STATIC = "static topics, whose queues are spread over brokers, are not supported"
_LISTS = "make and change topics and groups one by one"
_WAITING = "how many requests wait is in the service's metrics"
_NAMES = "code 206 lists topics"
_TRANSFER = "offsets are not copied between groups, and no trace is kept of who consumed a message when"
_DUMPS = "what lies in a queue is told by `tierlog` itself (tierlog dump, tierlog check)"
_SLAVES = "copies of a store are kept by its archive, not by other brokers"

#: By code; whole ranges, the end included, for what belongs together.
REFUSED: Mapping[range | int, str] = {
    18: _LISTS,
    225: _LISTS,
    23: _NAMES,
    200055: _WAITING,
    303: _TRANSFER,
    314: _TRANSFER,
    317: _TRANSFER,
    321: _DUMPS,
    25: _SETTINGS,
    26: _SETTINGS,
    318: _SETTINGS,
    319: _SETTINGS,
    27: _FILES,
    306: _FILES,
    316: _FILES,
    329: _FILES,
    43: _BROKERS,
    45: _BROKERS,
    103: _BROKERS,
    104: _BROKERS,
    205: _BROKERS,
    327: _BROKERS,
    range(901, 909): _SLAVES,
    range(1001, 1014): _SLAVES,
    100: _KEY_VALUES,
    301: _FILTERS,
    302: _FILTERS,
    range(311, 314): _UNITS,
    range(324, 327): _REQUEST_REPLY,
    513: _STATIC,
    range(3001, 3011): _USERS,
}


def refused_codes() -> set[int]:
    """Returns every code that is refused with a reason."""
    return {code for codes in REFUSED for code in (codes if isinstance(codes, range) else (codes,))}


def why_refused(code: int) -> str:
    """Returns what whoever asked is told."""
    for codes, why in REFUSED.items():
        if code == codes or (isinstance(codes, range) and code in codes):
            return f"request type {code} not supported: {why}"
    return f"request type {code} not supported"
