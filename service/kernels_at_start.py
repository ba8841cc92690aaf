"""What a service says and does about compiled kernels before it serves."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from tiering.kernels import cache

#: In numba's folder: all kernels of these sources were compiled here, for this processor.
_MARK = "compiled-"


def _compile_all(progress: Callable[[int, int], None]) -> int:
    from index.kernels.ahead import compile_all  # which imports every kernel

    return compile_all(progress)


def compile_at_first_start(
    chosen: cache.Chosen | None,
    say: Callable[[str], None],
    compile_all: Callable[[Callable[[int, int], None]], int] = _compile_all,
) -> None:
    """Compile every kernel, with a line of progress, where that was never done for these sources and this processor.

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

    compile_all(progress)
    with contextlib.suppress(OSError):  # where it cannot be kept, the next start looks again
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _fingerprint() -> str:
    """Changes with what compiled code depends on: every kernel's source, the compiler's version, the processor."""
    known = hashlib.sha256(cache.compiler().encode())
    for package in ("index", "tiering"):
        for source in sorted((Path(__file__).parent.parent / package / "kernels").glob("*.py")):
            known.update(source.read_bytes())
    return known.hexdigest()[:16]
