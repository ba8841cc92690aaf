"""What Spark forks its Python workers from in tests: as otherwise, but with all that they import there already.

Spark starts many workers, and does not use one again that planned a read. Each would import the same libraries and
load the same kernels. It begins this module as it would begin ``pyspark.daemon``, with the worker's module as argument.
"""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import threading

import pyspark.daemon

import tierlog.pipeline
from tierlog.index.kernels.precompile import compile_all


def main() -> None:
    """Import, and fork until Spark ends."""
    for module in pkgutil.walk_packages(tierlog.pipeline.__path__, f"{tierlog.pipeline.__name__}."):
        if not module.name.endswith(".demo"):
            importlib.import_module(module.name)
    importlib.import_module(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    compile_all()
    # a lock that another thread held would be held for ever in a fork
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
