"""Traces for an OpenTelemetry collector: the extra ``tierlog[tracing]``, loaded only if there is an endpoint.

Spans are put into a bounded queue and sent by a thread of the library; one that finds it full is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tierlog.service.config.settings import TracingSettings
from tierlog.tiering.base.errors import InvalidRequestError
from tierlog.tiering.base.telemetry import NO_TRACER, Span, Tracer, Value

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span as OtelSpan

_LOG = logging.getLogger("tierlog")
_PATH = "/v1/traces"
_QUEUE_SPANS = 4096
_EXPORT_TIMEOUT_S = 5.0
_LAST_EXPORT_S = 2.0
#: Names of facts in the conventions of OpenTelemetry; others get our prefix.
_NAMES = {
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
    "received_bytes": "http.request.body.size",
    "sent_bytes": "http.response.body.size",
}
_FAILED = ("unavailable", "throttled", "error", "unreachable")


@contextmanager
def tracer_of(settings: TracingSettings, exporter: SpanExporter | None = None) -> Iterator[Tracer]:
    """Yields the tracer of a process for as long as the context lasts; then sends the last spans, for 2 s at most.

    Raises :class:`InvalidRequestError` if there is an endpoint and no library. ``exporter`` replaces the one that
    sends to the endpoint.
    """
    if settings.endpoint is None and exporter is None:
        yield NO_TRACER
        return
    try:
        tracer = OtelTracer(settings, exporter)
    except ImportError as error:
        raise InvalidRequestError(
            f"tracing.endpoint is set, but traces need a library that is not installed ({error.name})",
            hint="install tierlog[tracing], or leave tracing.endpoint out",
        ) from error
    try:
        yield tracer
    finally:
        closing = threading.Thread(target=tracer.close, name="tierlog-last-traces", daemon=True)
        closing.start()
        closing.join(_LAST_EXPORT_S)


class OtelTracer:
    """Spans through OpenTelemetry's SDK. Thread safe; raises ImportError without it."""

    def __init__(self, settings: TracingSettings, exporter: SpanExporter | None) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            ParentBased(TraceIdRatioBased(settings.sample_ratio)),
            Resource.create({"service.name": settings.service_name}),
            shutdown_on_exit=False,
        )
        sending = log_changes_of(exporter or _otlp(settings))
        self._provider.add_span_processor(
            BatchSpanProcessor(
                sending,
                max_queue_size=_QUEUE_SPANS,
                schedule_delay_millis=1_000,
                export_timeout_millis=_EXPORT_TIMEOUT_S * 1000,
            )
        )
        self._tracer = self._provider.get_tracer("tierlog")

    @contextmanager
    def span(self, name: str, **facts: Value) -> Iterator[Span]:
        """Surrounds a span below that of this context; of an error only the class is told: words may name anything."""
        from opentelemetry.trace import SpanKind

        kind = SpanKind.SERVER if name == "request" else SpanKind.INTERNAL
        if name.startswith("archive "):
            kind = SpanKind.CLIENT
        with self._tracer.start_as_current_span(
            name, kind=kind, record_exception=False, set_status_on_exception=False
        ) as found:
            span = _Span(found)
            span.annotate(**facts)
            try:
                yield span
            except BaseException as error:
                span.failed(type(error).__name__)
                raise

    @contextmanager
    def joined(self, traceparent: str | None) -> Iterator[None]:
        """Spans inside belong to the caller's trace; what is no ``traceparent`` is passed over."""
        from opentelemetry import context

        if traceparent is None:
            yield
            return
        token = context.attach(self._propagator.extract({"traceparent": traceparent}))
        try:
            yield
        finally:
            context.detach(token)

    def close(self) -> None:
        """Sends what waits, and ends."""
        self._provider.shutdown()


class _Span:
    """A span of ours on one of the library."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        found = span.get_span_context()
        self.trace_id = f"{found.trace_id:032x}" if span.is_recording() else None

    def annotate(self, **facts: Value) -> None:
        for name, value in facts.items():
            self._span.set_attribute(_NAMES.get(name, f"tierlog.{name}"), value)
        status = facts.get("status")
        if facts.get("outcome") in _FAILED or (isinstance(status, int) and status >= 500):
            self.failed(str(facts.get("outcome", status)))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def failed(self, what: str) -> None:
        """Marks it as failed."""
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", what)
        self._span.set_status(Status(StatusCode.ERROR))


def _otlp(settings: TracingSettings) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    assert settings.endpoint is not None
    endpoint = settings.endpoint.rstrip("/")
    if not endpoint.endswith(_PATH):
        endpoint += _PATH
    return OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)


def log_changes_of(inner: SpanExporter) -> SpanExporter:
    """Makes an exporter that logs once when traces cannot be sent any more, and once when they can again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    class ToldOfChanges(SpanExporter):
        def __init__(self) -> None:
            self._is_well = True

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = inner.export(spans)
            is_well = result is SpanExportResult.SUCCESS
            if is_well != self._is_well:
                if is_well:
                    _LOG.warning("traces can be sent again")
                else:
                    _LOG.warning("traces cannot be sent to the collector, and are dropped")
            self._is_well = is_well
            return result

        def shutdown(self) -> None:
            inner.shutdown()

    return ToldOfChanges()
