"""``tierlog cluster`` and ``tierlog route``, by a service and by the bucket alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.service.served import served_app
from tests.support.stores.engines import tiny_settings
from tierlog.service.api.application.app import create_app
from tierlog.service.api.application.process import join_cluster
from tierlog.service.cluster.table import ClusterTableStore, StoreEntry
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, NOTHING
from tierlog.service.main import main
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.randomness import SystemRandomness
from tierlog.tiering.objects.local import LocalObjectStore

BAD = 2


def asked(capsys: pytest.CaptureFixture[str], *argv: str, code: int = DONE) -> Any:
    assert main([*argv, "--format", "json"]) == code, capsys.readouterr().err
    out = capsys.readouterr().out
    return json.loads(out) if out else None


def make_cluster(folder: Path) -> list[str]:
    """A table of two stores; the flags that name it."""
    folder.mkdir()
    tables = ClusterTableStore(LocalObjectStore(str(folder), SystemClock()), SystemClock(), SystemRandomness())
    for store_id in ("a", "b"):
        entry = StoreEntry(f"http://{store_id}:8080", 0, "v")
        tables.change(lambda table, store_id=store_id, entry=entry: table.enter(store_id, entry))  # type: ignore[misc]
    return ["--cold", f"file://{folder}"]


def check_commands(capsys: pytest.CaptureFixture[str], where: list[str]) -> None:
    """Everything that can be asked of and done to two stores, ``a`` and ``b``."""
    told = asked(capsys, "cluster", *where)
    assert [(one["store_id"], one["closed"]) for one in told["stores"]] == [("a", False), ("b", False)]
    home = asked(capsys, "route", "orders", *where)
    other = {"a": "b", "b": "a"}[home["store_id"]]
    routed = asked(capsys, "route", "orders", other, *where)
    assert (routed["store_id"], routed["is_routed"]) == (other, True)
    assert asked(capsys, "cluster", *where)["topics"] == [{"topic": "orders", "store_id": other}]
    assert asked(capsys, "route", "orders", "--clear", *where) == home
    assert [one["closed"] for one in asked(capsys, "cluster", "--close", "b", *where)["stores"]] == [False, True]
    assert [one["closed"] for one in asked(capsys, "cluster", "--open", "b", *where)["stores"]] == [False, False]
    asked(capsys, "route", "orders", "zz", *where, code=NOTHING)
    assert [one["store_id"] for one in asked(capsys, "cluster", "--remove", "b", *where)["stores"]] == ["a"]


def test_by_the_bucket_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_commands(capsys, make_cluster(tmp_path / "cold"))


def test_by_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tiny_settings(cluster__address="http://a:8080")
    _, cold = make_cluster(tmp_path / "cold")
    with contextlib.closing(Store.open(tmp_path / "a", settings=settings, cold_url=cold, store_id="a")) as engine:
        view = join_cluster(engine, settings)
        assert view is not None
        view.look()
        view.enter()
        app = create_app(engine, settings, cluster=view)
        with served_app(app, settings, app.state.stopping) as url:
            check_commands(capsys, ["--url", url])


def test_where_no_cluster_is_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--cold", f"file://{tmp_path}"]
    LocalObjectStore(str(tmp_path), SystemClock())
    assert asked(capsys, "cluster", *where, code=NOTHING)["stores"] == []
    asked(capsys, "cluster", "--close", "a", *where, code=BAD)
    asked(capsys, "cluster", code=BAD)
    asked(capsys, "route", "orders", "a", "--clear", *where, code=BAD)
    assert not (tmp_path / "cluster").exists()


def test_people_are_shown_a_row_for_each_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", *make_cluster(tmp_path / "cold"), "--format", "table"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["store", "url", "epoch", "volume", "topics", "routed"]
    assert lines[1].split() == ["a", "http://a:8080", "0", "v", "open"]
