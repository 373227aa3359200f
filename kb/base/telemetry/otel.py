"""Spans for OpenTelemetry: of requests, SQL, Redis, HTTP, tasks, and the stages of searches. Off unless an endpoint is set."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any, Final

from retrieval.types import Span

logger = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
INSTRUMENTORS: Final = (
    "django:DjangoInstrumentor",
    "psycopg:PsycopgInstrumentor",
    "redis:RedisInstrumentor",
    "celery:CeleryInstrumentor",
    "httpx:HTTPXClientInstrumentor",
)
_started: list[Any] = []


def is_wanted() -> bool:
    return any(map(os.environ.get, ENDPOINTS)) and os.environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def start(process: str) -> None:
    """Begins exporting spans of "web", "worker" or "mcp", once a process: after a fork, before Django's middleware."""
    if _started or not is_wanted():
        return
    if not find_spec("opentelemetry.instrumentation") or not find_spec("opentelemetry.sdk"):
        logger.warning(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and OpenTelemetry is not installed: pip install 'zhiku[otel]'."
        )
        return
    # Read when the module for Django is imported.
    os.environ.setdefault("OTEL_PYTHON_DJANGO_EXCLUDED_URLS", "api/v1/health/,api/v1/ready/,metrics")
    from opentelemetry import trace  # noqa: PLC0415 - an extra
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    name = os.environ.get("OTEL_SERVICE_NAME") or f"zhiku-{process}"
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": version("zhiku")}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    _started.append(provider)
    for path in INSTRUMENTORS:
        resolve_name(f"opentelemetry.instrumentation.{path}")().instrument()


def flush() -> None:
    for provider in _started:
        provider.force_flush(5_000)


@contextmanager
def request_span(name: str, headers: Mapping[str, str]) -> Iterator[None]:
    """The span of a request that does not come by Django, below that of its caller where the headers name one."""
    if not _started:
        yield
        return
    from opentelemetry import propagate, trace  # noqa: PLC0415 - an extra, which is in use here

    tracer = trace.get_tracer("zhiku.mcp")
    with tracer.start_as_current_span(name, propagate.extract(dict(headers)), trace.SpanKind.SERVER):
        yield


def record_stages(spans: Iterable[Span], trace_id: str) -> None:
    """The stages of a search, as the pipeline has timed them, as spans below the current one."""
    if not _started:
        return
    from opentelemetry import trace  # noqa: PLC0415 - an extra, which is in use here

    tracer = trace.get_tracer("zhiku.retrieval")
    trace.get_current_span().set_attribute("zhiku.trace_id", trace_id)
    offset = time.time_ns() - time.perf_counter_ns()
    for span in spans:
        ended = offset + int(span.ended * 1e9)
        # Counts and scores; what was searched for stays here.
        detail = {
            f"zhiku.{name}": value for name, value in span.detail.items() if isinstance(value, bool | int | float)
        }
        begun = ended - int(span.milliseconds * 1e6)
        tracer.start_span(f"search {span.stage}", start_time=begun, attributes=detail).end(ended)
