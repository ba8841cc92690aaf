"""A server that accepts connections and never answers: an object store that is dead in the worst way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Its URL. Connections are kept open until the context ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as kept:
        stopping = threading.Event()

        def accept() -> None:
            while not stopping.is_set():
                with contextlib.suppress(OSError):
                    kept.enter_context(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            stopping.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
