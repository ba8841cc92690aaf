"""Flags and errors: what is said to who mistyped, formats of every command, completion, the reference page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools import cli
from tests.conftest import ROOT
from tierlog.service.cli.arguments import DOCUMENT_FORMS
from tierlog.service.cli.commands.completion import SHELLS
from tierlog.service.cli.errors import problem_document, say_error
from tierlog.service.config.suggestions import closest
from tierlog.service.exit_codes import DONE, FAILED, WRONG_USE
from tierlog.service.main import COMMANDS, build_parser, main
from tierlog.tiering.base import errors

NAMES = [module.__name__.rpartition(".")[2] for module in COMMANDS]
#: What these print is no answer: a service runs, a shell reads a script.
WITHOUT_FORMAT = {"serve", "follow", "completion"}


def command(name: str) -> argparse.ArgumentParser:
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[name]
            return found
    raise AssertionError


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == WRONG_USE
    out, err = capsys.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_FORMAT])
def test_every_command_answers_as_json_if_asked(name: str) -> None:
    (found,) = (action for action in command(name)._actions if "--format" in action.option_strings)
    assert set(DOCUMENT_FORMS) <= set(found.choices or ())


@pytest.mark.parametrize("module", COMMANDS, ids=NAMES)
def test_every_command_has_examples_that_its_flags_allow(module: object) -> None:
    import re
    import shlex

    examples: tuple[tuple[str, str], ...] = module.EXAMPLES  # type: ignore[attr-defined]
    assert examples
    for _, line in examples:
        (words,) = re.findall(r"tierlog ([^|>]*)", line.replace("'id=", "'"))[:1]
        build_parser().parse_args(shlex.split(words))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["quary", "t"], "did you mean 'query'?"),
        (["query", "t", "--lmit", "3"], "did you mean '--limit'?"),
        (["tail", "t", "--folow"], "did you mean '--follow'?"),
        (["query", "t", "--order", "newst"], "did you mean 'newest'?"),
        (["query", "t", "--order", "desc"], "did you mean 'newest'?"),
        (["query", "t", "--order", "DESC"], "did you mean 'newest'?"),
        (["query", "t", "--order", "newest-first"], "did you mean 'newest'?"),
        (["query", "t", "--order", "asc"], "did you mean 'oldest'?"),
        (["query", "t", "--format", "jsonl"], "did you mean 'ndjson'?"),
        (["query", "t", "--id", "7F"], "`tierlog message ID`"),
        (["erase", "t", "--tag", "paid"], "`tierlog tail TOPIC --tag EXPR`"),
        (["erase", "t", "--since=5"], "did you mean '--from'?"),
        (["topics", "--ip", "x"], "tierlog topics --help"),
        (["query", "t", "--order", "sideways"], "one of newest, oldest"),
        (["xyzzy"], "one of serve, load"),
        (["query"], "tierlog query --help"),
    ],
)
def test_who_mistyped_is_told_what_was_meant(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = refused(argv, capsys)
    assert said in shown
    assert shown.count("\n") == 2, "a usage and the error"


@pytest.mark.parametrize(
    ("written", "known", "found"),
    [("ordrs", ["orders", "order-lines"], "orders"), ("ORDERS", ["orders"], "orders"), ("x", ["orders"], None)],
)
def test_only_what_is_alike_is_offered(written: str, known: list[str], found: str | None) -> None:
    assert closest(written, known) == found


@pytest.mark.parametrize("argv", [["query", "t", "--format", "json", "--nope"], ["query", "--format=ndjson"]])
def test_wrong_flags_are_a_problem_document_for_who_reads_json(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(refused(argv, capsys))
    assert found["type"] == "urn:tierlog:problem:invalid-request"
    assert found["exit_code"] == WRONG_USE
    assert found["hint"]


@pytest.mark.parametrize(
    ("argv", "kind", "code"),
    [
        (["topics", "--url", "http://127.0.0.1:1"], "unavailable", FAILED),
        (["query", "t", "--limit", "10001", "--url", "http://127.0.0.1:1"], "invalid-request", WRONG_USE),
        (["stats", "--root", "/nonexistent/store"], "invalid-request", WRONG_USE),
        (["config", "--config", "/nonexistent/file"], "invalid-request", WRONG_USE),
        (["load", "/nonexistent/file", "--topic", "t", "--root", "/nonexistent/s"], "invalid-request", WRONG_USE),
    ],
)
def test_a_failure_is_one_problem_document_with_its_exit_code(
    argv: list[str], kind: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--format", "json"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    found = json.loads(err)
    assert (found["type"], found["exit_code"]) == (f"urn:tierlog:problem:{kind}", code)


def test_a_hint_has_its_own_line_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = errors.InvalidRequestError("no such thing", path="/x", hint="make\none")
    say_error(error)
    assert capsys.readouterr().err == "tierlog: no such thing [/x]; make one\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say_error(error)
    assert capsys.readouterr().err == "tierlog: no such thing [/x]\nhint: make one\n"
    assert problem_document(error) == {
        "type": "urn:tierlog:problem:invalid-request", "title": "invalid request", "detail": "no such thing",
        "exit_code": WRONG_USE, "hint": "make\none", "path": "/x",
    }  # fmt: skip


@pytest.mark.parametrize("limit", ["0", "-1", "10001"])
def test_a_page_over_its_limit_is_refused_with_what_shows_all(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "t", f"--limit={limit}", "--url", "http://127.0.0.1:1"]) == WRONG_USE
    assert "--all" in capsys.readouterr().err


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == DONE
    assert capsys.readouterr().out.startswith("tierlog ")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == DONE
    script = capsys.readouterr().out
    assert all(name in script for name in NAMES)


def test_bash_completes_commands_flags_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = tmp_path / "tierlog.bash"
    script.write_text(capsys.readouterr().out)
    (tmp_path / "settings.toml").write_text("")
    subprocess.run(["bash", "-n", str(script)], check=True)

    def completed(*words: str) -> list[str]:
        ask = (
            'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; '
            'function=$(complete -p tierlog | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
            '"$function" tierlog "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$COMP_CWORD - 1]}" 2>/dev/null; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", ask, str(script), "tierlog", *words],
            capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        return sorted(done.stdout.split())

    assert completed("que") == ["query"]
    assert completed("re") == ["receipts", "repair", "restore"]
    assert completed("query", "--lim") == ["--limit"]
    assert completed("query", "t", "--order", "") == ["newest", "oldest"]
    assert completed("query", "t", "--format", "n") == ["ndjson"]
    assert completed("config", "--config", "sett") == ["settings.toml"]


def test_the_reference_page_is_what_the_parsers_make_of_it() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == cli.page(), "run: python -m docs.tools.cli"


@pytest.fixture(scope="module")
def reference_page() -> str:
    return cli.page()


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_of_a_command_is_on_the_page(name: str, reference_page: str) -> None:
    section = reference_page.partition(f"\n## tierlog {name}\n")[2].partition("\n## ")[0]
    for action in command(name)._actions:
        if action.option_strings != ["-h", "--help"]:
            assert all(f"`{flag}" in section for flag in action.option_strings), action
