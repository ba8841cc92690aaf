"""One URL names one store, however it is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog.tiering.base.clock import ManualClock
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.objects.local import LocalObjectStore
from tierlog.tiering.objects.memory import MemoryObjectStore
from tierlog.tiering.objects.s3_client import S3Limits
from tierlog.tiering.objects.s3_store import S3ObjectStore
from tierlog.tiering.objects.urls import canonical_url, open_object_store


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("file:///a/b", "file:///a/b"),
        ("FILE:///a/b/", "file:///a/b"),
        ("file:////a//b/./c/..", "file:///a/b"),
        ("file:///a/b c%20#?", "file:///a/b c%20#?"),
        ("/a/b/", "file:///a/b"),
        ("//a/../b ://c", "file:///b :/c"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://my.bucket-1/some/prefix/", "s3://my.bucket-1/some/prefix"),
        ("memory://name", "memory://name"),
        ("memory://name/", "memory://name"),
    ],
)
def test_spellings_have_one_canonical_form(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


def test_relative_paths_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert canonical_url("file://./x/") == f"file://{tmp_path}/here/x"
    assert canonical_url("file://.") == f"file://{tmp_path}/here"
    assert canonical_url("file://../x") == f"file://{tmp_path}/x"
    assert canonical_url("./x/") == f"file://{tmp_path}/here/x"
    assert canonical_url("../x") == f"file://{tmp_path}/x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "./../../../../../../../../..",
        "a/b",
        "bucket",
        "file:/a",
        "file://",
        "file:///",
        "file:///a/..",
        "file://host/a",
        "file:///a\0b",
        "gs://bucket/x",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://Bucket",
        "s3://b",
        "s3://under_score",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/x?region=eu",
        "memory://",
        "memory://a/b",
    ],
    ids=repr,
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        canonical_url(url)
    with pytest.raises(InvalidRequestError):
        open_object_store(url, clock=ManualClock())


@pytest.mark.parametrize("url", ["gs://bucket/x", "a/b", "file://host/a"])
def test_a_refusal_says_what_to_write(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        canonical_url(url)
    assert caught.value.hint is not None
    assert "file:///" in caught.value.hint


def test_file_opens_a_directory_and_makes_it(tmp_path: Path) -> None:
    store = open_object_store(f"file://{tmp_path}/new/store", clock=ManualClock())
    assert isinstance(store, LocalObjectStore)
    store.put("a/b", b"x")
    assert (tmp_path / "new" / "store" / "a" / "b").read_bytes() == b"x"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidRequestError):
            open_object_store(f"file://{path}", clock=ManualClock())


def test_memory_is_shared_by_name() -> None:
    clock = ManualClock()
    store = open_object_store("memory://test-urls-a", clock=clock)
    assert isinstance(store, MemoryObjectStore)
    store.put("k", b"x")
    store.close()
    assert open_object_store("memory://test-urls-a/", clock=clock).get("k")[0] == b"x"
    assert list(open_object_store("memory://test-urls-b", clock=clock).list("")) == []


def test_s3_opens_without_asking_the_server() -> None:
    store = open_object_store(
        "s3://bucket/some/prefix",
        clock=ManualClock(),
        endpoint_url="http://127.0.0.1:9",
        limits=S3Limits(connections=2, max_attempts=1),
    )
    assert isinstance(store, S3ObjectStore)
    store.close()
