"""Compiles every kernel before it is called: ``python -m tierlog.index.kernels.precompile``, for an installation that
ships them.

All kernels take and give integers of 64 bits, so that each has one compiled form, known without calling it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

import tierlog.index.kernels
import tierlog.tiering.kernels
from tierlog.tiering.kernels import cache
from tierlog.tiering.kernels.primitives import made_by_numba


def kernels() -> Iterator[Any]:
    """Yields all kernels of the index and of the log, by module and name."""
    for package in (tierlog.tiering.kernels, tierlog.index.kernels):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if found.name == __name__:
                continue
            module = importlib.import_module(found.name)
            for _, value in sorted(vars(module).items()):
                value = made_by_numba(getattr(value, "at", value))  # ``at`` of a kernel that takes a struct
                own = isinstance(value, Dispatcher) and value.py_func.__module__ == found.name
                if own and value.targetoptions.get("nopython") and value._cache.cache_path:
                    yield value


def compile_kernel(kernel: Any) -> None:
    """Compiles one kernel, or loads it where that was done before: all of its parameters are integers of 64 bits."""
    kernel.compile((numba.int64,) * len(signature(kernel.py_func).parameters))


def compile_all(progress: Callable[[int, int], None] = lambda done, of: None) -> int:
    """Compiles each kernel, or loads it where that was done before; returns how many had to be compiled.

    After each that had to be compiled, ``progress`` is called with how many are done and how many there are.
    """
    every = list(kernels())
    compiled = 0
    for number, kernel in enumerate(every, 1):
        compile_kernel(kernel)
        if kernel.stats.cache_misses:
            compiled += 1
            progress(number, len(every))
    return compiled


def main(argv: list[str]) -> int:
    """Compile for the baseline of this machine's kind into a prefix, this interpreter's own unless told."""
    parser = argparse.ArgumentParser(prog="python -m tierlog.index.kernels.precompile", description=main.__doc__)
    parser.add_argument("--prefix", type=Path, default=Path(sys.prefix), metavar="DIR")
    arguments = parser.parse_args(argv)
    target = cache.BASELINES.get(platform.machine())
    if target is None:
        print(f"no baseline is known for {platform.machine()}: kernels are compiled when they are first called")
        return 0
    if not os.environ.get("NUMBA_CACHE_DIR"):
        # before the first kernel is declared, which fixes the folder
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache.shipped_folder(arguments.prefix))}
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *argv], environment)
    cache.use_target(target)
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    compiled = compile_all(lambda done, of: print(f"kernels: {done} of {of}", flush=True))
    cache.write_target(folder, target)
    print(f"kernels: {compiled} compiled for {target.name} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
