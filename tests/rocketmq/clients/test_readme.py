"""README's example of a RocketMQ application is run as it stands there, on ports that are free."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docs.pages import ROOT, parse
from tests.support.objects.real_s3 import free_port
from tests.support.processes.nodes import NO_ANSWER, RefusedError, ask
from tests.tools.rocketmq_clients import JAVA_5, ClientProgram, class_path

pytestmark = pytest.mark.timeout(400)
_LIMIT_S = 120
#: What a reader writes around the two expressions of README's comment.
_PRODUCER = """
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

class Producer {{
    public static void main(String[] arguments) throws Exception {{
        byte[] body = "two shirts".getBytes();
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.{address};
        producer.start();
        try {{
            System.out.println(producer.send({message}).getMsgId());
        }} finally {{
            producer.shutdown();  // without it Java does not end, and tells nobody what went wrong
        }}
    }}
}}
"""


def example(ports: dict[str, str]) -> list[str]:
    """The lines of README's block, with these ports instead of its own."""
    page = parse("README.md", (ROOT / "README.md").read_text(encoding="utf-8"))
    (block,) = (block for block in page.blocks if "mqadmin queryMsgByKey" in block.text)
    text = block.text
    for shown, port in ports.items():
        assert f":{shown}" in text
        text = text.replace(f":{shown}", f":{port}")
    return text.splitlines()


def command(path: Path, line: str) -> None:
    """A command that the example finds there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    path.chmod(0o755)


def test_what_a_java_producer_sends_is_found_by_mqadmin_in_the_archive(
    folder_of: Callable[[ClientProgram], Path], tmp_path: Path
) -> None:
    ports = {"9876": str(free_port()), "8080": str(free_port())}
    serve, producer, archive, look_up = example(ports)
    jars = class_path(folder_of(JAVA_5))
    command(tmp_path / ".venv" / "bin" / "tierlog", f"{sys.executable} -m tierlog.service.main")
    java = f"java -Duser.home={tmp_path} -cp '{jars}'"
    command(tmp_path / "bin" / "mqadmin", f"{java} org.apache.rocketmq.tools.command.MQAdminStartup")
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TIERLOG_SERVE_PORT": ports["8080"],
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip

    def run(line: str) -> str:
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout

    url = f"http://127.0.0.1:{ports['8080']}"
    with (tmp_path / "serve.log").open("wb") as log:
        service = subprocess.Popen(
            ["sh", "-c", f"exec env {serve}"], cwd=tmp_path, env=environment, stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + _LIMIT_S
        while True:
            try:
                ask(url, "/livez", timeout_s=5)
                break
            except (*NO_ANSWER, RefusedError):
                assert service.poll() is None, (tmp_path / "serve.log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
        said = re.search(r"(setNamesrvAddr\(.*?\)).*(new Message\(.*?\))", producer)
        assert said is not None, producer
        (tmp_path / "Producer.java").write_text(_PRODUCER.format(address=said[1], message=said[2]))
        run(f"javac -cp '{jars}' Producer.java")
        message_id = run(f"{java}:. Producer").split()[-1]
        run(archive)
        assert message_id in run(look_up)
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(_LIMIT_S)
    found = run(".venv/bin/tierlog query orders --key ord-4711 --cold file://$PWD/cold --format ndjson")
    assert message_id in found  # with neither service nor store, it can only come from the archive
