"""Compilation of kernels before a service serves for the first time.

In a process of its own, ``python -m tierlog.service.cli.kernel_compilation``: what a compiler leaves behind in memory,
250 MB, would stay with the service.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tierlog.tiering.kernels import cache

#: Name of a file in numba's folder: all kernels of these sources are compiled there, for this processor.
_MARK = "compiled-"
_KERNELS = tuple(Path(__file__).parents[2] / package / "kernels" for package in ("index", "tiering"))


def _compile_beside(progress: Callable[[int, int], None]) -> bool:
    """Compiles in a process that ends with it, which says how far it is line by line; whether it did all of it."""
    command = [sys.executable, "-P", "-m", __name__]  # what lies where the service is started is none of its modules
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as compiler:
        try:
            assert compiler.stdout is not None
            for line in compiler.stdout:
                done, of = map(int, line.split())
                progress(done, of)
        except BaseException:
            compiler.kill()
            raise
    return compiler.returncode == 0


def compile_at_first_start(
    chosen: cache.CacheChoice | None,
    say: Callable[[str], None],
    compile_all: Callable[[Callable[[int, int], None]], bool] = _compile_beside,
) -> None:
    """Compiles every kernel, with a line of progress, where that was never done for these sources and this processor.

    That takes about half a minute of one processor, once. Without it every first request of a kind would wait for a
    part of it. ``chosen`` is None where the environment says where kernels are kept. Nothing is done where the
    installation ships kernels that this processor can run, or where a start before this one has compiled them.
    """
    if chosen is not None and chosen.is_shipped:
        return
    mark = cache.folder_in_use(chosen) / (_MARK + _fingerprint())
    if mark.exists():
        return
    if chosen is not None and chosen.reason is not None:
        say(chosen.reason)
    is_terminal = sys.stderr.isatty()

    def progress(done: int, of: int) -> None:
        if done == of or is_terminal or done % 5 == 0:
            say(f"compiled {done} of {of} kernels for this processor, which is kept for later starts")

    if not compile_all(progress):
        return  # each is compiled when it is first called
    with contextlib.suppress(OSError):  # if it cannot be kept, the next start checks again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _fingerprint() -> str:
    """Digests what compiled code depends on: the compiler's version, the processor, every kernel's source and place.

    numba keeps code by the path of its source, so an installation elsewhere has nothing compiled yet.
    """
    known = hashlib.sha256(cache.compiler().encode())
    for folder in _KERNELS:
        for source in sorted(folder.glob("*.py")):
            known.update(os.fsencode(source) + source.read_bytes())
    return known.hexdigest()[:16]


def main() -> int:
    """Compiles all kernels into numba's folder, with a line ``DONE OF`` after each that had to be."""
    from tierlog.index.kernels.precompile import compile_all  # which imports every kernel

    compile_all(lambda done, of: print(done, of, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
