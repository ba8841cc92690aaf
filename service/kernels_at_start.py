"""What a service says and does about compiled kernels before it serves."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tiering.kernels import cache


def _compile_all(progress: Callable[[int, int], None]) -> int:
    from index.kernels.ahead import compile_all  # which imports every kernel

    return compile_all(progress)


def compile_what_does_not_fit(
    chosen: cache.Chosen | None,
    say: Callable[[str], None],
    compile_all: Callable[[Callable[[int, int], None]], int] = _compile_all,
) -> None:
    """Where the installation ships kernels that this processor cannot run, compile them now, and say so.

    That takes about half a minute of one processor. Without it every first request of a kind would wait for a part of
    it. Elsewhere nothing is done: what is shipped is there, and a machine of one's own compiles once, when needed.
    """
    if chosen is None or chosen.reason is None:
        return
    say(f"{chosen.reason}; kernels are compiled for this processor first, about half a minute")
    is_terminal = sys.stderr.isatty()

    def progress(done: int, of: int) -> None:
        if is_terminal or done % 5 == 0:
            say(f"compiled {done} of {of} kernels")

    compile_all(progress)
