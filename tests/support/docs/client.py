"""What stands for ``tierlog``, ``python`` and ``given`` on a page's PATH: asks the process of :mod:`commands` to do it.

Only the standard library, and started without site, so that a command costs what it does and not what it imports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from array import array


def main() -> int:
    name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
    if name.startswith("python"):
        if arguments[:1] != ["-m"] or arguments[1].split(".")[0] not in ("tierlog", "docs", "tests"):
            os.execv(os.environ["DOCS_PYTHON"], [os.environ["DOCS_PYTHON"], *arguments])
        name = "python"
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(os.environ["DOCS_SOCKET"])
        request = json.dumps([name, arguments, os.getcwd(), dict(os.environ)]).encode()
        asked.sendmsg(
            [len(request).to_bytes(4, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0, 1, 2]))],
        )
        asked.sendall(request)
        answers = asked.makefile("r")
        pid = int(answers.readline())

        def hand_on(number: int, frame: object) -> None:
            os.kill(pid, number)

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, hand_on)
        return int(answers.readline())


if __name__ == "__main__":
    sys.exit(main())
