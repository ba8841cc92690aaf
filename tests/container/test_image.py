"""The image runs with no rights and a read-only root, says in a sentence why it does not, and loses nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.container.conftest import TOKEN
from tests.support.objects.real_s3 import running_server
from tests.support.objects.s3_server import ACCESS_KEY, SECRET_KEY
from tests.support.processes.containers import Caller, running, volume, wait_until_ready
from tests.tools.cache import ToolMissingError
from tests.tools.containers import run_tool

_MESSAGES = 500


def _post(caller: Caller, first: int) -> None:
    messages = [{"body": f"message {i}", "keys": [f"key-{i % 50}"]} for i in range(first, first + _MESSAGES)]
    answer = caller.call("POST", "/v1/topics/orders/messages?durability=flushed", {"messages": messages})
    assert len(answer["results"]) == _MESSAGES


def _bodies_of_key(caller: Caller, number: int) -> tuple[list[int], set[str]]:
    answer = caller.call("GET", f"/v1/topics/orders/messages?key=key-{number}&limit=1000")
    assert answer["coverage"]["complete"]
    found = sorted(int(message["body"].split()[1]) for message in answer["messages"])
    return found, {message["tier"] for message in answer["messages"]}


def test_messages_are_found_over_both_tiers_and_after_stop_and_kill(
    image: str, port: int, access: dict[str, str], tmp_path: Path
) -> None:
    if shutil.which("go") is None:
        pytest.skip("no Go found to build versitygw with")
    url = f"http://127.0.0.1:{port}"
    caller = Caller(url, TOKEN)
    data = volume(tmp_path / "data")
    try:
        server = running_server("versitygw", tmp_path)
    except ToolMissingError as error:
        pytest.skip(str(error))
    with server as s3:
        variables = {
            **access, "TIERLOG_S3_ENDPOINT": s3.endpoint_url, "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
        arguments = ("serve", "--root", "/data", "--cold", f"s3://{s3.new_bucket()}/archive")
        mounted = ("--volume", f"{data}:/data")
        with running(image, *arguments, options=mounted, variables=variables) as container:
            wait_until_ready(container, url)
            assert container.execute("python", "-m", "tierlog.service.health_check") == ""
            assert container.execute("id", "-u").strip() == "10001"
            _post(caller, 0)
            caller.call("POST", "/v1/admin/archive", {"all": True, "drop_hot": True})
            _post(caller, _MESSAGES)
            found, tiers = _bodies_of_key(caller, 7)
            assert found == list(range(7, 2 * _MESSAGES, 50))
            assert tiers == {"hot", "cold"}
            assert container.stop(grace_s=10) == 0
        with running(image, *arguments, options=mounted, variables=variables) as container:
            wait_until_ready(container, url)
            assert _bodies_of_key(caller, 7)[0] == list(range(7, 2 * _MESSAGES, 50))
            _post(caller, 2 * _MESSAGES)
            container.kill()
        with running(image, *arguments, options=mounted, variables=variables) as container:
            wait_until_ready(container, url)
            for number in (0, 7, 49):
                assert _bodies_of_key(caller, number)[0] == list(range(number, 3 * _MESSAGES, 50))
            assert container.stop(grace_s=10) == 0


def test_nothing_is_compiled_at_start_on_a_processor_of_the_baseline(image: str) -> None:
    script = "from tierlog.index.kernels.precompile import compile_all; " \
        "from tierlog.tiering.kernels.cache import CHOICE; " \
        "print(CHOICE.is_shipped, CHOICE.reason, compile_all())"  # fmt: skip
    with running(image, "-c", script, options=("--entrypoint", "python")) as container:
        assert container.exit_code() == 0
        said = container.logs().split()
    if said[1] == "None":  # what older processors do is tested in tests/tiering/kernels/test_kernel_cache.py
        assert said == ["True", "None", "0"]


def test_health_check_stop_signal_user_and_labels_are_in_the_image(image: str) -> None:
    found = json.loads(run_tool("podman", "inspect", image))[0]
    assert found["User"] == "10001:10001"
    assert found["Config"]["StopSignal"] == "SIGTERM"
    assert found["Config"]["Entrypoint"] == ["tierlog"]
    assert found["Config"]["Cmd"] == ["serve", "--root", "/data"]
    assert list(found["Config"]["Volumes"]) == ["/data"]
    assert found["HealthCheck" if "HealthCheck" in found else "Healthcheck"]["Test"][1:] == [
        "python", "-m", "tierlog.service.health_check",
    ]  # fmt: skip
    labels = found["Labels"]
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert labels["org.opencontainers.image.revision"]


def test_a_service_without_tokens_is_refused_in_a_sentence(image: str, tmp_path: Path) -> None:
    with running(image, options=("--volume", f"{volume(tmp_path / 'data')}:/data")) as container:
        assert container.exit_code() == 2
        assert "without tokens the service listens on the loopback only" in container.logs()


def test_a_volume_of_another_user_is_refused_in_a_sentence(image: str, access: dict[str, str], tmp_path: Path) -> None:
    data = volume(tmp_path / "data", user=4242)
    with running(image, options=("--volume", f"{data}:/data"), variables=access) as container:
        assert container.exit_code() == 3
        assert "the directory belongs to user 4242, and user 10001 may not write to it" in container.logs()


def test_a_wrong_setting_ends_with_2_and_names_it(image: str, access: dict[str, str]) -> None:
    variables = {**access, "TIERLOG_HOT_RETENTION_MS": "soon"}
    with running(image, variables=variables) as container:
        assert container.exit_code() == 2
        assert "hot.retention_ms" in container.logs()
