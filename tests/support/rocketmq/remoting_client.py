"""A client of the remoting protocol that sends what it is told to, well-formed or not, over one plain socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Any, Self

from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame, FrameReader, HeaderForm, encode_frame

_TIMEOUT_S = 30.0


class RemotingClient:
    """One connection; answers may come in any order, and pushes between them. For one thread."""

    def __init__(
        self,
        address: str,
        *,
        form: HeaderForm = HeaderForm.JSON,
        tls: ssl.SSLContext | None = None,
        client_id: str = "127.0.0.1@1",
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.form = form
        self.client_id = client_id
        self.language = "JAVA"
        #: The access key and the secret key that it signs with.
        self.keys: tuple[str, str] | None = None
        self._reader = FrameReader(1 << 30)
        self._opaque = 0
        self._answers: dict[int, Frame] = {}
        #: Requests of the broker, in the order in which they came.
        self.pushed: list[Frame] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", *, oneway: bool = False
    ) -> int:
        """Sends a request and returns its number."""
        self._opaque += 1
        texts = {name: _text(value) for name, value in (fields or {}).items() if value is not None}
        if self.keys is not None:
            texts = signed(texts, body, *self.keys)
        flag = FrameFlag.ONEWAY if oneway else 0
        frame = Frame(code, self._opaque, flag, texts, body, form=self.form, language=self.language)
        self.socket.sendall(encode_frame(frame))
        return self._opaque

    def answer_to(self, number: int) -> Frame:
        """Waits for the answer to a request."""
        while number not in self._answers:
            self._read()
        return self._answers.pop(number)

    def first_answers(self, numbers: set[int]) -> list[int]:
        """Waits for one of the answers to some requests; returns which of them are there."""
        while not (found := [number for number in numbers if number in self._answers]):
            self._read()
        return found

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Sends a request and waits for its answer."""
        return self.answer_to(self.send(code, fields, body))

    def done(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Frame:
        """Asks, and expects success."""
        found = self.ask(code, fields, body)
        assert found.code == ResponseCode.SUCCESS, (ResponseCode(found.code), found.remark)
        return found

    def document(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Any:
        """Asks, and returns the JSON of a successful answer's body."""
        return json.loads(self.done(code, fields, body).body)

    def push(self) -> Frame:
        """Waits for the next request of the broker."""
        while not self.pushed:
            self._read()
        return self.pushed.pop(0)

    def is_closed_by_peer(self) -> bool:
        """Whether the other side closes the connection; waits for it."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    def _read(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the other side has closed the connection")
        for frame in self._reader.feed(data):
            if frame.is_answer:
                self._answers[frame.opaque] = frame
            else:
                self.pushed.append(frame)

    # what clients of RocketMQ say

    def route(self, topic: str) -> Any:
        return self.document(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})

    def heartbeat(
        self, *groups: str, topics: Mapping[str, str] | None = None, producers: tuple[str, ...] = (), **more: object
    ) -> Frame:
        """Says that this client consumes for these groups, each the topics with their expressions."""
        subscriptions = [
            {
                "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": expression,
                "subVersion": 1, "tagsSet": [], "topic": topic,
            }
            for topic, expression in (topics or {}).items()
        ]  # fmt: skip
        consumers = [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
                "groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": subscriptions,
                "unitMode": False,
            }
            for group in groups
        ]  # fmt: skip
        beat = {
            "clientID": self.client_id,
            "consumerDataSet": consumers,
            "producerDataSet": [{"groupName": group} for group in producers],
            **more,
        }
        return self.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())


def signed(fields: Mapping[str, str], body: bytes, name: str, secret: str) -> dict[str, str]:
    """Returns the fields of a request with its signature, as RocketMQ's clients make it."""
    found = {**fields, "AccessKey": name}
    content = "".join(found[field] for field in sorted(found)).encode() + body
    code = hmac.new(secret.encode(), content, hashlib.sha1).digest()
    return {**found, "Signature": base64.b64encode(code).decode()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_thread(work: Any) -> threading.Thread:
    """Runs work beside the test."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
