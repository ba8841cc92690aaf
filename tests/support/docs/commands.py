"""One process that has imported everything, and forks a child for each command: own descriptors, folder, environment.

``python -m tests.support.docs.commands SOCKET`` says ``ready`` once it listens. A command is what its entry point makes
of it, in a process of its own; only the imports, and the loading of compiled kernels, are shared.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import tempfile
import threading
import traceback
from pathlib import Path

import tierlog.service.cli.commands
from tests.support.docs.given import main as given
from tierlog.service.cli.kernel_compilation import compile_at_first_start
from tierlog.service.main import main as run_tierlog
from tierlog.tiering.kernels import cache

#: A thread may wait for a kernel that is compiled for the first time.
_THREADS_S = 60
_TINY = ("--segment-bytes", "65536", "--queue-file-units", "60", "--index-slots", "100", "--index-items", "400")


def main(path: str) -> None:
    """Serve until standard input ends."""
    for module in pkgutil.iter_modules(tierlog.service.cli.commands.__path__):
        importlib.import_module(f"tierlog.service.cli.commands.{module.name}")
    for name in (
        "tierlog.service.api.application.process",
        "tierlog.service.dump",
        "docs.tools.settings",
        "tierlog.service.demo",
        "boto3",
    ):
        importlib.import_module(name)
    _load_kernels()
    _wait_for_threads()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        if os.fork() == 0:
            sys.stdin.read()
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(0)
        print("ready", flush=True)
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(asked)
            asked.close()


def _wait_for_threads() -> None:
    """Lets end what the commands began beside themselves: a compaction outlives its store for a moment.

    A lock that a thread held while the process is forked would be held in the fork for ever.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(_THREADS_S)
    assert threading.active_count() == 1, threading.enumerate()


def _load_kernels() -> None:
    compile_at_first_start(cache.CHOICE, lambda line: None)  # or the first service of a page would say how far it is
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        log, root, cold = f"{folder}/log", f"{folder}/store", f"file://{folder}/cold"
        Path(log).write_text("a line k=1\n")
        with contextlib.redirect_stderr(io.StringIO()):
            run_tierlog(["load", log, "--topic", "t", "--key", "k=(.)", "--root", root, "--cold", cold, *_TINY])
            run_tierlog(["archive", "--all", "--drop-hot", "--root", root])
            run_tierlog(["query", "t", "--key", "1", "--root", root])


def _answer(asked: socket.socket) -> None:
    length, descriptors, _, _ = socket.recv_fds(asked, 4, 3)
    request = b""
    while len(request) < int.from_bytes(length, "big"):
        request += asked.recv(1 << 20)
    name, arguments, folder, environment = json.loads(request)
    pid = os.fork()
    if pid == 0:
        asked.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        os._exit(_run(name, arguments))
    asked.sendall(b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        asked.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
    os._exit(0)


def _run(name: str, arguments: list[str]) -> int:
    code: object = 1
    try:
        if name == "tierlog":
            code = run_tierlog(arguments)
        elif name == "given":
            code = given(arguments)
        else:
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else 1


if __name__ == "__main__":
    main(sys.argv[1])
