"""A store with its delayed messages: what is sent with a delay, what arrives, and all that may happen in between."""

from __future__ import annotations

from tests.support.stores.engines import tiny_settings
from tests.support.world import World
from tierlog.service.config.settings import Settings
from tierlog.service.delivery.copies import messages_from
from tierlog.service.delivery.timers import Scheduled, Timers, recall_handle, scheduled
from tierlog.service.engine.store import Store
from tierlog.tiering.base.randomness import SeededRandomness
from tierlog.tiering.format.properties import UNIQ_KEY, encode_properties
from tierlog.tiering.message.client_messages import ClientMessages
from tierlog.tiering.message.stored_message import StoredMessage

TOPIC = "orders"
BORN_HOST = bytes((10, 1, 2, 3)) + (54321).to_bytes(4)


class DelayWorld(World):
    """A store whose delayed messages fire when the test says so."""

    timers: Timers
    """Of what was opened last."""

    def __init__(
        self, *, settings: Settings | None = None, url: str | None = "memory://archive", seed: int = 0
    ) -> None:
        super().__init__(settings=settings or tiny_settings(hot__default_queues=2), url=url, seed=seed)
        self.open()

    def open(self, volume: str | None = None, **options: object) -> Store:
        engine = super().open(volume, **options)  # type: ignore[arg-type]
        self.timers = Timers(engine, self.clock, SeededRandomness(self.seed))
        engine.keep_log(self.timers.keep)
        return engine

    def restore(self, volume: str) -> Store:
        """Make a new volume from the archive alone; the old one is fenced."""
        return self.open(volume, restore=True)

    def send(
        self, body: str, delay_ms: int | None = None, *, topic: str = TOPIC, queue_id: int = 0,
        properties: dict[str, str] | None = None,
    ) -> Scheduled | None:  # fmt: skip
        """Send as a client of RocketMQ does, with its body as the unique key."""
        asked = {} if delay_ms is None else {"TIMER_DELAY_MS": str(delay_ms)}
        text = encode_properties({UNIQ_KEY: body, "KEYS": f"key-{body}", **asked, **(properties or {})})
        entry = scheduled(topic, queue_id, text, self.clock.now_ms())
        messages = ClientMessages(1 << 20)
        target = (topic, queue_id, text) if entry is None else entry[:3]
        messages.add(
            target[0], target[1], body.encode(), target[2], flag=7, born_ms=self.clock.now_ms() - 5,
            born_host=BORN_HOST,
        )  # fmt: skip
        self.engine.append(messages)
        return entry

    def recall(self, entry: Scheduled, topic: str = TOPIC) -> str:
        """Call a delayed message back."""
        handle = recall_handle(self.engine.store_id, entry)
        assert handle is not None
        return self.timers.recall(topic, handle)

    def pass_time(self, ms: int) -> int:
        """Move the clock and fire what is due."""
        self.clock.advance(ms)
        return self.timers.run_once()

    def arrived(self, topic: str = TOPIC) -> list[StoredMessage]:
        """All messages of a topic, queue by queue, as far as any queue has them."""
        found: list[StoredMessage] = []
        if any(one.name == topic for one in self.engine.topics()):
            for queue_id in range(self.engine.queues_of(topic)):
                found += messages_from(self.engine, topic, queue_id, 0)
        return found

    def bodies(self, topic: str = TOPIC) -> list[str]:
        """The bodies of what arrived, sorted."""
        return sorted(message.record.body.decode() for message in self.arrived(topic))
