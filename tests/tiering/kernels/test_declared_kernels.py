"""Kernels are declared without numba, and made when the first of any is called: whoever calls it, and however."""

from __future__ import annotations

import subprocess
import sys
import zlib

import pytest

#: A process that has called no kernel, and the CRCs of two runs of bytes.
_BEGIN = """
import sys, zlib
from tierlog.tiering.kernels import checksum
from tierlog.tiering.kernels.checksum import crc32_of, joined_crc32
one, two = zlib.crc32(b"one"), zlib.crc32(b"two")
assert "numba" not in sys.modules
"""
_CALLS = {
    "by place": "print(joined_crc32(one, two, 3))",
    "by name": "print(joined_crc32(first=one, second=two, second_bytes=3))",
    "a declaration that was kept": (
        "assert crc32_of(b'one') == one\nassert joined_crc32 is not checksum.joined_crc32\n"
        "print(joined_crc32(one, two, second_bytes=3))"
    ),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_the_first_call_is_a_call_like_any_other(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", _BEGIN + call], capture_output=True, text=True, check=True)
    assert int(done.stdout) == zlib.crc32(b"onetwo")


def test_threads_may_call_the_first_while_others_import_more_of_them() -> None:
    code = (
        _BEGIN
        + """
import importlib, pkgutil, threading
import tierlog.index.kernels, tierlog.tiering.kernels
names = [
    f"{package.__name__}.{each.name}"
    for package in (tierlog.tiering.kernels, tierlog.index.kernels)
    for each in pkgutil.iter_modules(package.__path__)
    if each.name != "precompile"
]
start, found = threading.Barrier(len(names) + 4), []

def call():
    start.wait()
    found.append(joined_crc32(one, two, 3))

def take(name):
    start.wait()
    importlib.import_module(name)
    found.append(joined_crc32(one, two, 3))

threads = [threading.Thread(target=call) for _ in range(4)]
threads += [threading.Thread(target=take, args=(name,)) for name in names]
for each in threads:
    each.start()
for each in threads:
    each.join(60)
left = {type(value).__name__ for name in names for value in vars(sys.modules[name]).values()} & {"Declared"}
print(len(found) == len(threads), set(found) == {zlib.crc32(b"onetwo")}, left)
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split("\n")[0] == "True True set()"


def test_what_is_done_before_the_first_call_of_a_kernel_is_bounded_all_together() -> None:
    code = (
        _BEGIN
        + """
from tierlog.tiering.kernels.primitives import is_sooner_without
print(is_sooner_without(1e9), sum(is_sooner_without(1000) for _ in range(1000)))
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False 100\n"


def test_kernels_are_called_once_they_are_there() -> None:
    code = (
        _BEGIN
        + """
from tierlog.tiering.kernels.primitives import is_sooner_without
print(is_sooner_without(1))
crc32_of(b"one")
print(is_sooner_without(1))
"""
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\nFalse\n"
