"""A nameserver, a broker and a master for slaves, each a socket that says what a test tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from tierlog.tiering.rocketmq.codes import FrameFlag, RequestCode, ResponseCode
from tierlog.tiering.rocketmq.frames import Frame, FrameReader, encode_frame

LIMIT_S = 20.0
_HEAD = struct.Struct(">qi")


class FakeBroker:
    """Answers requests by code, each with a code, fields and a body; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.answers: dict[int, Callable[[Frame], tuple[int, Mapping[str, str], bytes]]] = {}
        #: Bytes sent in the place of any answer.
        self.raw: bytes | None = None
        #: How many requests a connection may have.
        self.requests_a_connection = 1 << 30
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all connections, and takes no other."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def answer(self, code: RequestCode, document: object, **fields: str) -> None:
        """From now on a request is answered with this JSON, or with these bytes."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.answers[code] = lambda _: (ResponseCode.SUCCESS, fields, body)

    def refuse(self, code: RequestCode, with_code: ResponseCode) -> None:
        """From now on a request is refused."""
        self.answers[code] = lambda _: (with_code, {}, b"")

    def tell_bounds(self, least: int, most: int, **more: str) -> None:
        """What the runtime info says of the log."""
        table = {"commitLogMinOffset": str(least), "commitLogMaxOffset": str(most), **more}
        self.answer(RequestCode.GET_BROKER_RUNTIME_INFO, {"table": table})

    def _serve(self) -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._open.append(connection)
                threads.append(threading.Thread(target=self._talk, args=(connection,), daemon=True))
                threads[-1].start()
        for thread in threads:
            thread.join(LIMIT_S)

    def _talk(self, connection: socket.socket) -> None:
        reader, done = FrameReader(1 << 26), 0
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                for frame in reader.feed(data):
                    self.asked.append(frame)
                    connection.sendall(self.raw if self.raw is not None else self._answered(frame))
                    done += 1
                    if done >= self.requests_a_connection:
                        return

    def _answered(self, frame: Frame) -> bytes:
        code: int = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        fields: Mapping[str, str] = {}
        body = b""
        if frame.code in self.answers:
            code, fields, body = self.answers[frame.code](frame)
        return encode_frame(Frame(code, frame.opaque, int(FrameFlag.RESPONSE), fields, body))


class FakeMaster:
    """Where slaves connect: a test takes one connection after the other, and plays the master on each."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(LIMIT_S)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.close()

    @contextlib.contextmanager
    def connection(self) -> Iterator[MasterConnection]:
        """The next slave that connects."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(LIMIT_S)
            yield MasterConnection(connection)


class MasterConnection:
    """One slave, as its master sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def reported(self) -> int:
        """The next offset that the slave says."""
        data = b""
        while len(data) < 8:
            received = self.socket.recv(8 - len(data))
            assert received, "the slave closed the connection"
            data += received
        return int.from_bytes(data, "big", signed=True)

    def reports_waiting(self) -> bool:
        """Whether the slave has said something that was not read."""
        self.socket.setblocking(False)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.socket.settimeout(LIMIT_S)

    def send(self, offset: int, data: bytes) -> None:
        """A frame; without bytes a heartbeat."""
        self.socket.sendall(frame(offset, data))


def frame(offset: int, data: bytes) -> bytes:
    """Of a master to its slave."""
    return _HEAD.pack(offset, len(data)) + data
