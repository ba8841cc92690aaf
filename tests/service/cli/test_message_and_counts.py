"""One message by its id, and counts per interval, wherever the messages are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes.shell import served
from tests.support.stores.engines import tiny_settings
from tierlog.client import Client
from tierlog.service.engine.store import Store
from tierlog.service.exit_codes import DONE, FAILED, NOTHING, WRONG_USE
from tierlog.service.main import main
from tierlog.tiering.format.record import encode_host
from tierlog.tiering.message.batch import Message

_BORN_MS = 1_600_000_000_000


def messages(after_ms: int) -> list[Message]:
    return [Message("t", b"%d" % at, ["k"], born_ms=_BORN_MS + after_ms + at) for at in range(6)]


class Given:
    """A store with messages in both tiers, and another one in the same place."""

    def __init__(self, folder: Path) -> None:
        self.root, self.cold = str(folder / "store"), f"file://{folder}/cold"
        settings = tiny_settings()
        with Store.open(self.root, settings=settings, cold_url=self.cold, store_id="a") as engine:
            self.ids = [one.message_id for one in engine.append(messages(0))]
            engine.archive(everything=True, drop_hot=True)
            self.ids += [one.message_id for one in engine.append(messages(500))]
        with Store.open(folder / "other", settings=settings, cold_url=self.cold, store_id="b") as other:
            other.append(messages(0))
            other.archive(everything=True, drop_hot=True)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tmp_path_factory.mktemp("asked"))


def test_a_message_is_shown_by_its_id_from_either_tier_in_every_format(
    given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    for message_id, tier in ((given.ids[0], "cold"), (given.ids[-1], "hot")):
        for form in ("table", "json", "ndjson", "csv"):
            assert main(["message", message_id, "--root", given.root, "--format", form]) == DONE
            out = capsys.readouterr().out
            assert message_id in out
            assert tier in out
            if form == "ndjson":
                assert json.loads(out)["message_id"] == message_id


def test_a_message_of_a_rocketmq_client_shows_where_it_came_from_and_how_often_it_came_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, cold = str(tmp_path / "store"), f"file://{tmp_path}/cold"
    with Store.open(root, settings=tiny_settings(), cold_url=cold, store_id="a") as engine:
        sent = engine.client_messages()
        for times, host in ((3, encode_host(bytes((10, 1, 2, 3)), 54321)), (0, bytes(8))):
            sent.add("t", 0, b"x", b"KEYS\x01k\x02", born_ms=_BORN_MS, born_host=host, reconsume_times=times)
        ids = [one.message_id for one in engine.append(sent)]
        engine.archive(everything=True)
    wanted = {"reconsume_times": 3, "born_host": "10.1.2.3:54321"}
    with served("--root", root) as url:
        for target in (["--url", url], ["--cold", cold]):
            for form in ("json", "ndjson", "table", "csv"):
                capsys.readouterr()
                assert main(["message", ids[0], "--format", form, *target]) == DONE
                out = capsys.readouterr().out
                if form == "ndjson":
                    assert json.loads(out).items() >= wanted.items()
                if form == "table":
                    shown = [line.split() for line in out.splitlines()]
                    assert ["reconsume_times:", "3"] in shown
                    assert ["born_host:", "10.1.2.3:54321"] in shown
            assert main(["message", ids[1], "--format", "ndjson", *target]) == DONE
            assert not wanted.keys() & json.loads(capsys.readouterr().out).keys()
        with Client(url) as client:
            found = [client.message(one) for one in ids]
        assert [(one.reconsume_times, one.born_host) for one in found] == [(3, "10.1.2.3:54321"), (0, "")]


def test_a_service_and_an_archive_alone_show_the_same_message(given: Given, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    where = [["--root", given.root], ["--cold", given.cold, "--store-id", "a"]]
    with served("--root", given.root) as url:
        for target in ([*where[1]], ["--url", url], ["--url", url, "--store-id", "a"]):
            capsys.readouterr()
            assert main(["message", given.ids[0], "--format", "ndjson", *target]) == DONE
            said.append(json.loads(capsys.readouterr().out))
        assert main(["message", given.ids[0][:-4] + "FFFF", "--url", url]) == NOTHING
        assert main(["message", given.ids[0], "--url", url, "--store-id", "nobody"]) in (FAILED, NOTHING)
    assert said[0] == said[1] == said[2]


def test_what_is_not_found_is_1_what_is_no_id_is_2_and_an_archive_that_cannot_be_read_is_3(
    given: Given, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = given.ids[0][:-4] + "FFFF"
    for target in (["--root", given.root], ["--cold", given.cold]):
        assert main(["message", absent, *target]) == NOTHING
        out, err = capsys.readouterr()
        assert (out, "nothing found" in err) == ("", True)
        assert main(["message", "4711", *target]) == WRONG_USE
        assert "is not a message id" in capsys.readouterr().err
    assert main(["message", given.ids[0], "--cold", given.cold]) == WRONG_USE
    assert "several stores have a message of this id: a, b" in capsys.readouterr().err
    whole = Given(tmp_path)
    for log in (tmp_path / "cold" / "a" / "log").rglob("*"):
        if log.is_file():
            log.write_bytes(b"damaged")
    assert main(["message", whole.ids[0], "--cold", whole.cold, "--store-id", "a"]) == FAILED


@pytest.mark.parametrize("form", ["table", "json", "ndjson", "csv", "arrow"])
def test_counts_are_rows_with_bars_in_a_table_and_a_document_in_json(
    form: str, given: Given, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    asked = ["query", "t", "--counts", "--time", "born", "--interval", "0.5", "--format", form]
    assert main([*asked, "--root", given.root]) == DONE
    out, err = capfdbinary.readouterr()
    if form == "table":
        rows = out.decode().splitlines()[1:]
        assert [row.count("█") for row in rows] == [40, 40]
        assert b"12 messages" in err
    elif form == "json":
        found = json.loads(out)
        assert [each["messages"] for each in found["counts"]] == [6, 6]
        assert (found["total"], found["exact"], found["coverage"]["complete"]) == (12, True, True)
    elif form == "ndjson":
        assert [json.loads(line)["messages"] for line in out.splitlines()] == [6, 6]
    assert main([*asked, "--cold", given.cold]) == DONE, "of both stores"
    capfdbinary.readouterr()  # what is left would be read as text


def test_counts_of_nothing_are_1_and_what_has_no_counts_is_refused(
    given: Given, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["query", "t", "--root", given.root]
    assert main([*asked, "--counts", "--from", "5", "--to", "6"]) == NOTHING
    assert "nothing found" in capsys.readouterr().err
    for wrong in (["--counts", "--key", "k"], ["--counts", "--where", "a=b"], ["--buckets", "3"], ["--interval", "3"]):
        assert main([*asked, *wrong]) == WRONG_USE
        assert "--counts" in capsys.readouterr().err
    assert main([*asked, "--counts", "--buckets", "1001"]) == WRONG_USE
