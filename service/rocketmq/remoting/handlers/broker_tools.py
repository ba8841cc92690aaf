"""What tools ask about the broker as a whole."""

from __future__ import annotations

from tierlog.service.access.caller import Scope
from tierlog.service.rocketmq.remoting.calls import AnyCall, CallLane, RemotingAnswer, RemotingCall, handles, refusal
from tierlog.tiering.rocketmq.codes import RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import PROTOCOL_VERSION

#: The version of RocketMQ whose protocol this is, as tools show it.
VERSION_NAME = "V5_4_0"


@handles(RequestCode.GET_BROKER_RUNTIME_INFO, lane=CallLane.READ)
def runtime_info(call: RemotingCall) -> RemotingAnswer:
    """Answers with the store's numbers, under RocketMQ's names where it has the same.

    Rates are left out, which tools show as 0: the service's metrics have them.
    """
    call.caller.check(Scope.READ)
    stats = call.broker.store.stats()
    free, total = int(str(stats["disk_free_bytes"])), int(str(stats["disk_total_bytes"]))
    own = {
        "brokerActive": True,
        "brokerVersion": PROTOCOL_VERSION,
        "brokerVersionDesc": VERSION_NAME,
        "commitLogDirCapacity": f"Total : {total} B, Free : {free} B.",
        "commitLogDiskRatio": round(1 - free / total, 4) if total else 0,
        "commitLogMaxOffset": stats["log_end"],
        "commitLogMinOffset": stats["log_begin"],
        "dispatchBehindBytes": stats["dispatch_lag_bytes"],
        "msgPutTotalTodayNow": stats["appended_messages"],
        "remainHowManyDataToFlush": f"{stats['unflushed_bytes']} B",
        "runtime": "tierlog",
    }
    table = {name: _text(value) for name, value in own.items()}
    table |= {f"tierlog.{name}": _text(value) for name, value in stats.items() if isinstance(value, int | str)}
    if not call.caller.is_unlimited:
        table.pop("tierlog.cold_url", None)
    return RemotingAnswer.of_json({"table": dict(sorted(table.items()))})


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@handles(RequestCode.VIEW_BROKER_STATS_DATA, lane=CallLane.LOOP)
def stats_of(call: AnyCall) -> RemotingAnswer:
    """Says that there are no rates by topic or group, in the form in which tools take it for none yet."""
    name, key = call.text("statsName")[:100], call.text("statsKey")[:300]
    return refusal(ResponseCode.SYSTEM_ERROR, f"the stats <{name}> <{key}> do not exist")


@handles(RequestCode.GET_KV_CONFIG, RequestCode.GET_KVLIST_BY_NAMESPACE, lane=CallLane.LOOP)
def key_values(call: RemotingCall) -> RemotingAnswer:
    """Says that a nameserver's key-value pairs are not there: there are none."""
    return refusal(ResponseCode.QUERY_NOT_FOUND, f"no key-value pairs of {call.text('namespace')[:300]!r}")


@handles(RequestCode.DELETE_KV_CONFIG, lane=CallLane.LOOP)
def delete_key_value(call: RemotingCall) -> RemotingAnswer:
    """Says that a pair is not there any more; tools that delete a topic ask for it."""
    return RemotingAnswer()
