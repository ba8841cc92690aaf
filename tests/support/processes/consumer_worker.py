"""A consumer as a process, to be killed: writes down each message that its handler is done with.

``python -m tests.support.processes.consumer_worker URL GROUP TOPIC FILE READ_AHEAD`` consumes until its standard input
ends.
"""

from __future__ import annotations

import os
import sys
import time

from tierlog.client import Client, Consumer, StoredMessage


def main() -> None:
    """Work until there is no more input."""
    url, group, topic, file, read_ahead = sys.argv[1:]
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(message: StoredMessage) -> None:
        time.sleep(0.0005)
        os.write(log, b"%d %d\n" % (message.queue_id, message.queue_offset))

    settings = {"session_timeout_ms": 2_000, "heartbeat_s": 0.2, "commit_interval_s": 0.1}
    with (
        Client(url) as client,
        Consumer(client, group, [topic], handle, read_ahead=int(read_ahead), workers=4, **settings),  # type: ignore[arg-type]  # numbers all
    ):
        sys.stdin.read()


if __name__ == "__main__":
    main()
