"""What clients of RocketMQ sent is in the record, whichever way it takes: kernel, plain codec, alone or with others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_records import TOPIC_NAMES, assert_scan_is_decode, encoded
from tests.support.stores.hot_stores import NOW_MS, STORE_HOST, STORE_HOST_V6, HotWorld, record, snapshot_of
from tierlog.tiering.base.types import Durability
from tierlog.tiering.checks.invariants import check_store
from tierlog.tiering.format.client_batch import BatchEntry, encode_client_batch
from tierlog.tiering.format.properties import decode_properties, text_as_stored
from tierlog.tiering.format.record import Record, RecordVersion, encode_record
from tierlog.tiering.message.client_messages import ClientMessages

V6_BITS = 0x30
I32 = st.integers(-(1 << 31), (1 << 31) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
BODIES = st.binary(min_size=1, max_size=90)
#: Pairs, whole or not, among them what a broker takes out.
PIECES = st.one_of(
    st.sampled_from(
        [b"KEYS\x01k1 k2", b"TAGS\x01TagA", b"WAIT\x01true", b"__RMQ.TRANSIENT.x\x01y", b"TL_PID\x01p", b""]
    ),
    st.binary(max_size=12),
)
TEXTS = st.lists(PIECES, max_size=5).map(b"\x02".join)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
#: No inner batch, which is refused.
SYS_FLAGS = I32.map(lambda bits: bits & ~0x80)


@dataclass(frozen=True)
class Sent:
    """One message as it came alone."""

    topic: str
    queue_id: int
    body: bytes
    text: bytes
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    prepared_offset: int

    def add_to(self, messages: ClientMessages) -> None:
        messages.add(
            self.topic, self.queue_id, self.body, self.text, flag=self.flag, sys_flag=self.sys_flag,
            born_ms=self.born_ms, born_host=self.born_host, reconsume_times=self.reconsume_times,
            prepared_offset=self.prepared_offset,
        )  # fmt: skip

    def record(self, **place: object) -> Record:
        """What it should become."""
        return record(
            version=RecordVersion.V2 if len(self.topic) > 127 else RecordVersion.V1, queue_id=self.queue_id,
            topic=self.topic, body=self.body, properties_text=text_as_stored(self.text), flag=self.flag,
            sys_flag=self.sys_flag, born_ms=self.born_ms, born_host=self.born_host,
            reconsume_times=self.reconsume_times, prepared_offset=self.prepared_offset, **place,
        )  # fmt: skip


SENT = st.builds(
    Sent, topic=st.sampled_from(TOPIC_NAMES), queue_id=st.integers(0, 1), body=BODIES, text=TEXTS, flag=I32,
    sys_flag=SYS_FLAGS, born_ms=I64, born_host=HOSTS, reconsume_times=I32, prepared_offset=I64,
)  # fmt: skip


def collected(sent: list[Sent]) -> ClientMessages:
    messages = ClientMessages(1000)
    for each in sent:
        each.add_to(messages)
    return messages


@settings(max_examples=150)
@given(st.lists(SENT, min_size=1, max_size=6), st.sampled_from([STORE_HOST, STORE_HOST_V6]), st.booleans())
def test_encode_kernel_is_encode_record_for_all_that_a_client_sends(
    sent: list[Sent], host: bytes, checksum: bool
) -> None:
    batch = collected(sent).to_batch(now_ms=NOW_MS, max_body_bytes=1000)
    physical = at = 4096 * 77
    data = encoded(batch, host, physical, checksum=checksum)
    wanted = b""
    for number, each in enumerate(sent):
        of_it = each.record(queue_offset=100 + number, physical_offset=at + len(wanted), store_host=host)
        wanted += encode_record(of_it, checksum=checksum)
    assert data == wanted
    assert len(data) == batch.record_sizes(8 + len(host), checksum=checksum).sum()
    assert_scan_is_decode(data, physical)


@settings(max_examples=100)
@given(SENT, st.sampled_from([STORE_HOST, STORE_HOST_V6]), st.booleans())
def test_a_lone_client_message_is_the_record_that_a_batch_of_one_is(sent: Sent, host: bytes, checksum: bool) -> None:
    messages = collected([sent])
    lone = messages.lone()
    assert lone is not None
    found = lone.encode(
        physical=4096, store_ms=NOW_MS, store_host=host, queue_id=sent.queue_id, queue_offset=100, checksum=checksum
    )
    assert found == encoded(messages.to_batch(now_ms=0, max_body_bytes=1000), host, 4096, checksum=checksum)
    assert len(found) == lone.record_size(8 + len(host), checksum=checksum)


@settings(max_examples=60)
@given(st.lists(SENT, max_size=8), st.booleans())
def test_appended_alone_or_together_the_log_and_its_queues_are_the_same(sent: list[Sent], checksum: bool) -> None:
    logs = []
    for alone in (True, False):
        world = HotWorld(segment_bytes=8192, record_checksum=checksum)
        hot = world.open()
        if alone:
            for each in sent:
                lone = collected([each]).lone()
                assert lone is not None
                hot.append(lone, Durability.ASYNC)
        elif sent:
            hot.append(collected(sent).to_batch(now_ms=0, max_body_bytes=1000), Durability.ASYNC)
        hot.dispatch()
        assert check_store(hot) == []
        hot.close()
        logs.append(snapshot_of(world.fs, world.root))
    assert logs[0] == logs[1]


@settings(max_examples=100)
@given(st.lists(st.one_of(SENT, st.lists(st.tuples(I32, BODIES, TEXTS), min_size=1, max_size=4)), max_size=5))
def test_batches_and_single_messages_stay_in_their_order(parts: list[Sent | list[tuple[int, bytes, bytes]]]) -> None:
    mixed, places, bodies = ClientMessages(1000), [], []
    for part in parts:
        if isinstance(part, Sent):
            places.append(len(mixed))
            part.add_to(mixed)
            bodies.append(part.body)
        else:
            batch = encode_client_batch(BatchEntry(*entry) for entry in part)
            places += mixed.add_batch("orders", 3, batch, born_ms=7, born_host=STORE_HOST)
            bodies += [body for _, body, _ in part]
    found = mixed.to_batch(now_ms=NOW_MS, max_body_bytes=1000)
    assert places == list(range(len(mixed))) == list(range(len(found)))
    assert [found.body.data[a:b].tobytes() for a, b in pairwise(found.body.starts)] == bodies
    assert found.record_sizes(16).min(initial=92) >= 92


@given(TEXTS)
def test_text_as_stored_says_what_the_client_said(text: bytes) -> None:
    stored = text_as_stored(text)
    kept = {
        name: value
        for name, value in decode_properties(text).items()
        if name not in ("WAIT", "TL_PID", "TL_SEQ", "__CRC32#") and not name.startswith("__RMQ.TRANSIENT.")
    }
    assert decode_properties(stored) == kept
    assert text_as_stored(stored) == stored
    assert not stored or stored.endswith(b"\x02")
