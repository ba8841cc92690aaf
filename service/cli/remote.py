"""A running service as the target of a command.

No retries, because a repeated append would append twice; and a connection for each request, because one that the
service closed for being idle cannot be told from one that it closed while it was appending.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import tierlog.index.format.errors  # noqa: F401 - a service may answer with its classes
from tierlog.service.cli.errors import say
from tierlog.service.wire.documents import (
    ARROW_STREAM,
    NDJSON,
    Json,
    count_arguments,
    filter_arguments,
    produced_json,
)
from tierlog.tiering.base.errors import TopicNotFoundError, UnavailableError
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress
from tierlog.tiering.remote.http_client import HttpAnswer, HttpClient
from tierlog.tiering.remote.problems import refusal

if TYPE_CHECKING:
    import pyarrow as pa

    from tierlog.index.search.counts import CountQuery
    from tierlog.index.search.query import Query
    from tierlog.service.engine.groups import ResetQueues, ResetTo
    from tierlog.service.wire.paged_query import FollowedQuery
    from tierlog.tiering.base.types import Durability
    from tierlog.tiering.hot.consumer_groups import Queue
    from tierlog.tiering.message.batch import Message

_TIMEOUT_S = 600.0
_READ_BYTES = 1 << 20


class RemoteTarget:
    """A service spoken to over the REST API at one URL; raises the errors that it answered with."""

    def __init__(self, url: str, access: ServiceAccess | None = None, store_id: str | None = None) -> None:
        """Connects to nothing yet. Raises :class:`InvalidRequestError` for anything but an http(s) URL.

        ``access``, if it is not given, is what the environment says. ``store_id`` names the store of the service's
        cluster that is meant by all calls but those of consumer groups, whose homes the nodes know.
        """
        self._store_id: str | None = store_id
        self._address = ServiceAddress.parse(url)
        self._client = HttpClient(ServiceAccess.of() if access is None else access, _TIMEOUT_S)
        self._client.check_certificates(self._address)

    def only_store(self, store_id: str) -> None:
        """Asks everything but groups of this store from now on."""
        self._store_id = store_id

    def query(self, query: Query) -> Json:
        """Returns a page of results."""
        path = _query_path(query, {"limit": query.limit, "dry_run": "true" if query.dry_run else None})
        return self._call("GET", path, timeout_s=_TIMEOUT_S + (query.timeout_ms or 0) / 1000)

    def follow(self, query: Query, most_rows: int | None) -> FollowedQuery:
        """Returns the answer to a query that is followed to its end, as one download."""
        path = self._path(_query_path(query, {"limit": most_rows, "all": "true"}))
        return _Download(self._client, self._address, path)

    def counts(self, query: CountQuery) -> Json:
        """Returns messages per interval of time."""
        path = f"/v1/topics/{quote(query.topic, safe='')}/counts?{urlencode(count_arguments(query))}"
        return self._call("GET", path, timeout_s=_TIMEOUT_S + (query.timeout_ms or 0) / 1000)

    def message(self, message_id: str) -> Json:
        """Returns one message."""
        return self._call("GET", f"/v1/messages/{quote(message_id, safe='')}")

    def pull(
        self, topic: str, queue_id: int, offset: int, limit: int, *, wait_ms: int = 0, tag: str | None = None,
        backward: bool = False,
    ) -> Json:  # fmt: skip
        """Reads messages of a queue in order, and waits up to ``wait_ms`` at its end; or backwards."""
        more = ({} if tag is None else {"tag": tag}) | ({"backward": "true"} if backward else {})
        asked = urlencode({"offset": offset, "limit": limit, "wait_ms": wait_ms} | more)
        return self._call("GET", f"/v1/topics/{quote(topic, safe='')}/queues/{queue_id}/messages?{asked}")

    def offset_since(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Returns the offset of a queue's first message stored at or after a time, its end if there is none."""
        path = f"/v1/topics/{quote(topic, safe='')}/queues/{queue_id}/offset"
        return int(self._call("GET", f"{path}?time_ms={time_ms}&boundary=lower")["offset"])

    def topics(self) -> list[Json]:
        """Returns topics with their queues."""
        found: list[Json] = self._call("GET", "/v1/topics")["topics"]
        return found

    def topic(self, name: str) -> Json:
        """Returns one topic with its queues."""
        return self._call("GET", f"/v1/topics/{quote(name, safe='')}")

    def files(self) -> list[Json]:
        """Returns segments and index files."""
        found: list[Json] = self._call("GET", "/v1/files")["files"]
        return found

    def stats(self) -> Json:
        """Returns sizes and lags."""
        return self._call("GET", "/v1/stats")

    def check(self, *, deep: bool, progress: object) -> Json:
        """Returns findings and notes; a service reports no progress."""
        return self._call("POST", "/v1/admin/check", {"deep": deep})

    def append(self, messages: Sequence[Message], durability: Durability, key: str | None = None) -> int:
        """Appends a batch, all of one topic, and returns when it is as durable as asked for.

        What is in columns goes as an Arrow stream, without a message being made of a row.
        """
        from tierlog.service.wire.arrow import appended_ms, produced_stream
        from tierlog.tiering.message.arrow_input import ArrowMessages

        path = f"/v1/topics/{quote(messages[0].topic, safe='')}/messages?durability={durability.value}"
        headers = {} if key is None else {"Idempotency-Key": key}
        if not isinstance(messages, ArrowMessages):
            rows = {"messages": [produced_json(message) for message in messages]}
            return int(self._call("POST", path, rows, headers=headers)["results"][-1]["store_ms"])
        headers |= {"Content-Type": ARROW_STREAM, "Accept": ARROW_STREAM}
        answer = self._ask("POST", path, produced_stream(messages), headers)
        return appended_ms(answer.content)

    def home_of(self, topic: str) -> str:
        """Returns the store that takes new messages of a topic."""
        return self._store_id or str(self.topic_home(topic)["store_id"])

    def queues_of(self, topic: str) -> int | None:
        """Returns the number of queues of a topic, None if there is no such topic."""
        try:
            return int(self.topic(topic)["queues"])
        except TopicNotFoundError:
            return None

    def create_topic(self, name: str, queues: int) -> None:
        """Makes a topic or gives it more queues."""
        self._call("PUT", f"/v1/topics/{quote(name, safe='')}", {"queues": queues})

    def archive(self, *, until_ms: int | None, everything: bool, drop_hot: bool, progress: object) -> Json:
        """Archives now; answers when published."""
        wanted: Json = {"all": everything, "drop_hot": drop_hot}
        if until_ms is not None:
            wanted["until"] = until_ms
        return self._call("POST", "/v1/admin/archive", wanted)

    def flush(self) -> None:
        """Makes everything durable now."""
        self._call("POST", "/v1/admin/flush")

    def erase(self, query: Query, *, dry_run: bool, wait: bool, progress: object) -> Json:
        """Erases what the query matches."""
        from tierlog.tiering.lifecycle.tombstones import hides_whole_topic

        wanted: Json = {
            "topic": query.topic, "key": query.key, "from": query.from_ms, "to": query.to_ms,
            "dry_run": dry_run, "wait": wait,
        }  # fmt: skip
        if not dry_run and hides_whole_topic([query.key], query.from_ms, query.to_ms):
            wanted["all"] = True  # whoever calls this means it
        return self._call("POST", "/v1/admin/erase", wanted)

    def delete_topic(self, topic: str, *, dry_run: bool, wait: bool, progress: object) -> Json:
        """Deletes a topic."""
        flags = f"dry_run={str(dry_run).lower()}&wait={str(wait).lower()}" + ("" if dry_run else "&all=true")
        return self._call("DELETE", f"/v1/topics/{quote(topic, safe='')}?{flags}")

    def hold(self, topic: str, *, hold: bool) -> None:
        """Puts a topic on hold, or ends that."""
        self._call("PUT", f"/v1/topics/{quote(topic, safe='')}/hold", {"hold": hold})

    def receipts(self) -> list[Json]:
        """Returns receipts of all erasures."""
        found: list[Json] = self._call("GET", "/v1/admin/receipts")["receipts"]
        return found

    def receipt(self, tombstone_id: str) -> Json:
        """Returns one receipt."""
        return self._call("GET", f"/v1/admin/receipts/{quote(tombstone_id, safe='')}")

    def cluster(self) -> Json:
        """Returns the stores of the service's cluster."""
        return self._call("GET", "/v1/cluster")

    def topic_home(self, topic: str) -> Json:
        """Returns the store that new messages of a topic go to."""
        return self._call("GET", f"/v1/cluster/topics/{quote(topic, safe='')}")

    def route_topic(self, topic: str, store_id: str | None) -> Json:
        """Sends new messages of a topic to a store, or leaves them to hashing."""
        path = f"/v1/cluster/topics/{quote(topic, safe='')}"
        return self._call("DELETE", path) if store_id is None else self._call("PUT", path, {"store_id": store_id})

    def close_store(self, store_id: str, *, closed: bool) -> Json:
        """Closes a store to new topics, or opens it."""
        return self._call("PUT" if closed else "DELETE", f"/v1/cluster/closed/{quote(store_id, safe='')}")

    def remove_store(self, store_id: str) -> Json:
        """Takes a store out of the cluster."""
        return self._call("DELETE", f"/v1/cluster/stores/{quote(store_id, safe='')}")

    def committed_offsets(self, group: str) -> dict[Queue, int]:
        """Returns the offsets that a consumer group has committed."""
        found = self._call("GET", f"/v1/groups/{quote(group, safe='')}/offsets")["offsets"]
        return {(one["topic"], one["store_id"], one["queue_id"]): one["offset"] for one in found}

    def groups(self) -> list[Json]:
        """Returns the groups of the store that is named, else of every store of the service's cluster that answers.

        Says which do not; raises what the last one answered if none does.
        """
        if self._store_id is not None:
            stores = [self._store_id]
        else:
            stores = [one["store_id"] for one in self.cluster()["stores"]]
        found: list[Json] = []
        silent: list[str] = []
        for store_id in stores:
            try:
                found += self._call("GET", f"/v1/groups?{urlencode({'store_id': store_id})}")["groups"]
            except UnavailableError:
                silent.append(store_id)
                if len(silent) == len(stores):
                    raise
        if silent:
            say(f"without the groups of stores that do not answer: {', '.join(silent)}")
        return sorted(found, key=lambda group: (group["group"], group["store_id"]))

    def group(self, name: str) -> Json:
        """Returns one group with its members and queues."""
        return self._call("GET", f"/v1/groups/{quote(name, safe='')}")

    def reset_group(self, name: str, to: ResetTo, queues: ResetQueues, *, dry_run: bool) -> list[Json]:
        """Moves a group, or says what that would change."""
        wanted: Json = {
            "to": to.place, "time": to.time_ms, "offset": to.offset,
            "topic": queues.topic, "store_id": queues.store_id, "queue_id": queues.queue_id,
        }  # fmt: skip
        wanted = {field: value for field, value in wanted.items() if value is not None} | {"dry_run": dry_run}
        found: list[Json] = self._call("POST", f"/v1/groups/{quote(name, safe='')}/reset", wanted)["queues"]
        return found

    def remove_group(self, name: str) -> None:
        """Removes a group."""
        self._call("DELETE", f"/v1/groups/{quote(name, safe='')}")

    def commit_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits for a group without members."""
        wanted = [
            {"topic": topic, "store_id": store_id, "queue_id": queue_id, "offset": offset}
            for (topic, store_id, queue_id), offset in offsets.items()
        ]
        self._call("PUT", f"/v1/groups/{quote(group, safe='')}/offsets", {"offsets": wanted})

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Json:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        sent = {**(headers or {}), **({"Content-Type": "application/json"} if data else {})}
        answer = self._ask(method, path, data, sent, timeout_s=timeout_s)
        document = answer.document()
        if document is None:
            raise self._no_json(answer)
        return document

    def _ask(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        *,
        timeout_s: float | None = None,
    ) -> HttpAnswer:
        """Returns a good answer; raises what the service answered otherwise."""
        answer = self._client.ask(self._address, method, self._path(path), data, headers, timeout_s=timeout_s)
        error = answer.error()
        if error is None:
            return answer
        raise error if answer.document() is not None else self._no_json(answer)

    def _no_json(self, answer: HttpAnswer) -> UnavailableError:
        return UnavailableError(f"{self._address} answered {answer.status} without JSON; is it tierlog?")

    def _path(self, path: str) -> str:
        if self._store_id is None or path.startswith("/v1/groups"):
            return path
        return path + ("&" if "?" in path else "?") + urlencode({"store_id": self._store_id})


def _query_path(query: Query, more: Mapping[str, object]) -> str:
    asked = {
        "from": query.from_ms, "to": query.to_ms, "time": query.axis.value, "order": query.order.value,
        "key": query.key, "cursor": query.cursor, "max_requests": query.max_requests, "timeout_ms": query.timeout_ms,
        **more,
    }  # fmt: skip
    given = {name: value for name, value in asked.items() if value is not None} | filter_arguments(query)
    return f"/v1/topics/{quote(query.topic, safe='')}/messages?{urlencode(given, doseq=True)}"


class _Download:
    """A query that the service follows to its end, read while it comes."""

    def __init__(self, client: HttpClient, address: ServiceAddress, path: str) -> None:
        self._client, self._address, self._path = client, address, path
        self._beside: Json | None = None

    def pages(self) -> Iterator[pa.RecordBatch]:
        """Yields the messages as record batches."""
        import pyarrow as pa

        from tierlog.tiering.message.arrow_schema import FOUND_SCHEMA

        with self._body(ARROW_STREAM) as body:
            try:
                with pa.ipc.open_stream(pa.PythonFile(body, mode="r")) as reader:
                    while True:
                        rows, beside = reader.read_next_batch_with_custom_metadata()
                        if rows.num_rows:
                            inflated = pa.repeat(pa.scalar(value=False), rows.num_rows)
                            yield pa.RecordBatch.from_arrays([*rows.columns, inflated], schema=FOUND_SCHEMA)
                        if beside:
                            self._beside = {name.decode(): json.loads(value) for name, value in beside.items()}
            except StopIteration:
                pass
            except pa.ArrowInvalid as error:
                raise UnavailableError(f"the answer of {self._address} broke off: {error}") from error
        self.metadata()

    def lines(self) -> Iterator[bytes]:
        """Yields the messages as NDJSON, whole lines at a time, as the service writes them."""
        rest = b""
        with self._body(NDJSON) as body:
            while data := body.read(_READ_BYTES):
                rest += data
                cut = rest.rfind(b"\n", 0, rest.rfind(b"\n") if rest.endswith(b"\n") else len(rest)) + 1
                if cut:
                    yield rest[:cut]
                    rest = rest[cut:]
        last: Json = {}
        with suppress(ValueError):
            last = json.loads(rest)
        if "problem" in last:
            raise refusal(int(last["problem"]["status"]), last["problem"], str(self._address))
        self._beside = last if "coverage" in last else None
        self.metadata()

    def metadata(self) -> Json:
        """Returns what stands beside all messages; raises :class:`UnavailableError` if the answer has no end."""
        if self._beside is None:
            raise UnavailableError(
                f"the answer of {self._address} broke off", hint="what came before is right; see the service's log"
            )
        return self._beside

    def _body(self, form: str) -> AbstractContextManager[http.client.HTTPResponse]:
        return self._client.download(self._address, self._path, {"Accept": form})
