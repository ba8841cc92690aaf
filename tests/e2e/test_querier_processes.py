"""Two nodes and a querier as processes that know each other by the cluster table; one is killed and stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.nodes import NO_ANSWER, Json, Node, Querier, RefusedError, ask

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    (tmp_path / "cold").mkdir()
    cold = f"file://{tmp_path}/cold"
    found: dict[str, Node] = {
        name: Node(tmp_path / name, cold, "", ("--store-id", name, "--segment-bytes", str(1 << 20)))
        for name in ("a", "b")
    }
    found["querier"] = Querier(
        tmp_path / "querier", cold, "", settings={"TIERLOG_CLUSTER_ASK_TIMEOUT_MS": "5000"}
    )  # fmt: skip
    try:
        for node in found.values():
            node.begin()
        for node in found.values():
            node.wait()
        yield found
    except BaseException as error:
        for name, node in found.items():
            error.add_note(f"{name}: {node.said()}")
        raise
    finally:
        for node in found.values():
            node.kill()


def answer(nodes: dict[str, Node], until: Callable[[Json], bool]) -> Json:
    """The querier's answer as soon as it is as wanted: what the table says is known a moment later."""
    deadline_s, last = time.monotonic() + _LIMIT_S, None
    while time.monotonic() < deadline_s:
        try:
            last = ask(nodes["querier"].url, "/v1/topics/orders/messages?order=oldest")
        except (*NO_ANSWER, RefusedError) as error:
            last = {"error": str(error)}
        else:
            if until(last):
                return last
        time.sleep(0.1)
    raise AssertionError(f"not within {_LIMIT_S} s: {last}")


def bodies(page: Json) -> list[str]:
    return sorted(message["body"] for message in page["messages"])


def is_complete(page: Json) -> bool:
    """Both stores have told what is hot."""
    stores = page["coverage"]["stores"]
    return page["coverage"]["complete"] and [one["hot"] is not None for one in stores] == [True, True]


def without_b(page: Json) -> bool:
    """Store `b` is named as the one that is missing."""
    coverage = page["coverage"]
    named = {one["store_id"]: one["error"] for one in coverage["stores"]}
    return not coverage["complete"] and named["a"] is None and "no answer" in (named["b"] or "")


@pytest.mark.timeout(300)
def test_a_node_that_is_killed_or_hangs_is_named_and_found_again(nodes: dict[str, Node]) -> None:
    for name in ("a", "b"):
        for tier in ("archived", "hot"):
            ask(nodes[name].url, f"/v1/topics/orders/messages?store_id={name}", {"messages": [{"body": name + tier}]})
            if tier == "archived":
                ask(nodes[name].url, f"/v1/admin/archive?store_id={name}", {"all": True})
    everything = ["aarchived", "ahot", "barchived", "bhot"]
    page = answer(nodes, is_complete)
    assert bodies(page) == everything

    nodes["b"].kill()
    page = answer(nodes, without_b)
    assert bodies(page) == ["aarchived", "ahot", "barchived"]
    assert nodes["b"].url in [failure["object"] for failure in page["coverage"]["failures"]]
    nodes["b"].start()
    assert bodies(answer(nodes, is_complete)) == everything

    nodes["b"].stop()
    page = answer(nodes, without_b)
    assert bodies(page) == ["aarchived", "ahot", "barchived"]
    assert nodes["b"].url in [failure["object"] for failure in page["coverage"]["failures"]]
    nodes["b"].go_on()
    assert bodies(answer(nodes, is_complete)) == everything

    nodes["querier"].kill()  # it had nothing
    nodes["querier"].start()
    assert bodies(answer(nodes, is_complete)) == everything
