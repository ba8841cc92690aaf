"""A new tokens file or certificate that came while no descriptor was left was never looked at again."""

from __future__ import annotations

import errno
import os
import ssl
from pathlib import Path

import pytest

from tests.service.access.test_access_control import entry, names, replaced
from tests.support.service.access import token
from tests.support.service.certificates import Authority
from tierlog.service.access.control import AccessControl
from tierlog.service.config.serve import AccessSettings
from tierlog.service.server.tls import ServerTls
from tierlog.tiering.base.clock import ManualClock


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_token_that_was_withdrawn_is_not_known_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, path = ManualClock(), tmp_path / "tokens.toml"
    path.write_text(entry("old") + entry("kept"), encoding="utf-8")
    control = AccessControl(AccessSettings(tokens_file=str(path)), clock)
    assert control.caller(token("old")) is not None
    replaced(path, entry("kept"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        assert names(control, clock, "old", "kept") == ["old", "kept"]
    assert names(control, clock, "old", "kept") == ["kept"]


@pytest.mark.parametrize("refused", [(Path, "open"), (ssl.SSLContext, "load_cert_chain")])
def test_a_new_certificate_is_taken_once_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[type, str]
) -> None:
    authority = Authority(tmp_path, "ours")
    certificate, key = authority.sign("service")
    tls = ServerTls(certificate, key, None)
    taken: list[Path] = []
    load = ssl.SSLContext.load_cert_chain

    def counted(context: ssl.SSLContext, file: Path, *others: object, **named: object) -> None:
        load(context, file, *others, **named)  # type: ignore[arg-type]
        taken.append(file)

    authority.sign("service")
    with monkeypatch.context() as patched:
        patched.setattr(*refused, refuse)
        tls.refresh()  # raises nothing: the server would end
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", counted)
    tls.refresh()
    assert taken == [certificate, certificate]
    tls.refresh()
    assert taken == [certificate, certificate]
