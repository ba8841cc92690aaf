"""Compiles all kernels for this processor, on all cores at once: ``python -m tests.tools.kernels``.

They stay in the user's cache folder, where every process that runs tests, and every service that tests start, finds
them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

from tierlog.index.kernels.precompile import compile_all, compile_kernel, kernels


def _compile(number: int) -> None:
    compile_kernel(list(kernels())[number])


def main() -> int:
    """Compile what is missing; 0."""
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.map(_compile, range(len(list(kernels()))), chunksize=1)
    compile_all()  # loads what is there, and compiles what a process could not keep
    return 0


if __name__ == "__main__":
    sys.exit(main())
