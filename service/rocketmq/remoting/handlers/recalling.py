"""Delayed messages that their senders call back."""

from __future__ import annotations

from tierlog.service.access.caller import Scope
from tierlog.service.rocketmq.remoting.calls import CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode


@handles(RequestCode.RECALL_MESSAGE, lane=CallLane.APPEND)
def recall(call: RemotingCall) -> RemotingAnswer:
    """Calls a message back by the handle that its sender was answered with; answers with the client's own id of it."""
    topic = call.text("topic")
    call.caller.check(Scope.PRODUCE, topic)
    try:
        return RemotingAnswer({"msgId": call.broker.timers.recall(topic, call.text("recallHandle"))})
    except InvalidRequestError as error:
        return refusal(ResponseCode.ILLEGAL_OPERATION, error.message)
