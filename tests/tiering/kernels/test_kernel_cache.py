"""Compiled kernels that an installation ships are used where the processor can run them, and never written to."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from tierlog.index.kernels.precompile import kernels
from tierlog.service.cli import kernel_compilation
from tierlog.service.cli.kernel_compilation import compile_at_first_start
from tierlog.tiering.base.errors import StoreError
from tierlog.tiering.kernels import cache

_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _numba_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHE_DIR", "CPU_NAME", "CPU_FEATURES"):
        monkeypatch.setattr(numba.config, name, getattr(numba.config, name))


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that ships one file of compiled code, for a processor that needs nothing."""
    monkeypatch.setitem(cache.BASELINES, platform.machine(), cache.Processor("generic", ()))
    shipped = cache.shipped_folder(tmp_path / "prefix")
    (shipped / "kernels_1").mkdir(parents=True)
    (shipped / "kernels_1" / "scan.nbc").write_bytes(b"shipped")
    cache.write_target(shipped, cache.Processor("generic", ()))
    return tmp_path / "prefix"


def _choose(prefix: Path, home: Path, **more: str) -> cache.CacheChoice:
    chosen = cache.choose({"XDG_CACHE_HOME": str(home), **more}, prefix)
    assert chosen is not None
    return chosen


def test_shipped_kernels_are_used_and_what_is_compiled_beside_them_goes_elsewhere(prefix: Path, tmp_path: Path) -> None:
    shipped = cache.shipped_folder(prefix) / "kernels_1" / "scan.nbc"
    for _ in range(2):  # a second start finds the links
        chosen = _choose(prefix, tmp_path / "home")
        assert chosen.is_shipped
        assert str(chosen.folder) == numba.config.CACHE_DIR
        assert (numba.config.CPU_NAME, numba.config.CPU_FEATURES) == ("generic", "")
        link = chosen.folder / "kernels_1" / "scan.nbc"
        assert link.resolve() == shipped
    half = link.with_name("half")
    half.write_bytes(b"compiled here")
    half.replace(link)  # as numba does
    assert shipped.read_bytes() == b"shipped"
    assert _choose(prefix, tmp_path / "home").folder.joinpath("kernels_1", "scan.nbc").read_bytes() == b"compiled here"


def test_links_of_an_image_that_is_gone_are_made_again(prefix: Path, tmp_path: Path) -> None:
    link = _choose(prefix, tmp_path / "home").folder / "kernels_1" / "scan.nbc"
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    _choose(prefix, tmp_path / "home")
    assert link.read_bytes() == b"shipped"


def test_a_processor_that_lacks_what_they_need_compiles_its_own_and_says_so(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cache.BASELINES, platform.machine(), cache.Processor("generic", ("tensor-9",)))
    name = numba.config.CPU_NAME
    chosen = _choose(prefix, tmp_path / "home")
    assert not chosen.is_shipped
    assert chosen.reason == "this processor lacks tensor-9, which the shipped kernels need"
    assert name == numba.config.CPU_NAME
    assert not list(chosen.folder.iterdir())
    said: list[str] = []

    def compile_all(progress: Callable[[int, int], None]) -> bool:
        for number in range(1, 26):
            progress(number, 25)
        return True

    compile_at_first_start(chosen, said.append, compile_all)
    assert said[0].startswith("this processor lacks tensor-9")
    assert said[-1].startswith("compiled 25 of 25 kernels")


def test_the_first_start_of_all_shows_how_far_it_is_and_no_later_one_compiles(prefix: Path, tmp_path: Path) -> None:
    shutil.rmtree(prefix)
    chosen = _choose(prefix, tmp_path / "home")
    said: list[str] = []
    calls: list[int] = []

    def compile_all(progress: Callable[[int, int], None]) -> bool:
        calls.append(1)
        for number in range(1, 13):
            progress(number, 12)
        return True

    compile_at_first_start(chosen, said.append, compile_all)
    assert [line.split(" kernels")[0] for line in said] == [
        "compiled 5 of 12",
        "compiled 10 of 12",
        "compiled 12 of 12",
    ]
    compile_at_first_start(chosen, said.append, compile_all)
    assert len(calls) == 1


def test_a_compilation_that_was_cut_off_is_taken_up_by_the_next_start(prefix: Path, tmp_path: Path) -> None:
    shutil.rmtree(prefix)
    chosen = _choose(prefix, tmp_path / "home")
    outcomes = [False, True]
    for _ in range(3):
        compile_at_first_start(chosen, print, lambda progress: outcomes.pop(0))
    assert outcomes == []


