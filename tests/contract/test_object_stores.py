"""The contract suite over each backend, and what is particular to one of them."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.object_store_contract import PART_BYTES, Backend, FailedStoreContract, ObjectStoreContract
from tests.support.faulty_store import FaultyObjectStore
from tests.support.s3_server import S3Server
from tiering.clock import ManualClock, SystemClock
from tiering.cold import local_files
from tiering.cold.local import LocalObjectStore
from tiering.cold.memory import MemoryObjectStore
from tiering.cold.metered import Meter, MeteredObjectStore
from tiering.cold.object_store import ObjectStore, PendingUpload
from tiering.cold.s3 import S3ObjectStore
from tiering.errors import (
    ChecksumMismatchError,
    DiskFullError,
    InvalidRequestError,
    ObjectNotFoundError,
    ObjectStoreUnavailableError,
    ThrottledError,
)

_REPOSITORY = Path(__file__).parents[2]


def around(wrap: Callable[[ObjectStore], ObjectStore]) -> Backend:
    """A wrapper of a memory store, and the memory of that store."""
    store = MemoryObjectStore(ManualClock())

    def raw_get(key: str) -> bytes | None:
        found = store._objects.get(key)
        return None if found is None else found[0]

    def raw_set(key: str, data: bytes) -> None:
        with store._lock:
            store._store(key, data)

    return Backend(wrap(store), raw_set, raw_get)


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(lambda store: store)

    def test_the_time_is_that_of_the_clock(self) -> None:
        clock = ManualClock(1_000)
        store = MemoryObjectStore(clock)
        store.put("k", b"")
        clock.advance(5)
        assert store.head("k").modified_ms == 1_000
        store.put("k", b"")
        assert store.head("k").modified_ms == 1_005


class TestMetered(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(lambda inner: MeteredObjectStore(inner, Meter()))


class TestFaultyWithoutFaults(ObjectStoreContract):
    @pytest.fixture
    def backend(self) -> Backend:
        return around(FaultyObjectStore)


class TestFaulty(FailedStoreContract):
    @pytest.fixture
    def faulty(self) -> FaultyObjectStore:
        return FaultyObjectStore(MemoryObjectStore(ManualClock()))

    @pytest.fixture
    def failed_store(self, faulty: FaultyObjectStore) -> ObjectStore:
        faulty.die()
        return faulty

    def test_a_fault_strikes_its_operation_and_key_as_often_as_told(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_before("put", "log/*", times=2)
        faulty.put("index/x", b"")
        for _ in range(2):
            with pytest.raises(ObjectStoreUnavailableError):
                faulty.put("log/x", b"")
        assert [info.key for info in faulty.inner.list("")] == ["index/x"]
        faulty.put("log/x", b"")

    def test_a_lost_answer_leaves_the_write_done(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_after("put", error=ThrottledError("slow down"))
        with pytest.raises(ThrottledError):
            faulty.put("k", b"x", if_absent=True)
        assert faulty.get("k")[0] == b"x"

    def test_a_short_read_is_silent(self, faulty: FaultyObjectStore) -> None:
        faulty.put("k", b"12345")
        faulty.short_read("*", times=2, cut_bytes=2)
        assert faulty.get("k")[0] == b"123"
        assert faulty.get_range("k", 1, 4) == b"2"
        assert faulty.get("k")[0] == b"12345"

    def test_a_held_call_waits_for_its_release(self, faulty: FaultyObjectStore) -> None:
        hold = faulty.hold("put")
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(faulty.put, "k", b"x")
            hold.wait_until_reached()
            assert list(faulty.list("")) == []
            hold.release()
            assert result.result().key == "k"

    def test_healing_ends_everything(self, faulty: FaultyObjectStore) -> None:
        faulty.fail_before("*", times=None)
        faulty.die()
        faulty.heal()
        faulty.put("k", b"x")
        assert [(call.operation, call.key) for call in faulty.calls] == [("put", "k")]


class TestLocal(ObjectStoreContract, FailedStoreContract):
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

        monkeypatch.setattr(local_files, "sync", record_sync)
        monkeypatch.setattr(local_files, "publish", record_publish)
        local.put("a/b/c", b"x")
        assert steps[0].startswith("sync /.tmp/")
        assert steps[1:] == ["publish /a/b/c", "sync /a/b", "sync /a", "sync "]

    def test_nobody_writes_between_a_condition_and_its_write(
        self, local: LocalObjectStore, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another store on the same directory stands for another process: they share the lock file only."""
        other = LocalObjectStore(directory, ManualClock())
        etag = local.put("k", b"one").etag
        publish, refused, patch = local_files.publish, [], pytest.MonkeyPatch()

        def interfere(source: Path, target: Path) -> None:
            patch.undo()
            for attempt in (lambda: other.put("k", b"three"), lambda: other.delete("k")):
                with pytest.raises(ObjectStoreUnavailableError):
                    attempt()
                refused.append(attempt)
            publish(source, target)

        monkeypatch.setattr(local_files, "_LOCK_TRIES", 1)
        patch.setattr(local_files, "publish", interfere)
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


