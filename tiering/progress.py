"""How far long work is, shown on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal that is told (done, of)."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from tqdm import tqdm

    with tqdm(unit=unit) as shown:

        def move(done: int, of: int) -> None:
            shown.total = of
            shown.update(done - shown.n)

        yield move
