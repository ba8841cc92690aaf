"""The contract suite over a local directory, and what is particular to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.cluster_contract import ClusterContract
from tests.contract.contract_base import Backend
from tests.contract.object_store_contract import FailedStoreContract, ObjectStoreContract
from tierlog.tiering.base.clock import ManualClock, SystemClock
from tierlog.tiering.base.errors import (
    ChecksumMismatchError,
    DiskFullError,
    InvalidRequestError,
    ObjectStoreUnavailableError,
)
from tierlog.tiering.objects import local as module
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.object_store import ObjectStore, PendingUpload

_REPOSITORY = Path(__file__).parents[2]


class TestLocal(ObjectStoreContract, FailedStoreContract, ClusterContract):
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        return tmp_path / "some" / "store"

    @pytest.fixture
    def local(self, directory: Path) -> LocalObjectStore:
        return LocalObjectStore(directory, ManualClock())

    @pytest.fixture
    def backend(self, local: LocalObjectStore, directory: Path) -> Backend:
        def raw_set(key: str, data: bytes) -> None:
            path = directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        def raw_get(key: str) -> bytes | None:
            path = directory / key
            return path.read_bytes() if path.exists() else None

        return Backend(local, raw_set, raw_get)

    @pytest.fixture
    def failed_store(self, local: LocalObjectStore, directory: Path) -> ObjectStore:
        """As after the disk was unmounted: its mount point is there, and empty."""
        local.put("k", b"x")
        shutil.rmtree(directory)
        directory.mkdir()
        return local

    def test_the_time_is_that_of_the_clock(self, directory: Path) -> None:
        clock = ManualClock(1_700_000_000_123)
        store = LocalObjectStore(directory, clock)
        info = store.put("k", b"")
        clock.advance(1)
        assert store.head("k") == info
        assert info.modified_ms == 1_700_000_000_123

    def test_a_change_by_other_hands_is_seen(self, local: LocalObjectStore, directory: Path) -> None:
        etag = local.put("k", b"ab").etag
        with (directory / "k").open("r+b") as file:
            file.write(b"x")
        assert local.head("k").etag != etag
        assert local.get("k")[0] == b"xb"

    def test_rot_that_left_no_trace_fails_the_checksum(self, local: LocalObjectStore, directory: Path) -> None:
        modified_ns = local.put("k", b"ab").modified_ms * 1_000_000
        with (directory / "k").open("r+b") as file:
            file.write(b"x")
        os.utime(directory / "k", ns=(modified_ns, modified_ns))
        with pytest.raises(ChecksumMismatchError):
            local.get("k")

    def test_it_works_without_extended_attributes(
        self, local: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "not supported")

        monkeypatch.setattr(os, "setxattr", refuse)
        info = local.upload("k", [b"a", b"b"])
        assert info == local.head("k") == local.get("k")[1]

    def test_an_object_cannot_be_a_folder_too(self, local: LocalObjectStore) -> None:
        local.put("a/b", b"x")
        with pytest.raises(InvalidRequestError):
            local.put("a", b"x")
        with pytest.raises(InvalidRequestError):
            local.put("a", b"x", if_absent=True)
        with pytest.raises(InvalidRequestError):
            local.put("a/b/c", b"x")
        assert [info.key for info in local.list("")] == ["a/b"]
        local.delete("a/b")
        local.put("a", b"x")

    def test_keys_of_the_store_itself_are_refused(self, local: LocalObjectStore) -> None:
        with pytest.raises(InvalidRequestError):
            local.put(".tmp/lock", b"x")
        with pytest.raises(InvalidRequestError):
            local.abort_upload(PendingUpload("k", "../../k", 0))

    def test_temporary_files_of_a_crash_are_listed_and_aborted(self, local: LocalObjectStore, directory: Path) -> None:
        (directory / ".tmp" / "aa.key").write_text("log/x")
        (directory / ".tmp" / "aa.data").write_bytes(b"half")
        (directory / ".tmp" / "bb.data").write_bytes(b"its key was not synced")
        assert [info.key for info in local.list("")] == []
        pending = list(local.list_uploads("log/"))
        assert [(upload.key, upload.upload_id) for upload in pending] == [("log/x", "aa"), ("", "bb")]
        assert [upload.upload_id for upload in local.list_uploads("index/")] == ["bb"]
        for upload in pending:
            local.abort_upload(upload)
        assert list(local.list_uploads("")) == []

    def test_a_write_leaves_no_temporary_file(self, local: LocalObjectStore, directory: Path) -> None:
        local.put("a", b"x", if_absent=True)
        local.put("a", b"y")
        local.upload("b", [b"x"])
        assert [path.name for path in (directory / ".tmp").iterdir()] == ["lock"]

    def test_deleting_removes_empty_folders_only(self, local: LocalObjectStore, directory: Path) -> None:
        local.put("a/b/c", b"x")
        local.put("a/d", b"x")
        local.delete("a/b/c")
        assert not (directory / "a" / "b").exists()
        assert (directory / "a" / "d").exists()

    def test_a_full_disk_has_its_own_error(
        self, local: LocalObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "no space left")

        local.put("k", b"old")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(DiskFullError):
                local.put("k", b"new")
            with pytest.raises(DiskFullError):
                local.upload("k", [b"new"])
        assert local.get("k")[0] == b"old"
        assert list(local.list_uploads("")) == []

    def test_a_write_is_synced_before_it_is_named_and_its_folders_after(
        self, local: LocalObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[str] = []

        def record_sync(fd: int) -> None:
            steps.append("sync " + os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(directory)))

        def record_publish(source: Path, target: Path) -> None:
            steps.append(f"publish /{target.relative_to(directory)}")
            source.rename(target)

        monkeypatch.setattr(module, "sync", record_sync)
        monkeypatch.setattr(module, "publish", record_publish)
        local.put("a/b/c", b"x")
        assert steps[0].startswith("sync /.tmp/")
        assert steps[1:] == ["publish /a/b/c", "sync /a/b", "sync /a", "sync "]

    def test_nobody_writes_between_a_condition_and_its_write(
        self, local: LocalObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another store on the same directory stands for another process: they share the lock file only."""
        other = LocalObjectStore(directory, ManualClock())
        etag = local.put("k", b"one").etag
        publish, refused, patch = module.publish, [], pytest.MonkeyPatch()

        def interfere(source: Path, target: Path) -> None:
            patch.undo()
            for attempt in (lambda: other.put("k", b"three"), lambda: other.delete("k")):
                with pytest.raises(ObjectStoreUnavailableError):
                    attempt()
                refused.append(attempt)
            publish(source, target)

        monkeypatch.setattr(module, "_LOCK_TRIES", 1)
        patch.setattr(module, "publish", interfere)
        local.put("k", b"two", if_match=etag)
        assert len(refused) == 2
        assert other.get("k")[0] == b"two"

    def test_racing_processes_have_one_winner_each_time(self, directory: Path) -> None:
        """Two processes claim the same keys, and count up one object by compare-and-swap."""
        store = LocalObjectStore(directory, SystemClock())
        store.put("count", b"0")
        script = Path(__file__).with_name("local_racer.py")
        environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
        racers = [
            subprocess.Popen(
                [sys.executable, str(script), str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
            )
            for _ in range(2)
        ]
        try:
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
                racer.stdin.flush()
            results = [json.loads(racer.communicate(timeout=120)[0]) for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
                racer.communicate()
        won = [set(result["won"]) for result in results]
        assert not won[0] & won[1]
        assert won[0] | won[1] == {f"claim/{number}" for number in range(40)}
        assert store.get("count")[0] == b"%d" % sum(result["added"] for result in results)