class TestS3(ObjectStoreContract, FailedStoreContract):
    @pytest.fixture
    def bucket(self, s3_server: S3Server) -> str:
        return s3_server.new_bucket()

    @pytest.fixture
    def backend(self, s3_server: S3Server, bucket: str) -> Backend:
        client = s3_server.client
        store = S3ObjectStore(bucket, "the/root", endpoint_url=s3_server.endpoint_url, part_bytes=PART_BYTES)

        def raw_set(key: str, data: bytes) -> None:
            client.put_object(Bucket=bucket, Key=f"the/root/{key}", Body=data)

        def raw_get(key: str) -> bytes | None:
            try:
                data: bytes = client.get_object(Bucket=bucket, Key=f"the/root/{key}")["Body"].read()
            except client.exceptions.NoSuchKey:
                return None
            return data

        return Backend(store, raw_set, raw_get)

    @pytest.fixture
    def failed_store(self, s3_server: S3Server) -> Iterator[ObjectStore]:
        """A port that nobody listens on, and that nobody else can take meanwhile."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            endpoint_url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            store = S3ObjectStore(
                "bucket",
                endpoint_url=endpoint_url,
                part_bytes=PART_BYTES,
                connect_timeout_s=1,
                read_timeout_s=1,
                max_attempts=1,
            )
            yield store
            store.close()

    def test_a_missing_bucket_is_not_a_missing_object(self, s3_server: S3Server) -> None:
        for call in ("head", "get"):
            store = S3ObjectStore("no-such-bucket", endpoint_url=s3_server.endpoint_url)
            with pytest.raises(InvalidRequestError) as caught:
                getattr(store, call)("k")
            assert caught.value.hint is not None
            assert "bucket" in caught.value.hint
        with pytest.raises(InvalidRequestError):
            store.put("k", b"", if_match="x")

    def test_a_server_that_keeps_silent_is_unavailable(self, s3_server: S3Server) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            store = S3ObjectStore(
                "bucket",
                endpoint_url=f"http://127.0.0.1:{silent.getsockname()[1]}",
                read_timeout_s=0.2,
                max_attempts=1,
            )
            with pytest.raises(ObjectStoreUnavailableError):
                store.head("k")

    def test_objects_beside_the_prefix_are_not_listed(self, s3_server: S3Server, bucket: str) -> None:
        for key in ("root/x", "root-2/x", "root/", "other", "root/bad//key"):
            s3_server.client.put_object(Bucket=bucket, Key=key, Body=b"")
        store = S3ObjectStore(bucket, "root", endpoint_url=s3_server.endpoint_url)
        assert [info.key for info in store.list("")] == ["x"]

    def test_the_server_knows_the_checksum_of_a_put_and_of_an_upload(self, backend: Backend) -> None:
        backend.store.put("put", b"abc")
        backend.store.upload("upload", [bytes(PART_BYTES), b"abc"])
        for key in ("put", "upload"):
            assert backend.store.head(key).crc32 is not None

    def test_a_checksum_made_from_parts_is_not_taken_for_one_of_the_object(
        self, s3_server: S3Server, bucket: str
    ) -> None:
        client, where = s3_server.client, {"Bucket": bucket, "Key": "k"}
        upload = {
            **where,
            "UploadId": client.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")["UploadId"],
        }
        part = client.upload_part(**upload, PartNumber=1, Body=b"abc", ChecksumAlgorithm="CRC32")
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
        store = S3ObjectStore(bucket, endpoint_url=s3_server.endpoint_url)
        assert store.head("k").crc32 is None
        assert store.get("k")[0] == b"abc"

    def test_a_server_without_full_object_checksums_gets_none(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # moto keeps the wish for a checksum among the metadata of the upload; now it does not hear it.
        monkeypatch.setattr("moto.s3.responses.metadata_from_headers", lambda _: {})
        store = backend.store
        assert isinstance(store, S3ObjectStore)
        call, made = store._uploads._call, []

        def record(operation: str, key: str, tolerated: str = "", **arguments: object) -> object:
            made.append((operation, any(name.startswith("Checksum") for name in arguments)))
            return call(operation, key, tolerated, **arguments)

        monkeypatch.setattr(store._uploads, "_call", record)
        for _ in range(2):
            assert store.upload("k", [bytes(PART_BYTES), b"abc"]).crc32 is None
        assert backend.raw_get("k") == bytes(PART_BYTES) + b"abc"
        assert list(store.list_uploads("")) == []
        plain = [
            ("create_multipart_upload", False),
            *[("upload_part", False)] * 2,
            ("complete_multipart_upload", False),
        ]
        asked_once = [("create_multipart_upload", True), ("abort_multipart_upload", False)]
        assert made == asked_once + plain * 2

    def test_a_lost_answer_to_the_end_of_an_upload_is_found_out(
        self, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = backend.store
        assert isinstance(store, S3ObjectStore)
        call = store._uploads._call

        def lose(operation: str, key: str, tolerated: str = "", **arguments: object) -> object:
            answer = call(operation, key, tolerated, **arguments)
            if operation == "complete_multipart_upload":
                raise ObjectStoreUnavailableError("scripted lost answer")
            return answer

        monkeypatch.setattr(store._uploads, "_call", lose)
        info = store.upload("k", [bytes(PART_BYTES), b"abc"])
        assert info.size_bytes == PART_BYTES + 3
        assert backend.raw_get("k") == bytes(PART_BYTES) + b"abc"

    def test_a_prefix_that_leaves_no_room_for_keys_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError):
            S3ObjectStore("bucket", "p" * 121)

    def test_an_endpoint_that_is_no_url_is_refused(self) -> None:
        with pytest.raises(InvalidRequestError):
            S3ObjectStore("bucket", endpoint_url="not a url")

    def test_the_sdk_is_loaded_only_by_a_store(self) -> None:
        script = "import sys, tiering.cold.urls; print(sorted({'boto3', 'botocore'} & set(sys.modules)))"
        found = subprocess.run(
            [sys.executable, "-c", script],
            cwd=_REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert found.stdout == "[]\n"

    def test_not_found_after_the_bucket_was_seen(self, backend: Backend) -> None:
        backend.store.put("k", b"")
        with pytest.raises(ObjectNotFoundError):
            backend.store.head("other")
