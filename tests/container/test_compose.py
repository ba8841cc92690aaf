"""docker/compose.yaml says what it should, and its containers, run by podman as it says, work together.

There is no docker compose where the tests run, and no registry: the file is read by the tests, the S3 server's image is
made of the binary that they build, and all containers share one network without a way out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.processes.containers import Container, running
from tests.tools.containers import run_tool
from tests.tools.image import ROOT
from tests.tools.s3_servers import VERSITYGW, build_s3_server

_SERVICE_KEYS = {
    "image", "build", "entrypoint", "command", "environment", "ports", "volumes", "mem_limit", "stop_grace_period",
    "depends_on", "read_only", "tmpfs", "cap_drop", "security_opt", "restart",
}  # fmt: skip


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return found


def test_every_service_has_only_known_keys_and_no_rights(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"tierlog", "setup", "s3"}
    for name, service in compose["services"].items():
        assert set(service) <= _SERVICE_KEYS, name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert re.search(r":[^:/]+$", service["image"]), "an image has a version"
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (ROOT / "docker" / source).is_file()
        for needed in service.get("depends_on", []):
            assert needed in compose["services"]


def test_nobody_else_reaches_what_it_opens(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8080:8080"]


def test_the_s3_server_is_the_version_that_is_tested(compose: dict[str, Any]) -> None:
    image, _, digest = compose["services"]["s3"]["image"].partition("@")
    assert image.endswith(f"{VERSITYGW.name}:{VERSITYGW.version}")
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)


@pytest.fixture(scope="module")
def s3_image(image: str) -> str:
    """What the public image is: the binary, and nothing that the test needs beside it."""
    if shutil.which("go") is None:
        pytest.skip("no Go found to build versitygw with")
    name = f"localhost/tierlog-{VERSITYGW.name}:{VERSITYGW.version}"
    base = re.search(r"localhost/tierlog-base:\w+", run_tool("buildah", "images", "--format", "{{.Name}}:{{.Tag}}"))
    assert base is not None
    container = run_tool("buildah", "from", base.group()).strip()
    try:
        run_tool("buildah", "add", container, str(build_s3_server(VERSITYGW)), "/usr/local/bin/versitygw")
        run_tool("buildah", "config", "--entrypoint", json.dumps(["/usr/local/bin/versitygw"]), container)
        run_tool("buildah", "commit", "--quiet", container, name)
    finally:
        run_tool("buildah", "rm", container)
    return name


def _options(service: dict[str, Any], network: str, volumes: Path) -> tuple[str, ...]:
    options = ["--network", network]
    for mount in service["volumes"]:
        source, _, rest = mount.partition(":")
        path = ROOT / "docker" / source if source.startswith(".") else volumes / source
        options += ["--volume", f"{path}:{rest}"]
    if "entrypoint" in service:
        options += ["--entrypoint", json.dumps(service["entrypoint"])]
    return tuple(options)


def _started(
    stack: ExitStack, compose: dict[str, Any], name: str, image: str, network: str, volumes: Path
) -> Container:
    service = compose["services"][name]
    arguments = [str(part) for part in service["command"]]
    # one network, and no name service in it
    variables = {name: value.replace("//s3:", "//127.0.0.1:") for name, value in service["environment"].items()}
    return stack.enter_context(
        running(image, *arguments, options=_options(service, network, volumes), variables=variables)
    )


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """Folders in the place of named volumes, which take over the owner that the image gives them."""
    for name, user in (("data", 10001), ("objects", 0)):
        (tmp_path / name).mkdir()
        os.chown(tmp_path / name, user, user)
    return tmp_path


def _said_by(container: Container, *arguments: str) -> str:
    token = ("--url", "http://127.0.0.1:8080", "--token-file", "/data/access/admin.token")
    return container.execute("tierlog", *arguments, *token)


def test_a_message_goes_through_all_of_it(compose: dict[str, Any], image: str, s3_image: str, volumes: Path) -> None:
    with ExitStack() as stack:
        s3 = _started(stack, compose, "s3", s3_image, "none", volumes)
        network = f"container:{s3.name}"
        for _ in range(2):  # `up` again finds what is there
            setup = _started(stack, compose, "setup", image, network, volumes)
            assert setup.exit_code() == 0, setup.logs()
        assert setup.logs() == ""
        tierlog = _started(stack, compose, "tierlog", image, network, volumes)
        _wait(tierlog)
        script = "import sys; sys.stdout.write('order 4711 paid\\n')"
        tierlog.execute(
            "sh", "-c",
            f'python -c "{script}" | tierlog load - --topic orders --key "[0-9]+" --url http://127.0.0.1:8080 '
            "--token-file /data/access/admin.token",
        )  # fmt: skip
        _said_by(tierlog, "archive", "--all", "--drop-hot")
        found = json.loads(_said_by(tierlog, "query", "orders", "--key", "4711", "--format", "ndjson").splitlines()[0])
        assert found["body"] == "order 4711 paid"
        assert found["tier"] == "cold"
        assert list((volumes / "objects" / "tierlog" / "demo").rglob("*"))
        assert tierlog.stop() == 0


def _wait(container: Container) -> None:
    script = (
        "import sys, time, urllib.request\n"
        "for _ in range(600):\n"
        "    try: sys.exit(urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=5).status != 200)\n"
        "    except OSError: time.sleep(0.1)\n"
        "sys.exit(1)"
    )
    try:
        container.execute("python", "-c", script)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"not ready:\n{container.logs()}") from error
