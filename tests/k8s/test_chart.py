"""The chart on a real cluster with real pods: what was acknowledged is found again once, whatever is done to pods."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.cluster import Cluster
from tests.k8s.release import NAME, Release, acknowledged, prepare
from tests.tools.cache import ToolMissingError
from tests.tools.helm import kubernetes_tools
from tests.tools.image import build_image, save_image

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Release:
    """Two stores and two queriers with an S3 server, ready."""
    try:
        image = build_image()
        archive = save_image(image, cluster.files.folder / "image.tar")
        helm = kubernetes_tools().helm
    except ToolMissingError as error:
        pytest.skip(f"no image or no helm: {error}")
    cluster.load_image(archive)
    archive.unlink()
    prepare(cluster)
    release = Release(cluster, helm, image.rpartition(":")[2])
    release.install()
    return release


def _uids(release: Release) -> set[str]:
    return {pod["metadata"]["uid"] for component in ("store", "querier") for pod in release.pods(component)}


def _claims(release: Release) -> dict[str, str]:
    """The volume of each claim."""
    items = release.cluster.get("pvc", "-l", f"app.kubernetes.io/instance={NAME}")["items"]
    return {item["metadata"]["name"]: item["spec"]["volumeName"] for item in items}


def _timed(what: str, count: list[str], done: Callable[[], Any]) -> None:
    begun = time.monotonic()
    done()
    count.append(f"{what}: {time.monotonic() - begun:.1f} s")


def _all_found(release: Release, count: list[str], what: str, *journals: Path) -> None:
    begun = time.monotonic()
    found = release.look_up(*journals)
    count.append(
        f"{what}: {found['acknowledged']} messages acknowledged, {found['found_once']} found once by key; of "
        f"{found['not_acknowledged']} not acknowledged {found['of_those_found']} found; requests by status "
        f"{json.dumps(found['requests'])}, slowest {found['slowest_ms']} ms; looked up in "
        f"{time.monotonic() - begun:.1f} s"
    )
    assert not found["wrong"], found
    assert not found["of_those_wrong"], found
    assert found["found_once"] == found["acknowledged"] > 0


def test_helm_test_writes_and_reads_back(release: Release, count: list[str]) -> None:
    assert len(release.pods("store")) == len(release.pods("querier")) == 2
    _timed("helm test", count, lambda: release.helm("test", NAME, "--logs"))


def test_an_upgrade_and_its_rollback_under_load_lose_nothing(release: Release, count: list[str]) -> None:
    before, claims = _uids(release), _claims(release)
    with release.load("upgrade") as journal:
        _timed("helm upgrade", count, lambda: release.upgrade("--set", "settings.cluster.refresh_ms=1500"))
        upgraded = _uids(release)
        assert len(upgraded) == 4
        assert not upgraded & before
        _timed("helm rollback", count, lambda: release.helm("rollback", NAME, "1", "--wait", "--timeout=390s"))
        assert not _uids(release) & upgraded
    assert _claims(release) == claims
    _all_found(release, count, "upgrade and rollback", journal)


@pytest.mark.parametrize(
    "how", [pytest.param((), id="with its grace"), pytest.param(("--grace-period=0", "--force"), id="by force")]
)
def test_a_store_pod_that_is_deleted_under_load_comes_back_with_its_volume(
    release: Release, count: list[str], how: tuple[str, ...]
) -> None:
    name = f"{NAME}-store-{1 if how else 0}"
    claims = _claims(release)
    with release.load(f"delete-{'force' if how else 'grace'}") as journal:
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("store")}
        begun = time.monotonic()
        release.cluster.kubectl("delete", "pod", name, *how, limit_s=90)
        release.wait_ready("store", 2)
        count.append(f"delete {name} {' '.join(how)}: ready again after {time.monotonic() - begun:.1f} s")
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in release.pods("store")}
        assert before[name] != after.pop(name)
        assert after.items() <= before.items()
    assert _claims(release) == claims
    _all_found(release, count, f"delete {name} {' '.join(how)}", journal)


def test_a_store_whose_volume_is_gone_comes_back_from_the_archive(release: Release, count: list[str]) -> None:
    with release.load("before-the-loss"):
        pass
    for store in range(2):
        release.ask("POST", f"/v1/admin/archive?store_id={NAME}-store-{store}", {"all": True})
    lost = f"{NAME}-store-1"
    volumes = _claims(release)
    release.cluster.kubectl("delete", "pvc", f"data-{lost}", "--wait=false")
    release.cluster.kubectl("delete", "pod", lost, "--grace-period=0", "--force", limit_s=90)
    _timed("helm upgrade to stores.restore", count, lambda: release.upgrade("--set", "stores.restore=true"))
    now = _claims(release)
    assert now[f"data-{lost}"] != volumes[f"data-{lost}"]
    assert now[f"data-{NAME}-store-0"] == volumes[f"data-{NAME}-store-0"]
    with release.load("after-the-loss") as journal:
        release.wait_acknowledged(journal, acknowledged(journal) + 20)
    _all_found(release, count, "whole run, one volume lost and restored", *release.journals)
