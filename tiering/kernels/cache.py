"""The cache of compiled kernels, and the processor that they are compiled for.

Three cases, told apart when the first kernel is declared, by :func:`choose`:

- ``NUMBA_CACHE_DIR`` is set: numba does as it is told, and compiles for the processor that it finds.
- The installation ships compiled kernels (``<prefix>/share/tierlog/kernels-…``, which an image has) and this processor
  can run them: they are used. The folder may be read-only, which numba does not allow for, so numba gets a folder of
  its own with links to them; what it compiles beside them goes there.
- Otherwise they are compiled for this processor when they are first called, and kept in the user's cache folder.

numba looks at the file that holds a kernel only, so the folder's name carries a hash of all shared kernel sources:
a changed helper can never meet code compiled against the old one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding
import numba

from tierlog.tiering.base.errors import StoreError

TARGET_FILE = "target.json"


@dataclass(frozen=True)
class Processor:
    """A processor that code is compiled for: LLVM's name of it, and the features that it must have."""

    name: str
    features: tuple[str, ...]
    #: Those of them that the name does not stand for.
    added: tuple[str, ...] = ()

    def missing_in(self, host: Mapping[str, bool]) -> list[str]:
        """Returns what the host lacks of it, sorted; empty if it can run the code."""
        return sorted(feature for feature in self.features if not host.get(feature, False))


#: Compiled for by an image, by the machine's name. x86-64-v3 is what Intel has sold since 2013 (Haswell) and AMD since
#: 2015 (Excavator) for servers; the names are those under which LLVM reports what a host has.
BASELINES = {
    "x86_64": Processor(
        "x86-64-v3",
        (
            "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "pclmul", "popcnt", "sahf", "sse3",
            "sse4.1", "sse4.2", "ssse3",
        ),
        ("pclmul",),  # for checksums; all these processors have it
    ),
    "aarch64": Processor("generic", ("neon",)),
}  # fmt: skip


@dataclass(frozen=True)
class CacheChoice:
    """The result of :func:`choose`.

    Numba's folder, whether it began with shipped code, and why not if it could have.
    """

    folder: Path
    is_shipped: bool
    reason: str | None = None


def source_digest() -> str:
    """16 hex digits that change with any shared kernel source."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def shipped_folder(prefix: Path) -> Path:
    """Returns where an installation at ``prefix`` ships compiled kernels of the sources at hand."""
    return prefix / "share" / "tierlog" / f"kernels-{source_digest()}"


def use_target(target: Processor) -> None:
    """Compiles for ``target`` from now on, and takes what was compiled for it, whatever processor this is."""
    numba.config.CPU_NAME = target.name
    numba.config.CPU_FEATURES = ",".join(f"+{feature}" for feature in target.added)


def write_target(folder: Path, target: Processor) -> None:
    """Completes a folder of compiled kernels, so that :func:`choose` takes it."""
    (folder / TARGET_FILE).write_text(json.dumps({**_versions(), "cpu": target.name}) + "\n")


def choose(environment: Mapping[str, str], prefix: Path) -> CacheChoice | None:
    """Tells numba where its cache is; None if the environment already does.

    Raises :class:`StoreError` if there is no folder that could be written to.
    """
    if environment.get("NUMBA_CACHE_DIR"):
        return None
    shipped = shipped_folder(prefix)
    reason = None
    target = None
    if (shipped / TARGET_FILE).is_file():
        target = BASELINES.get(platform.machine())
        reason = _why_not(shipped, target, environment)
    writable = _writable(environment, shipped.name)
    is_shipped = target is not None and reason is None
    if target is not None and reason is None:
        writable = writable / target.name
        _link(shipped, writable)
        use_target(target)
    numba.config.CACHE_DIR = str(writable)  # read at each cache look-up, before the first kernel exists
    return CacheChoice(writable, is_shipped, reason)


def folder_in_use(chosen: CacheChoice | None) -> Path:
    """Returns where numba keeps what it compiles in this process."""
    return Path(numba.config.CACHE_DIR) if chosen is None else chosen.folder


def compiler() -> str:
    """Returns what compiles here, and for which processor: code made by another is of no use."""
    cpu = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    return json.dumps({**_versions(), "cpu": cpu}, sort_keys=True)


def _versions() -> dict[str, Any]:
    return {"numba": numba.__version__, "llvmlite": llvmlite.__version__, "python": platform.python_version()}


def _why_not(shipped: Path, target: Processor | None, environment: Mapping[str, str]) -> str | None:
    made_for = json.loads((shipped / TARGET_FILE).read_text())
    if target is None or made_for != {**_versions(), "cpu": target.name}:
        return f"the shipped kernels were compiled for {made_for.get('cpu')} by other versions or for another machine"
    if environment.get("NUMBA_CPU_NAME"):
        return "NUMBA_CPU_NAME asks for another processor than the shipped kernels were compiled for"
    lacking = target.missing_in(llvmlite.binding.get_host_cpu_features())
    if lacking:
        return f"this processor lacks {', '.join(lacking)}, which the shipped kernels need"
    return None


def _writable(environment: Mapping[str, str], name: str) -> Path:
    """Returns the user's cache folder, or one in the folder for temporary files where there is none."""
    given = environment.get("XDG_CACHE_HOME")
    tried = []
    for parent in (Path(given) if given else Path.home() / ".cache", None):
        try:
            folder = _temporary_parent() if parent is None else parent / "tierlog"
            (folder / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder / name).close()
        except OSError as error:
            tried.append(str(error))
        else:
            return folder / name
    raise StoreError(
        f"there is no folder that compiled code can be kept in: {'; '.join(tried)}",
        hint="mount a tmpfs on /tmp, or set XDG_CACHE_HOME to a folder that can be written to",
    )


def _temporary_parent() -> Path:
    """A folder of this user alone: code is loaded from it. Another one is made if somebody else got that name first."""
    folder = Path(tempfile.gettempdir()) / f"tierlog-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix=f"tierlog-{os.geteuid()}-"))


def _link(shipped: Path, folder: Path) -> None:
    """Links to all files; numba replaces a file as a whole, so it never writes through one."""
    for source in shipped.glob("*/*"):
        link = folder / source.parent.name / source.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)  # of an image before this one
            with contextlib.suppress(FileExistsError):  # another process was faster
                link.symlink_to(source)


#: Of this process.
CHOICE = choose(os.environ, Path(sys.prefix))
