"""System calls that Python does not offer, or not like this; all raise :class:`OSError`. Used by ``tiering.fs``."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FALLOCATE: Any = getattr(_LIBC, "fallocate64", None)
if _FALLOCATE is not None:
    _FALLOCATE.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

_M_ARENA_MAX = -8
_MS_SYNC = 4
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value
_FALLOC_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


def _failed() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def share_arenas(count: int) -> bool:
    """Have all threads share so many arenas of malloc, before they are started; False where libc is not glibc.

    By itself each thread gets one, up to eight a processor, and each keeps the most that its thread ever used.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, count))


class Mapping:
    """The mapped bytes of one file: every array over them keeps this alive, and they are unmapped after the last.

    Not ``mmap.mmap``, which holds a descriptor as long as it lives: a store maps more files than a process may open.
    """

    def __init__(self, fd: int, size: int, protection: int, flags: int) -> None:
        address = _LIBC.mmap(None, size, protection, flags, fd, 0)
        if address == _MAP_FAILED:
            raise _failed()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (address, not protection & mmap.PROT_WRITE),
        }
        # not at exit, while a thread may still read: the process takes its maps along
        weakref.finalize(self, _LIBC.munmap, address, size).atexit = False


def sync_mapped(mapped: NDArray[np.uint8], start: int, end: int) -> None:
    """Make the pages that hold bytes ``[start, end)`` of a mapping durable."""
    first = mapped.ctypes.data + start
    page = first - first % mmap.PAGESIZE
    if _LIBC.msync(page, mapped.ctypes.data + end - page, _MS_SYNC):
        raise _failed()


def populate(mapped: NDArray[np.uint8], start: int, end: int) -> None:
    """Have the pages of ``[start, end)`` of a writable mapping there before they are written, all at once.

    A page that is not there yet stops its first writer for about as long as putting 30 index items takes. Best effort:
    kernels before Linux 5.14 cannot.
    """
    first = mapped.ctypes.data + start
    page = first - first % mmap.PAGESIZE
    _LIBC.madvise(page, mapped.ctypes.data + end - page, _MADV_POPULATE_WRITE)


def punch_hole(fd: int, start: int, end: int) -> bool:
    """Make ``[start, end)`` read as zeros without blocks; False where the file system cannot."""
    return _FALLOCATE is not None and _FALLOCATE(fd, _FALLOC_KEEP_SIZE_PUNCH_HOLE, start, end - start) == 0