def test_kernels_are_compiled_by_a_process_that_ends_and_leaves_no_compiler_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler leaves 250 MB behind, which an idle service kept."""
    begun: list[list[str]] = []
    line = "import sys; print(1, 2, flush=True); print(2, 2, flush=True); sys.exit(int(sys.argv[1]))"
    real = subprocess.Popen

    def popen(command: list[str], **named: Any) -> Any:
        begun.append(command)
        return real([sys.executable, "-c", line, str(len(begun) - 1)], **named)

    monkeypatch.setattr(subprocess, "Popen", popen)
    told: list[tuple[int, int]] = []
    assert kernel_compilation._compile_beside(lambda done, of: told.append((done, of)))
    assert told == [(1, 2), (2, 2)]
    assert begun == [[sys.executable, "-P", "-m", kernel_compilation.__name__]], "whatever lies in this directory"
    assert not kernel_compilation._compile_beside(lambda done, of: None), "it failed"


def test_kernels_that_are_shipped_need_no_first_start(prefix: Path, tmp_path: Path) -> None:
    def compile_all(progress: Callable[[int, int], None]) -> bool:
        raise AssertionError("there was nothing to compile")

    compile_at_first_start(_choose(prefix, tmp_path / "home"), print, compile_all)


def test_the_same_sources_at_another_place_are_compiled_again(
    prefix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba keeps code by the path of its source: the second of two installations began with every kernel missing."""
    compiled: list[str] = []
    (tmp_path / "tiering").mkdir()
    (tmp_path / "tiering" / "sums.py").write_text("# a kernel")
    shutil.copytree(tmp_path / "tiering", tmp_path / "elsewhere")
    for place in ("tiering", "tiering", "elsewhere"):

        def compile_all(progress: Callable[[int, int], None], place: str = place) -> bool:
            compiled.append(place)
            return True

        monkeypatch.setattr(kernel_compilation, "_KERNELS", (tmp_path / place,))
        compile_at_first_start(_choose(tmp_path, tmp_path / "home"), print, compile_all)
    assert compiled == ["tiering", "elsewhere"]


def test_kernels_of_other_versions_are_not_taken(prefix: Path, tmp_path: Path) -> None:
    target = cache.shipped_folder(prefix) / cache.TARGET_FILE
    target.write_text(json.dumps({**json.loads(target.read_text()), "llvmlite": "0.1"}))
    chosen = _choose(prefix, tmp_path / "home")
    assert not chosen.is_shipped
    assert "other versions" in str(chosen.reason)


def test_whoever_names_a_processor_or_a_folder_is_obeyed(prefix: Path, tmp_path: Path) -> None:
    assert not _choose(prefix, tmp_path / "home", NUMBA_CPU_NAME="znver4").is_shipped
    assert cache.choose({"NUMBA_CACHE_DIR": str(tmp_path)}, prefix) is None


def test_without_a_home_it_is_a_folder_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    first = _choose(tmp_path, no_folder).folder.parent
    assert first.stat().st_mode & 0o777 == 0o700
    first.chmod(0o777)  # anybody could have put code there
    second = _choose(tmp_path, no_folder).folder.parent
    assert second != first
    assert second.stat().st_mode & 0o777 == 0o700


def test_without_any_folder_it_says_what_to_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(no_folder))
    with pytest.raises(StoreError, match="mount a tmpfs on /tmp"):
        cache.choose({"XDG_CACHE_HOME": str(no_folder)}, tmp_path)


def test_what_a_processor_lacks_is_named() -> None:
    target = cache.BASELINES["x86_64"]
    assert target.missing_in(dict.fromkeys(target.features, True)) == []
    assert target.missing_in({**dict.fromkeys(target.features, True), "avx2": False}) == ["avx2"]
    assert target.missing_in({}) == sorted(target.features)


def test_every_kernel_is_compiled_ahead() -> None:
    sources = [*(_ROOT / "tiering/kernels").glob("*.py"), *(_ROOT / "index/kernels").glob("*.py")]
    declaration = re.compile(r"^@(?:kernel|struct_kernel\([^)]*\)(?:  # fmt: skip)?)\ndef (\w+)", re.M)
    declared = {name for source in sources for name in declaration.findall(source.read_text())}
    assert {kernel.__name__ for kernel in kernels()} == declared
    assert declared
