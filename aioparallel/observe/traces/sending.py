"""Sends outputs and dead letters with a trace context, and makes the spans of those that are sampled."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, set_span_in_context

from aioparallel.observe.traces.contexts import with_headers
from aioparallel.records.record import Outgoing, Record
from aioparallel.records.user_errors import class_of, text_of

if TYPE_CHECKING:
    from aioparallel.delivery.dead_letters import LetterBox
    from aioparallel.engine.sinks import DeliveryListener, Offered, OutputSink
    from aioparallel.observe.traces.opentelemetry import OpenTelemetryTraces

__all__ = ["TracedLetters", "TracedOutputs"]

AnyRecord = Record[Any, Any]


class TracedLetters:
    """A :class:`~aioparallel.delivery.dead_letters.LetterBox` around another one."""

    def __init__(self, box: LetterBox, traces: OpenTelemetryTraces) -> None:
        self._box = box
        self._traces = traces

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity."""
        return self._box.room()

    def deliver(self, record: AnyRecord, letter: Sequence[Outgoing], listener: DeliveryListener) -> None:
        """Send it with the context of its span, unless it has one already."""
        self._box.deliver(record, *sent(self._traces, record, letter, listener))


class TracedOutputs:
    """An :class:`~aioparallel.engine.sinks.OutputSink` around another one."""

    def __init__(self, sink: OutputSink, traces: OpenTelemetryTraces) -> None:
        self._sink = sink
        self._traces = traces
        self.is_exact = sink.is_exact

    def offer(self, record: AnyRecord, value: object, listener: DeliveryListener) -> Offered | None:
        """Send a single output at once. Outputs with a span take the other way."""
        if type(value) is Outgoing:
            if self._traces.is_sampled(record):
                return None
            if headers := self._traces.headers_for(record, value):
                value = with_headers(value, headers)
        offered = self._sink.offer(record, value, listener)
        if offered is not None:
            self._traces.forget(record)
        return offered

    def collect(self, record: AnyRecord, value: object) -> object | None:
        """Return the outputs in a value."""
        return self._sink.collect(record, value)

    def room(self) -> Awaitable[None] | None:
        """Return None if there is capacity."""
        return self._sink.room()

    def deliver(
        self,
        record: AnyRecord,
        collected: object,
        listener: DeliveryListener,
        together: Sequence[AnyRecord] = (),
    ) -> None:
        """Send outputs with the contexts of their spans, unless they have one already."""
        outputs = cast("Sequence[Outgoing]", collected)
        self._sink.deliver(record, *sent(self._traces, record, outputs, listener), together)


def sent(
    traces: OpenTelemetryTraces, record: AnyRecord, outputs: Sequence[Outgoing], listener: DeliveryListener
) -> tuple[Sequence[Outgoing], DeliveryListener]:
    """Return what is sent instead of these outputs, and what is told about them."""
    traces.handler_ended(record)
    if traces.is_sampled(record) and _are_valid(outputs):
        sending = _Sending(traces, record, listener)
        return [sending.begin(output) for output in outputs], sending
    return [with_headers(one, headers) if (headers := traces.headers_for(record, one)) else one for one in outputs], (
        listener
    )


def _are_valid(outputs: Sequence[Outgoing]) -> bool:
    try:
        for output in outputs:
            output.check()
    except TypeError:  # changed after it was made: sending it reports that
        return False
    return True


class _Sending:
    """The spans of the outputs of one record. They end when the outputs are acknowledged."""

    def __init__(self, traces: OpenTelemetryTraces, record: AnyRecord, listener: DeliveryListener) -> None:
        self._traces = traces
        self._record = record
        self._listener = listener
        self._spans: list[Span] = []

    def begin(self, output: Outgoing) -> Outgoing:
        """Return the output with the context of its new span. A context that it has already stays, and the span has a
        link to it."""
        tracer, contexts = self._traces.tracer, self._traces.contexts
        assert tracer is not None
        parent = self._traces.context_of(self._record)
        kind, links = SpanKind.PRODUCER, list[Link]()
        if has_own := contexts.has_one(output.headers):
            kind = SpanKind.CLIENT  # another span is where the record comes from
            creation = get_current_span(self._traces.read(tuple(output.headers))).get_span_context()
            if creation.is_valid:
                links.append(Link(creation))
        attributes: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": output.topic,
        }
        if output.partition is not None:
            attributes["messaging.destination.partition.id"] = str(output.partition)
        span = tracer.start_span(f"send {output.topic}", parent, kind, attributes, links)
        if span.is_recording():
            if output.value is None:
                span.set_attribute("messaging.kafka.message.tombstone", True)
            self._traces.set_key(span, output.key)
            self._spans.append(span)
            self._traces.sending.add(span)
        if has_own:
            return output
        return with_headers(output, contexts.written(set_span_in_context(span, parent)))

    def _end(self, error: Exception | None) -> None:
        for span in self._spans:
            if span not in self._traces.sending:
                continue  # ended with the consumer
            if error is not None:
                span.set_attribute("error.type", class_of(error))
                span.set_status(StatusCode.ERROR, text_of(error))
            span.end()
            self._traces.sending.discard(span)
        self._spans.clear()

    def delivered(self, records: Sequence[AnyRecord]) -> None:
        self._end(None)
        self._listener.delivered(records)

    def undelivered(self, record: AnyRecord, error: Exception) -> None:
        self._end(error)
        self._listener.undelivered(record, error)
