"""A trace shows a request, its append or query, and every request to the archive; never what a client wrote."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.support.world import World
from tierlog.service.api.application.app import create_app
from tierlog.service.config.settings import Settings, TracingSettings
from tierlog.service.observing.tracing import OtelTracer, log_changes_of, tracer_of
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.telemetry import NO_TRACER

SECRET = "4711-do-not-tell"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class TracedWorld(World):
    """A traced service on a store in memory."""

    def __init__(self, tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
        super().__init__()
        self._tracer, self._exporter = tracer, exporter
        self.client = TestClient(create_app(self.open(tracer=tracer), self.settings), "http://localhost")

    def spans(self) -> list[ReadableSpan]:
        """Those ended since the last call."""
        self._tracer._provider.force_flush()
        found = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return found


@contextmanager
def traced(ratio: float) -> Iterator[TracedWorld]:
    exporter = InMemorySpanExporter()
    with tracer_of(TracingSettings(sample_ratio=ratio), exporter) as tracer:
        assert isinstance(tracer, OtelTracer)
        yield TracedWorld(tracer, exporter)


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Of its trace and its own."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parents(spans: Sequence[ReadableSpan]) -> dict[str, str]:
    """The name of each span's parent; the id where it is not among them."""
    names = {f"{ids(span)[1]:016x}": span.name for span in spans}
    found = {}
    for span in spans:
        parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
        found[span.name] = names.get(parent, parent)
    return found


def test_an_append_and_a_query_are_followed_from_the_caller_to_the_archive() -> None:
    with traced(ratio=0.0) as world:
        url = "/v1/topics/orders/messages"
        body = {"messages": [{"body": SECRET, "keys": [SECRET]}]}
        assert world.client.post(url, json=body, headers=SAMPLED).status_code == 200
        spans = world.spans()
        assert parents(spans) == {
            "flush wait": "append", "append": f"POST {url.replace('orders', '{topic}')}",
            "POST /v1/topics/{topic}/messages": PARENT,
        }  # fmt: skip
        world.engine.archive(everything=True, drop_hot=True)
        assert not world.spans()  # nobody sampled that
        found = world.client.get(url, params={"key": SECRET}, headers=SAMPLED).json()
        spans += (later := world.spans())
        assert parents(later)["archive get_range"] == "query"
        assert parents(later)["query"] == "GET /v1/topics/{topic}/messages"
        calls = [span for span in later if span.name.startswith("archive ")]
        assert len(calls) >= found["coverage"]["requests"] > 0
        for span in calls:
            assert span.attributes is not None
            assert span.attributes["tierlog.outcome"] == "ok"
            assert set(span.attributes) == {"tierlog.operation", "tierlog.outcome", "tierlog.bytes"}
        (query,) = [span for span in later if span.name == "query"]
        assert query.attributes is not None
        for name in ("requests", "round_trips", "waves", "bytes", "cost_usd"):
            assert query.attributes[f"tierlog.{name}"] == found["coverage"][name]
        assert {f"{ids(span)[0]:032x}" for span in spans} == {TRACE}
        assert SECRET not in "".join(span.to_json() for span in spans)


def test_what_fails_is_marked_by_its_class_and_not_by_its_words() -> None:
    with traced(ratio=1.0) as world:
        world.client.post("/v1/topics/orders/messages", json={"messages": [{"body": "x", "keys": ["k"]}]})
        world.engine.archive(everything=True, drop_hot=True)
        world.bucket.fail_before("get_range", times=None)
        world.spans()
        world.client.get("/v1/topics/orders/messages?key=k")
        failed = [span for span in world.spans() if not span.status.is_ok]
        assert {span.name for span in failed} == {"archive get_range", "query"}
        assert not any(span.events for span in failed)
        assert {str((span.attributes or {})["error.type"]) for span in failed if span.name != "query"} <= {
            "unavailable", "ObjectStoreUnavailableError",
        }  # fmt: skip


def test_a_ratio_of_0_follows_nobody_who_did_not_ask_and_a_strange_traceparent_asks_for_nothing() -> None:
    with traced(ratio=0.0) as world:
        for headers in ({}, {"traceparent": "nonsense"}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}):
            assert world.client.get("/v1/topics", headers=headers).status_code == 200
        assert not world.spans()


class Collector:
    """Takes OTLP over HTTP on the loopback."""

    def __init__(self) -> None:
        self.taken: list[ExportTraceServiceRequest] = []
        taken = self.taken

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                taken.append(ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def test_spans_reach_a_collector_before_the_service_ends() -> None:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever)
    thread.start()
    try:
        with (
            tracer_of(TracingSettings(endpoint=collector.url, sample_ratio=1.0, service_name="shop-log")) as tracer,
            tracer.span("append", messages=3),
        ):
            pass
    finally:
        collector.server.shutdown()
        thread.join()
        collector.server.server_close()
    (taken,) = collector.taken
    (resource,) = taken.resource_spans
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "shop-log"
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["append"]


class _Sometimes(SpanExporter):
    def __init__(self, results: list[SpanExportResult]) -> None:
        self.results = results

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.results.pop(0)


def test_a_collector_that_dies_is_logged_once_until_it_lives_again(caplog: pytest.LogCaptureFixture) -> None:
    well, dead = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = log_changes_of(_Sometimes([well, dead, dead, dead, well, well]))
    with caplog.at_level(logging.WARNING, "tierlog"):
        for _ in range(6):
            exporter.export([])
    assert [record.message for record in caplog.records] == [
        "traces cannot be sent to the collector, and are dropped", "traces can be sent again",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_dead_collector_holds_neither_requests_nor_the_end_up() -> None:
    settings = TracingSettings(endpoint="http://127.0.0.1:1", sample_ratio=1.0)
    with tracer_of(settings) as tracer:
        for _ in range(10_000):  # more than the queue holds
            with tracer.span("append"):
                pass


def test_an_endpoint_without_the_library_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with (
        pytest.raises(InvalidRequestError, match="not installed") as refused,
        tracer_of(TracingSettings(endpoint="http://127.0.0.1:4318")),
    ):
        pass
    assert refused.value.hint is not None
    assert "tierlog[tracing]" in refused.value.hint


def test_without_an_endpoint_nothing_is_loaded() -> None:
    with tracer_of(TracingSettings()) as tracer:
        assert tracer is NO_TRACER
    code = (
        "import sys, tierlog.service.observing.tracing; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_variables_of_opentelemetry_count_unless_there_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("TIERLOG_TRACING_SERVICE_NAME", "ours")
    found = Settings.load().tracing
    assert (found.endpoint, found.service_name) == ("http://collector:4318", "ours")
