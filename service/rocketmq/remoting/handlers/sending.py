"""Messages that clients send, one by one or in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import count

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import (
    DEAD_LETTER_PREFIX,
    FIRST_RETRY_LEVEL,
    QUEUES_OF_GROUP,
    RETRY_PREFIX,
    dead_letter_topic,
    is_group_topic,
    properties_of_dead_letter,
    properties_of_retry,
    retry_topic,
)
from tierlog.service.delivery.timers import recall_handle, scheduled
from tierlog.service.delivery.transactions import half_message
from tierlog.service.engine.append_results import Appended
from tierlog.service.rocketmq.remoting.calls import (
    CallLane,
    OnLaneError,
    RemotingAnswer,
    RemotingCall,
    answer_of,
    handles,
    parse_number,
    refusal,
)
from tierlog.service.rocketmq.shared_sends import Sent
from tierlog.service.rocketmq.topics import (
    AUTO_CREATE_TOPIC,
    check_may_write,
)
from tierlog.tiering.base.errors import InvalidRequestError, StoreError, TopicNotFoundError
from tierlog.tiering.format.properties import NAME_END, UNIQ_KEY, VALUE_END
from tierlog.tiering.hot.consumer_groups import validate_group
from tierlog.tiering.message.batch import validate_topic
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode

#: What each answer to a send says beside its code, as RocketMQ's broker does.
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
#: The names that code 310 and 320 have for the fields of code 10, which are sent with every message.
_LONG = {
    "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag",
    "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "l": "maxReconsumeTimes",
    "m": "batch",
}  # fmt: skip
_SHORT = {name: name for name in _LONG}
#: What most numbers of a header are.
_SMALL = {str(number): number for number in range(64)}
#: The property of a message whose producer says later what became of it.
_PREPARED_NAME = "TRAN_MSG"
_PREPARED = f"{VALUE_END}{_PREPARED_NAME}{NAME_END}true{VALUE_END}"
_UNIQUE = UNIQ_KEY + NAME_END
_LATER_UNIQUE = VALUE_END + _UNIQUE
#: The next queue for a client that leaves the choice to the broker.
_turn = count()


@handles(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, lane=CallLane.LOOP)
def send(call: RemotingCall) -> RemotingAnswer | None:
    """Appends what was sent, and answers when it is flushed."""
    try:
        return _send(call)
    except InvalidRequestError as error:
        return _refused(error)
    except StoreError as error:
        answer = answer_of(error)
        answer.fields = REGION
        return answer


def _refused(error: InvalidRequestError) -> RemotingAnswer:
    """Answers a message that no broker would take, so that no client sends it to another."""
    found = answer_of(error)
    return RemotingAnswer(REGION, code=ResponseCode.MESSAGE_ILLEGAL, remark=found.remark)


def _send(call: RemotingCall) -> RemotingAnswer | None:
    fields, names = call.frame.fields, _LONG if call.code == RequestCode.SEND_MESSAGE else _SHORT
    topic = fields.get(names["b"])
    if topic is None:
        raise InvalidRequestError("a message without a topic")
    check_may_send(call, topic)
    reconsumed = _number(fields, names["j"], 0)
    if topic.startswith(RETRY_PREFIX):
        most = _number(fields, names["l"], call.broker.settings.rocketmq.max_attempts)
        if reconsumed > most:
            topic = DEAD_LETTER_PREFIX + topic.removeprefix(RETRY_PREFIX)
    queues = call.broker.store.find_queues(topic)
    if queues is None:
        queues = _made(call, topic, _number(fields, names["d"], 0), fields.get(names["c"], AUTO_CREATE_TOPIC))
    queue_id = _number(fields, names["e"], -1)
    if queue_id >= queues:
        return refusal(
            ResponseCode.INVALID_PARAMETER, f"request queueId[{queue_id}] is illegal: topic {topic} has {queues} queues"
        )
    text = fields.get(names["i"], "")
    is_batch = call.code == RequestCode.SEND_BATCH_MESSAGE or fields.get(names["m"], "") == "true"
    sent = Sent(
        topic=topic, queue_id=next(_turn) % queues if queue_id < 0 else queue_id, body=call.body,
        properties=None if is_batch else text.encode(), flag=_number(fields, names["h"], 0),
        sys_flag=_number(fields, names["f"], 0), born_ms=_number(fields, names["g"], None),
        born_host=call.connection.host, reconsume_times=reconsumed,
    )  # fmt: skip
    more = {"transactionId": unique_key(text)}
    if not is_batch and _PREPARED_NAME in text and _PREPARED in f"{VALUE_END}{text}{VALUE_END}":
        sent = _half(call, sent)
    elif not topic.startswith(DEAD_LETTER_PREFIX):
        sent, more = _delayed(call, sent, more)
    call.broker.sends.add(sent, partial(_answer, call, more))
    return None


def _half(call: RemotingCall, sent: Sent) -> Sent:
    """Returns a message as it waits for what its producer says of its transaction."""
    half = half_message(
        sent.topic,
        sent.queue_id,
        sent.properties or b"",
        call.broker.clock.now_ms(),
        sys_flag=sent.sys_flag,
        max_delay_ms=call.broker.settings.produce.max_delay_ms,
    )
    if call.broker.store.find_queues(half.topic) is None:
        if call.lane is CallLane.LOOP:
            raise OnLaneError(CallLane.APPEND)
        call.broker.store.make_topic(half.topic, 1, may_make=True)
    return sent._replace(
        topic=half.topic, queue_id=half.queue_id, properties=half.properties, sys_flag=half.sys_flag
    )  # fmt: skip


def _delayed(call: RemotingCall, sent: Sent, more: dict[str, str]) -> tuple[Sent, dict[str, str]]:
    """Returns the message as it waits for its time, and what its sender is told; as it is if it has none."""
    if sent.properties is None:
        return sent, more
    entry = scheduled(
        sent.topic, sent.queue_id, sent.properties, call.broker.clock.now_ms(),
        max_delay_ms=call.broker.settings.produce.max_delay_ms,
    )  # fmt: skip
    if entry is None:
        return sent, more
    if call.broker.store.find_queues(entry.topic) is None:
        if call.lane is CallLane.LOOP:
            raise OnLaneError(CallLane.APPEND)
        call.broker.store.make_topic(entry.topic, 1, may_make=True)
    handle = recall_handle(call.broker.store.store_id, entry)
    waiting = sent._replace(topic=entry.topic, queue_id=entry.queue_id, properties=entry.properties)
    return waiting, more if handle is None else {**more, "recallHandle": handle}


@handles(RequestCode.CONSUMER_SEND_MSG_BACK, lane=CallLane.APPEND)
def send_back(call: RemotingCall) -> RemotingAnswer | None:
    """Takes back a message that a consumer could not do: its group gets it again later, or it is a dead letter.

    It is another message of the group's own topic, so that it is delivered in whichever queue order is left; what is
    answered is durable.
    """
    group, offset = call.text("group"), call.number("offset")
    call.caller.check(Scope.READ)
    validate_group(group)
    store = call.broker.store
    found = store.message_at(offset)
    if found is None:
        return refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
    record = found.record
    level = call.number("delayLevel", 0)
    most = call.number("maxReconsumeTimes", call.broker.settings.rocketmq.max_attempts)
    is_dead = level < 0 or record.reconsume_times >= most
    topic = dead_letter_topic(group) if is_dead else retry_topic(group)
    if is_dead:
        text = properties_of_dead_letter(record)
    else:
        text = properties_of_retry(record, level or FIRST_RETRY_LEVEL + record.reconsume_times)
    store.make_topic(topic, QUEUES_OF_GROUP, may_make=True)
    sent = Sent(
        topic=topic, queue_id=0, body=record.body, properties=text, flag=record.flag, sys_flag=record.sys_flag,
        born_ms=record.born_ms, born_host=record.born_host, reconsume_times=record.reconsume_times + 1,
    )  # fmt: skip
    if not is_dead:
        sent, _ = _delayed(call, sent, {})
    call.broker.sends.add(sent, partial(_answer_back, call))
    return None


def _answer_back(call: RemotingCall, found: Sequence[Appended] | BaseException) -> None:
    call.reply(answer_of(found) if isinstance(found, BaseException) else RemotingAnswer())


def check_may_send(call: RemotingCall, topic: str) -> None:
    """Raises :class:`ForbiddenError` or :class:`InvalidRequestError` unless the caller may send to the topic."""
    if _is_of_group(topic):
        call.caller.check(Scope.READ)  # who consumes gives back what it could not do
    else:
        call.caller.check(Scope.PRODUCE, topic)


@lru_cache(maxsize=1024)
def _is_of_group(topic: str) -> bool:
    """Whether a topic that clients may write to is a group's own; errors, as for any other name, are not kept."""
    validate_topic(topic)
    check_may_write(topic)
    return is_group_topic(topic)


