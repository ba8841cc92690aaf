"""The cluster by itself, before anything is blamed on the chart: pods reach each other by the name of a Service."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.k8s.cluster import Cluster
from tests.tools.s3_servers import VERSITYGW, build_s3_server

pytestmark = [pytest.mark.k8s, pytest.mark.timeout(600)]


def _pod(name: str, *arguments: str, image: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    environment = [{"name": key, "value": value} for key, value in (variables or {}).items()]
    container = {
        "name": "it", "image": image, "imagePullPolicy": "Never", "args": arguments, "env": environment,
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never", "containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }  # fmt: skip


def test_a_pod_reaches_another_by_the_name_of_its_service(cluster: Cluster) -> None:
    curl = shutil.which("curl")
    assert curl is not None
    cluster.load_program("localhost/answers:1", build_s3_server(VERSITYGW))
    cluster.load_program("localhost/curl:1", Path(curl).resolve())
    keys = {"ROOT_ACCESS_KEY": "a", "ROOT_SECRET_KEY": "b"}
    answering = ("--port", ":9000", "--health", "/health", "posix", "/scratch")
    asking = ("-sS", "--retry", "20", "--retry-delay", "1", "--retry-all-errors", "http://answers/health")
    service = {"selector": {"app": "answers"}, "ports": [{"port": 80, "targetPort": 9000}]}
    cluster.apply(
        _pod("answers", *answering, image="localhost/answers:1", variables=keys),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "answers"}, "spec": service},
        _pod("asks", *asking, image="localhost/curl:1"),
    )
    try:
        cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/asks", "--timeout=60s", limit_s=70)
        assert cluster.kubectl("logs", "asks").endswith("OK")
        assert "Version" in cluster.kubectl("exec", "answers", "--", "/versitygw", "--version")
    finally:
        cluster.kubectl("delete", "pod/asks", "pod/answers", "service/answers", "--now", limit_s=90)
