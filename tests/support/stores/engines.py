"""Engines with sizes so small that every test crosses every border."""

from __future__ import annotations

from tierlog.service.config.settings import ColdSettings, Settings

TINY: dict[str, object] = {
    "hot.segment_bytes": 65_536,
    "hot.queue_file_units": 60,
    "hot.default_queues": 4,
    "index.slots": 100,
    "index.items": 400,
    "cold.max_inline_entries": 6,
    "cold.page_entries": 4,
    "cold.frame_bytes": 4096,
    "cold.disk_cache_bytes": 0,
    "advertise": "127.0.0.1:10911",
}

#: Queues and manifest pages that a hundred messages fill, and one request at a time.
SMALL: dict[str, object] = {
    "hot.segment_bytes": 4096,
    "hot.default_queues": 2,
    "index.slots": 25,
    "index.items": 90,
    "cold.max_inline_entries": 4,
    "cold.page_entries": 3,
    "cold.disk_cache_bytes": ColdSettings().disk_cache_bytes,
    "query.concurrency": 1,
    "advertise": "10.0.0.1:7777",
}


def tiny_settings(**overrides: object) -> Settings:
    """Tiny sizes; overrides are named with ``__`` for the dot."""
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return Settings.load(overrides={**TINY, **named})


def small_settings(**overrides: object) -> Settings:
    """Still smaller sizes; overrides as of :func:`tiny_settings`."""
    return tiny_settings(**{name.replace(".", "__"): value for name, value in SMALL.items()} | overrides)
