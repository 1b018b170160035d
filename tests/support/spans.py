"""Finished spans, and traces as trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import Link, SpanContext, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["Spans", "attributes_of", "context_of", "linked", "span_id"]


class Spans:
    """A provider that keeps its spans."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.provider = TracerProvider(sampler=sampler or ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        """All that have ended, by their beginning."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]

    @property
    def traces(self) -> set[int]:
        return {context_of(span).trace_id for span in self.ended}

    @contextmanager
    def sending(self, topic: str) -> Iterator[list[tuple[str, bytes]]]:
        """A producer's span; yields the headers of its record."""
        with self.tracer.start_as_current_span(f"send {topic}", kind=SpanKind.PRODUCER):
            carrier: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(carrier)
            yield [(name, value.encode()) for name, value in carrier.items()]

    def tree(self) -> str:
        """The spans of all traces, each below its parent."""
        spans, lines = self.ended, list[str]()
        known = {context_of(span).span_id for span in spans}

        def add(span: ReadableSpan, depth: int) -> None:
            lines.append("  " * depth + _line(span))
            for child in spans:
                if child.parent is not None and child.parent.span_id == context_of(span).span_id:
                    add(child, depth + 1)

        for span in spans:
            if span.parent is None or span.parent.span_id not in known:
                add(span, 0)
        return "\n".join(lines)


def _line(span: ReadableSpan) -> str:
    shown = [f"{span.name} [{span.kind.name}]"]
    attributes = attributes_of(span)
    if "aioparallel.attempt" in attributes:
        shown.append(f"attempt {attributes['aioparallel.attempt']}")
    if "messaging.batch.message_count" in attributes:
        shown.append(f"{attributes['messaging.batch.message_count']} records")
    shown += [str(attributes[name]) for name in ("aioparallel.outcome", "error.type") if name in attributes]
    return ", ".join(shown)


def attributes_of(one: ReadableSpan | Link) -> dict[str, Any]:
    return dict(one.attributes or {})


def context_of(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


def span_id(span: ReadableSpan) -> int:
    return context_of(span).span_id


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it has links to."""
    return [link.context.span_id for link in span.links]
