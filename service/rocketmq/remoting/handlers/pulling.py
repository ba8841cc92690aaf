"""Messages that consumers pull: records as they lie in the log, from where the system sends them."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from tierlog.service.access.caller import Scope
from tierlog.service.delivery.group_topics import is_group_topic
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, ReadCall, RemotingAnswer, handles, refusal
from tierlog.service.rocketmq.remoting.handlers.routes import MASTER_ID
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.types import PullStatus
from tierlog.tiering.message.tags import TagFilter
from tierlog.tiering.read.pull_records import PulledRecords
from tierlog.tiering.rocketmq.codes import PullFlag, RequestCode, ResponseCode

#: The longest that a pull waits for messages.
MOST_WAIT_MS = 30_000
#: Bytes and messages of one answer.
MOST_BYTES, _MOST_MESSAGES = 4 << 20, 10_000
#: Below it records are copied, which costs less than to keep the log pinned until they are sent.
_COPIED_BYTES = 32 << 10
_TAG = "TAG"
#: What is filtered by, here: nothing said is tags.
_KINDS = (_TAG, "")
_CODES = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_NEW_MESSAGE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_LARGE: ResponseCode.PULL_OFFSET_MOVED,
}
_MASTER = str(MASTER_ID)


@handles(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, lane=CallLane.READ)
def pull(call: ReadCall) -> RemotingAnswer | None:
    """Answers with records from an offset on; where there are none, and the client likes to wait, when some come."""
    if call.connection.is_behind:
        call.again_when_caught_up()
        return None
    group, topic, queue_id = call.text("consumerGroup"), call.text("topic"), call.number("queueId")
    check_may_read(call, topic)
    flags = call.number("sysFlag", 0)
    hashes = _tag_hashes(call, group, topic, flags)
    if isinstance(hashes, RemotingAnswer):
        return hashes
    limit = call.number("maxMsgNums")
    if limit < 1:
        raise InvalidRequestError(f"maxMsgNums is {limit}")
    if flags & PullFlag.COMMIT_OFFSET and call.until_s is None:
        committed = call.number("commitOffset", -1)
        if committed >= 0:
            call.broker.offsets.note(group, topic, queue_id, committed)
    offset = call.number("queueOffset")
    most_bytes = min(max(1, call.number("maxMsgBytes", MOST_BYTES)), MOST_BYTES)
    with ExitStack() as opened:
        found = opened.enter_context(
            call.broker.store.pull_records(
                topic, queue_id, offset, min(limit, _MOST_MESSAGES), max_bytes=most_bytes, tag_hashes=hashes
            )
        )
        if found.status is PullStatus.NO_NEW_MESSAGE and flags & PullFlag.SUSPEND:
            wait_ms = min(call.number("suspendTimeoutMillis", 0), MOST_WAIT_MS)
            watch = partial(call.broker.store.watch, topic, queue_id, offset)
            if call.waits(watch, wait_ms):
                return None
        return _answer(found, opened)
    raise AssertionError  # nothing in it suppresses an error


def check_may_read(call: AnyCall, topic: str) -> None:
    """Raises :class:`ForbiddenError` unless the caller may read the topic; of a group's own, it may if any."""
    call.caller.check(Scope.READ, None if is_group_topic(topic) else topic)


def _tag_hashes(call: ReadCall, group: str, topic: str, flags: int) -> frozenset[int] | RemotingAnswer | None:
    """Returns the hashes of the tags that are wanted, None for all; or what to answer instead."""
    if flags & PullFlag.SUBSCRIPTION:
        expression, kind = call.text("subscription", "*"), call.text("expressionType", _TAG)
    else:
        known = call.broker.clients.subscription(group, topic)
        if known is None:
            return refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if known.version < call.number("subVersion", 0):
            return _unfiltered(call)
        expression, kind = known.expression, known.kind
    if kind not in _KINDS:
        return refusal(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind[:100]}"
        )
    wanted = TagFilter.parse(expression)
    return None if wanted is None else wanted.hashes


def _unfiltered(call: ReadCall) -> RemotingAnswer | None:
    """Lets a client have everything whose newest subscription is not known, or refuses what is no filter by tags.

    Java's clients give their subscription a new version with each change of their queues. The heartbeat that says so is
    left out if another one is being sent just then, and the next comes half a minute later. A refusal, which is what
    RocketMQ answers, lets the client stand still for so long. What comes unfiltered is right: every client looks at the
    tags itself, as a broker looks at their hashes only.
    """
    if call.text("expressionType", _TAG) not in _KINDS:
        return refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return None


def _answer(found: PulledRecords, opened: ExitStack) -> RemotingAnswer:
    fields = {
        "suggestWhichBrokerId": _MASTER,
        "nextBeginOffset": str(found.next_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
    }
    code = _CODES[found.status]
    if found.status is not PullStatus.FOUND:
        return RemotingAnswer(fields, code=code, remark=found.status.value)
    if found.bytes < _COPIED_BYTES:
        return RemotingAnswer(fields, b"".join(found.parts))
    return RemotingAnswer(fields, found.parts, release=opened.pop_all().close)
