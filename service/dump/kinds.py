"""The kinds that ``tierlog dump`` can show, and by what each is known. Light: the command's help is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Kind to how a file or object of it is recognised.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "commit-log": "the magic of a record at byte 4, or a 20-digit name in commitlog/",
        "tiered-log": "a name of 8 hex and 20 decimal digits in COMMIT_LOG/ (RocketMQ's tiered store)",
        "consume-queue": "a 20-digit name in a folder named by a number, the queue id",
        "tiered-queue": "a name of 8 hex and 20 decimal digits in CONSUME_QUEUE/",
        "index-classic": "a name of 17 digits, a local time",
        "index-chained": "the magic of an index file, and its trailer or its length",
        "index-compacted": "the same",
        "index-object": "the magic of its tail or of its first section",
        "sorted-segment": "the closing seek table of seekable zstd, or a zstd frame in a .zst file",
        "manifest-head": "the magic of its section",
        "manifest-page": "the magic of its section",
        "queue-rows": "the magic of its section",
        "state": "the magic of its section",
        "tail": "the magic of its section",
        "removed-names": "the magic of its section",
        "queue-gaps": "the magic of its section",
        "cached-range": "its magic",
        "checkpoint": "its name",
        "abort": "its name",
        "lock": "its name",
        "json": "a name in .json or .json.bak, or text that begins with { or [",
    }
)

#: What of a kind may be shown as rows; the first unless told.
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sorted-segment": ("directory", "frames", "map", "records"),
        "index-object": ("items", "pages"),
    }
)
