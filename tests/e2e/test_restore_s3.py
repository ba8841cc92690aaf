"""The same over S3: restored from a bucket, salvaged into the new volume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.objects.s3_server import S3Server
from tests.support.stores.engines import tiny_settings
from tests.support.world import numbers_of, read_all, send
from tierlog.service.cli.salvager import salvage
from tierlog.service.cli.targets import LocalWriter
from tierlog.service.engine.parts import Components
from tierlog.service.engine.store import Store
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import FencedError
from tierlog.tiering.base.fs import LocalFileSystem
from tierlog.tiering.base.randomness import SystemRandomness


def test_a_volume_comes_back_from_a_bucket(s3_server: S3Server, tmp_path: Path) -> None:
    url = f"s3://{s3_server.new_bucket()}/logs"
    settings = tiny_settings(cold__s3_endpoint=s3_server.endpoint_url)
    old = Store.open(tmp_path / "a", settings=settings, cold_url=url)
    for at in range(0, 400, 50):
        send(old, "orders", at, at + 50, queue_id=0)
    old.archive(everything=True)
    send(old, "orders", 400, 410, queue_id=0)
    new = Store.open(tmp_path / "b", settings=settings, cold_url=url, restore=True)
    try:
        with pytest.raises(FencedError):
            old.archive(everything=True)
        old.close()
        assert numbers_of(read_all(new, "orders", 0)) == list(range(400))
        components = Components(settings.unsized(), SystemClock(), LocalFileSystem(), SystemRandomness())
        assert salvage(tmp_path / "a", components, LocalWriter(new), lambda done, of: None).appended == 10
        assert salvage(tmp_path / "a", components, LocalWriter(new), lambda done, of: None).appended == 0
        new.archive(everything=True, drop_hot=True)
        assert numbers_of(read_all(new, "orders", 0)) == list(range(410))
        assert new.check(deep=True) == []
    finally:
        old.close()
        new.close()
