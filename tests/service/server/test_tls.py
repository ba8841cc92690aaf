"""HTTPS as the service shows it: real handshakes, and words for files that do not fit."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.support.service.access import line
from tests.support.service.certificates import Authority, openssl
from tests.support.service.fixed_cluster import nodes
from tests.support.stores.engines import tiny_settings
from tierlog.service.access.control import AccessControl
from tierlog.service.api.application.app import create_app
from tierlog.service.cli.remote import RemoteTarget
from tierlog.service.engine.store import Store
from tierlog.service.main import main
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import SystemClock
from tierlog.tiering.base.errors import InvalidRequestError, UnavailableError
from tierlog.tiering.remote.endpoint import ServiceAccess

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@contextlib.contextmanager
def shown(tls: ServerTls, root: Path) -> Iterator[str]:
    """A service behind TLS that knows the token ``t-reader``; its URL."""
    settings = tiny_settings(access__tokens=f"{line('reader', 'read', '*')};{line('producer', 'produce', '*')}")
    engine = Store.open(root, settings=settings)
    app = create_app(engine, settings, control=AccessControl(settings.access, SystemClock()))
    config = uvicorn.Config(app, lifespan="off", log_level="critical", ssl_context_factory=tls.shown)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            engine.close()


def test_a_client_believes_its_authority_and_no_other_and_a_service_asks_for_certificates(
    ours: Authority, tmp_path: Path
) -> None:
    certificate, key = ours.sign("service")
    client_certificate, client_key = ours.sign("client")
    other = Authority(tmp_path, "other")
    with shown(ServerTls(certificate, key, None), tmp_path / "plain") as url:
        assert RemoteTarget(url, ServiceAccess("t-reader", ours.file)).topics() == []
        with pytest.raises(UnavailableError, match="is not who it says it is"):
            RemoteTarget(url, ServiceAccess("t-reader", other.file)).topics()
        with pytest.raises(UnavailableError, match="is not who it says it is"):
            RemoteTarget(url, ServiceAccess("t-reader")).topics()
        lines = tmp_path / "lines"
        lines.write_text("one\ntwo\n", encoding="utf-8")
        (tmp_path / "token").write_text("t-producer\n", encoding="utf-8")
        asked = ["--url", url, "--token-file", str(tmp_path / "token"), "--ca-file", str(ours.file)]
        assert main(["load", str(lines), "--topic", "made-by-its-first-message", *asked]) == 0
        assert main(["load", str(lines), "--topic", "t", "--queues", "2", *asked]) == 3
        assert [one["topic"] for one in RemoteTarget(url, ServiceAccess("t-reader", ours.file)).topics()] == [
            "made-by-its-first-message"
        ]
        old = ServiceAccess(ca_file=ours.file).tls()
        port = int(url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as raw,
            old.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
        ):
            assert wrapped.version() in ("TLSv1.2", "TLSv1.3")
    with shown(ServerTls(certificate, key, ours.file), tmp_path / "mutual") as url:
        known = ServiceAccess("t-reader", ours.file, client_certificate, client_key)
        assert RemoteTarget(url, known).topics() == []
        with pytest.raises(UnavailableError):
            RemoteTarget(url, ServiceAccess("t-reader", ours.file)).topics()


def test_a_request_is_sent_on_over_tls_by_the_authority_and_the_certificate_of_the_environment(
    ours: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown(ServerTls(*ours.sign("other-node"), ours.file), tmp_path / "b") as url, nodes(tmp_path) as made:
        made.places["store-b"] = url
        a = made.add("store-a")

        def ask() -> str:
            answer = a.ask("GET", "/v1/stats?store_id=store-b", headers={"Authorization": "Bearer t-reader"})
            assert answer.status_code == 503
            return str(answer.json()["detail"])

        assert "'store-b' does not answer at" in ask(), "nobody here knows who signed for it"
        certificate, key = ours.sign("this-node")
        for name, file in (("CA_FILE", ours.file), ("CLIENT_CERTIFICATE", certificate), ("CLIENT_KEY", key)):
            monkeypatch.setenv(f"TIERLOG_{name}", str(file))
        assert "does not answer for store 'store-b'" in ask(), "it is let in, and is told that this is another store"


def test_a_new_certificate_is_taken_and_one_that_does_not_fit_is_not(
    ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "shown.pem", tmp_path / "shown.key"

    def put(source: Path, target: Path) -> None:
        shutil.copy(source, tmp_path / "next")
        os.link(tmp_path / "next", tmp_path / "linked")
        shutil.move(tmp_path / "linked", target)
        (tmp_path / "next").unlink()

    for source, target in zip(ours.sign("first"), (certificate, key), strict=True):
        put(source, target)
    tls = ServerTls(certificate, key, None)
    assert _subject(tls) == "first"
    second, second_key = ours.sign("second")
    put(second, certificate)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            tls.refresh()
            assert _subject(tls) == "first"
    assert caplog.text.count("the certificate stays as it was") == 1
    put(second_key, key)
    tls.refresh()
    assert _subject(tls) == "second"


def test_files_that_do_not_fit_are_told_apart(ours: Authority, tmp_path: Path) -> None:
    certificate, key = ours.sign("one")
    _, wrong = ours.sign("two")
    closed = tmp_path / "closed.key"
    openssl("ec", "-in", str(key), "-aes128", "-passout", "pass:word", "-out", str(closed))
    (tmp_path / "none.pem").write_text("no certificate", encoding="utf-8")
    for files, words in (
        ((tmp_path / "absent.pem", key, None), "cannot read it: No such file"),
        ((certificate, tmp_path / "absent.key", None), "cannot read it: No such file"),
        ((certificate, wrong, None), "the key is not that of the certificate"),
        ((certificate, closed, None), "the key has a passphrase"),
        ((tmp_path / "none.pem", key, None), "certificate and key cannot be read"),
        ((certificate, key, tmp_path / "none.pem"), "there is no certificate in it"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            ServerTls(*files)
    with pytest.raises(InvalidRequestError, match="need tls_certificate"):
        tiny_settings(serve__tls_key="x")


def _subject(tls: ServerTls) -> str:
    """Of the certificate that a handshake in memory shows."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    client = client_context.wrap_bio(to_client, to_server)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    shown_der = client.getpeercert(binary_form=True)
    assert shown_der is not None
    found = subprocess.run(
        ["openssl", "x509", "-inform", "DER", "-noout", "-subject"], input=shown_der, capture_output=True, check=True
    )
    return found.stdout.decode().strip().rpartition("=")[2].strip()
