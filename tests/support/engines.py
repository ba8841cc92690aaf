"""Engines with sizes so small that every test crosses every border."""

from __future__ import annotations

from service.settings import Settings

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


def tiny_settings(**overrides: object) -> Settings:
    """Tiny sizes; overrides are named with ``__`` for the dot."""
    named = {name.replace("__", "."): value for name, value in overrides.items()}
    return Settings.load(overrides={**TINY, **named})