def _made(call: RemotingCall, topic: str, wanted: int, like: str) -> int:
    """Makes a topic that is not there, on another lane, and returns its number of queues."""
    store, settings = call.broker.store, call.broker.settings
    is_of_group = is_group_topic(topic)
    if not is_of_group and not (settings.create_topics and like == AUTO_CREATE_TOPIC):
        raise TopicNotFoundError(f"topic[{topic}] not exist, apply first please!")
    if call.lane is CallLane.LOOP:
        raise OnLaneError(CallLane.APPEND)
    most = settings.hot.default_queues
    made = QUEUES_OF_GROUP if is_of_group else min(max(1, wanted or most), most)
    store.make_topic(topic, made, may_make=True)
    return store.find_queues(topic) or made


def _answer(call: RemotingCall, more: Mapping[str, str], found: Sequence[Appended] | BaseException) -> None:
    if isinstance(found, InvalidRequestError):
        call.reply(_refused(found))
    elif isinstance(found, BaseException):
        answer = answer_of(found)
        answer.fields = REGION
        call.reply(answer)
    else:
        call.reply(sent_answer(found, more))


def sent_answer(found: Sequence[Appended], more: Mapping[str, str]) -> RemotingAnswer:
    """Answers where the messages of one send went, which is one queue, and ``more``."""
    first = found[0]
    ids = first.message_id if len(found) == 1 else ",".join([one.message_id for one in found])
    return RemotingAnswer(
        {
            "msgId": ids,
            "queueId": str(first.queue_id),
            "queueOffset": str(first.queue_offset),
            **more,
            **REGION,
        }
    )


def unique_key(properties: str) -> str:
    """Returns the client's own id of a message, out of its property text; empty if it has none."""
    at = 0 if properties.startswith(_UNIQUE) else properties.find(_LATER_UNIQUE) + 1
    if not at and not properties.startswith(_UNIQUE):
        return ""
    begin = at + len(_UNIQUE)
    end = properties.find(VALUE_END, begin)
    return properties[begin:] if end < 0 else properties[begin:end]


def _number(fields: Mapping[str, str], name: str, default: int | None) -> int:
    value = fields.get(name)
    if not value:
        if default is None:
            raise InvalidRequestError(f"the field {name} is missing")
        return default
    found = _SMALL.get(value)
    return parse_number(name, value) if found is None else found
