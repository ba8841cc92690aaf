"""What clients bring: where a token comes from, and where it must not go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierlog.service.access.tokens import find_caller, read_lines, read_toml
from tierlog.service.main import main
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.remote.endpoint import ServiceAccess, ServiceAddress


def test_a_token_comes_from_the_flag_else_the_environment(tmp_path: Path) -> None:
    for name in ("flag", "file"):
        (tmp_path / name).write_text(f"t-{name}\n", encoding="utf-8")
    environment = {"TIERLOG_TOKEN": "t-env", "TIERLOG_TOKEN_FILE": str(tmp_path / "file")}
    assert ServiceAccess.of(environment, token_file=tmp_path / "flag").token == "t-flag"
    assert ServiceAccess.of(environment).token == "t-env"
    assert ServiceAccess.of({**environment, "TIERLOG_TOKEN": ""}).token == "t-file"
    assert ServiceAccess.of({}).headers(is_private=False) == {}


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("http://127.0.0.1:8080", True), ("http://localhost", True), ("http://[::1]:8080", True),
        ("http://127.9.9.9", True), ("https://logs.example.com", True), ("http://logs.example.com", False),
        ("http://10.0.0.7:8080", False), ("http://localhost.example.com", False), ("http://[2001:db8::1]", False),
    ],
)  # fmt: skip
def test_a_token_goes_over_plain_http_only_within_the_machine_or_when_told(url: str, *, is_sent: bool) -> None:
    address = ServiceAddress.parse(url)
    access = ServiceAccess(token="t-secret")
    if is_sent:
        assert access.headers(is_private=address.is_private) == {"Authorization": "Bearer t-secret"}
    else:
        with pytest.raises(InvalidRequestError, match="not sent over plain HTTP") as refused:
            access.headers(is_private=address.is_private)
        assert "t-secret" not in str(refused.value)
        told = ServiceAccess.of({"TIERLOG_TOKEN": "t-secret", "TIERLOG_TOKEN_OVER_HTTP": "1"})
        assert told.headers(is_private=address.is_private)
    assert "t-secret" not in repr(access)


@pytest.mark.parametrize("token", ["t secret", "t-secret\r\nX: y", "t-sécret", "t-secret" * 1000])
def test_what_cannot_be_a_token_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        ServiceAccess.of({"TIERLOG_TOKEN": token})
    assert "secret" not in str(refused.value)


def test_files_that_are_no_use_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read the token: No such file"):
        ServiceAccess.of({}, token_file=tmp_path / "none")
    (tmp_path / "empty.pem").touch()
    for name in ("none.pem", "empty.pem"):
        with pytest.raises(InvalidRequestError, match="cannot use the certificates") as refused:
            ServiceAccess(ca_file=tmp_path / name).tls()
        assert refused.value.path == str(tmp_path / name)


def test_the_command_prints_a_token_whose_entries_both_find_it(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["token", "shop", "--scope", "read", "--topic", "shop-*", "--expires", "2027-01-01", "--format", "json"]
    assert main(asked) == 0
    made = json.loads(capsys.readouterr().out)
    for entries in (read_toml(made["entry"], "file"), read_lines(made["line"], "environment")):
        caller = find_caller(entries, made["token"], 0)
        assert caller is not None
        assert (caller.name, list(caller.topics)) == ("shop", ["shop-*"])
    assert made["token"] not in made["entry"] + made["line"]
    assert main(["token", "a b", "--scope", "read", "--no-topic"]) == 2
    capsys.readouterr()
    assert main(["token", "shop", "--scope", "read", "--no-topic", "--format", "table"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("tierlog_")
    assert len(shown.out.splitlines()) == 1
    assert shown.out.strip() not in shown.err
    (entry,) = read_toml(shown.err, "standard error")
    assert find_caller([entry], shown.out.strip(), 0) is not None
    (line,) = (line[2:] for line in shown.err.splitlines() if line.startswith("# shop:"))
    assert find_caller(read_lines(line, "environment"), shown.out.strip(), 0) is not None


def test_the_secret_of_a_client_of_rocketmq_is_in_both_entries(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["token", "shop", "--rocketmq", "--scope", "produce", "--topic", "shop-*", "--format"]
    assert main([*asked, "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["access_key"] == "shop"
    for (entry,) in (read_toml(made["entry"], "file"), read_lines(made["line"], "environment")):
        assert entry.secret == made["secret_key"]
        assert entry.secret not in made["token"]
    assert main([*asked, "table"]) == 0
    shown = capsys.readouterr()
    (entry,) = read_toml(shown.err, "standard error")
    assert f"# For RocketMQ's clients: access key shop, secret key {entry.secret}\n" in shown.err
    assert find_caller([entry], shown.out.strip(), 0) is not None


def test_standard_error_of_two_tokens_is_a_file_of_both(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert main(["token", name, "--scope", "read", "--no-topic", "--format", "table"]) == 0
    assert [entry.caller.name for entry in read_toml(capsys.readouterr().err, "tokens.toml")] == ["one", "two"]
