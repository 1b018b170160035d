"""The extension that makes a span for each attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Collection, Iterable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context, attach, get_current
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        NoOpTracerProvider,
        ProxyTracerProvider,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        set_span_in_context,
    )
except ImportError as error:
    raise ModuleNotFoundError(
        "traces need opentelemetry-api: pip install 'aioparallel[otel]'", name="opentelemetry"
    ) from error

from aioparallel.config.extension import ConsumerContext, Extension, PartitionState
from aioparallel.config.handling import check_choice
from aioparallel.config.unknown_options import refuses_others
from aioparallel.handlers.stack import collect
from aioparallel.observe.traces.contexts import Contexts, NotSampled
from aioparallel.observe.traces.new_traces import NewTraces
from aioparallel.observe.traces.requests import traced_requests
from aioparallel.observe.traces.sending import TracedLetters, TracedOutputs
from aioparallel.records.errors import ConfigurationError, DeserializationError, UndecodableRecord
from aioparallel.records.record import Outgoing, Record, TopicPartition
from aioparallel.records.user_errors import class_of, text_of

if TYPE_CHECKING:
    from aioparallel.config.handling import CallNext
    from aioparallel.delivery.dead_letters import LetterBox
    from aioparallel.engine.sinks import OutputSink
    from aioparallel.group.assignment import Assignment
    from aioparallel.handlers.batches import Batch
    from aioparallel.http.requests import SendRequest

__all__ = ["OpenTelemetryTraces"]

AnyRecord = Record[Any, Any]

(_SPAN_KEY,) = set_span_in_context(INVALID_SPAN, Context())

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
_KEY_LENGTH: Final = 100
"""Characters of a key that become an attribute."""
_LINKS: Final = 128
"""Links of a span, OpenTelemetry's default limit: the SDK would drop the first ones."""
_NO_FAILURES: Final = ("waits", "put back")
"""What follows attempts that have not failed."""


class _Attempt:
    """The span of an attempt, or of a batch, and what is known of it. It stays until the record has its outcome."""

    __slots__ = ("context", "ended_at", "first", "is_open", "is_sampled", "span")

    def __init__(self, span: Span, context: Context, *, is_sampled: bool, first: Context | None = None) -> None:
        self.span = span
        self.context = context
        """Its children begin with this."""
        self.first = first
        """The same of the first attempt, if that has begun the trace."""
        self.is_sampled = self.is_open = is_sampled
        """``is_open``: whether its span has not ended."""
        self.ended_at: int | None = None
        """When the handler ended; None: it runs, or the record is deferred."""

    def end(self, follows: str, error: BaseException | None = None, delay: float | None = None) -> None:
        """End the span, once."""
        if not self.is_open:
            return
        self.is_open = False
        span = self.span
        span.set_attribute("aioparallel.outcome", follows)
        if delay is not None:
            span.set_attribute("aioparallel.delay", delay)
        if error is not None and follows not in _NO_FAILURES:
            span.set_attribute("error.type", class_of(error))
            span.set_status(StatusCode.ERROR, text_of(error))
            span.record_exception(error, timestamp=self.ended_at)
        span.end(self.ended_at)


@refuses_others
class OpenTelemetryTraces(Extension):
    """Traces of one consumer for OpenTelemetry: a span for each attempt, output, dead letter and HTTP request.

    ::

        consumer = ParallelConsumer("orders", group_id="billing", extensions=[OpenTelemetryTraces()])

    ``tracer_provider``: None: the global one when the run begins. Without one no spans are made, and trace contexts are
    passed on.
    ``propagator``: reads and writes contexts in headers. None: the global one, by default W3C Trace Context and
    Baggage.
    ``keys``: whether the first 100 characters of each key are an attribute; keys may be personal data.

    A record whose context says that its trace is not sampled gets no span. Otherwise the sampler of the provider
    decides. Raises ConfigurationError.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        keys: bool = False,
    ) -> None:
        if tracer_provider is not None and not isinstance(tracer_provider, TracerProvider):
            raise ConfigurationError("tracer_provider", tracer_provider, "must be an OpenTelemetry TracerProvider")
        if propagator is not None and not isinstance(propagator, TextMapPropagator):
            raise ConfigurationError("propagator", propagator, "must be an OpenTelemetry TextMapPropagator")
        check_choice("keys", keys, (True, False))
        self._provider = tracer_provider
        self._propagator = propagator
        self._keys = keys
        self._group = ""
        self.tracer: Tracer | None = None
        """Makes the spans; None: there is no provider."""
        self.contexts = Contexts(propagate.get_global_textmap() if propagator is None else propagator)
        """Reads and writes contexts."""
        self._read = self.contexts.read
        self.sending: set[Span] = set()
        """Spans of outputs that are not acknowledged yet."""
        self._sends = False  # handlers return outputs, not results()
        self._new: NewTraces | None = None
        self._base = Context()  # of records without a context of their own
        self._around: list[Link] = []  # to the span in which the consumer runs
        self._places: dict[tuple[str, int], tuple[str, dict[str, Any]]] = {}
        # Sampled records whose attempt runs, has failed or produces; and others whose outputs follow.
        self._attempts: dict[AnyRecord, _Attempt] = {}

    # -- the run ----------------------------------------------------------------------------------------

    def attach(self, consumer: ConsumerContext) -> None:
        """Note the group."""
        self._group = consumer.group_id

    async def start(self) -> None:
        """Look up the provider and the propagator, which may have been set since the extension was made."""
        provider = trace.get_tracer_provider() if self._provider is None else self._provider
        if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
            self.tracer = None
        else:
            self.tracer = provider.get_tracer("aioparallel", schema_url=_SCHEMA)
        self._new = None if self.tracer is None else NewTraces.of(self.tracer)
        if self._propagator is None:
            self.contexts = Contexts(propagate.get_global_textmap())
        self._read = self.contexts.read
        around = get_current_span().get_span_context()
        self._around = [Link(around)] if around.is_valid else []
        self._base = set_span_in_context(INVALID_SPAN) if around.is_valid else get_current()

    async def close(self) -> None:
        """End the spans of handlers that ignore their cancellation, and of outputs without an answer."""
        for attempt in self._attempts.values():
            attempt.end("put back")
        self._attempts.clear()
        for span in self.sending:
            span.end()
        self.sending.clear()

    # -- attempts ---------------------------------------------------------------------------------------

    async def attempt(self, item: Any, call_next: CallNext) -> object:
        """Run the handler in the context of its span, or of the record."""
        if type(item) is not Record:
            return await self._batch(item, call_next)
        # Each record runs in a copy of the worker's context: nothing needs to be detached.
        given = self._read(item.headers, self._base) if item.headers else None
        if type(given) is NotSampled:
            attach(Context({**self._base, _SPAN_KEY: given}))  # half the time of set_span_in_context()
            return await call_next(item)
        assert not isinstance(given, NotSampled)
        if self._new is not None and given is None and item not in self._attempts:
            left_out = self._new.left_out()
            if left_out is not None:
                context = Context({**self._base, _SPAN_KEY: left_out})
                attach(context)
                # As in _unsampled(), without its coroutine.
                try:
                    value = await call_next(item)
                except Exception:
                    self._attempts[item] = _Attempt(left_out, context, is_sampled=False)
                    raise
                if value is not None or (item._history is not None and item._history.deferral is not None):
                    self._attempts[item] = _Attempt(left_out, context, is_sampled=False)
                return value
            attempt = self._begin(item, self._base, self._new.tracer)
        elif self.tracer is None:
            attach(self._base if given is None else given)
            return await call_next(item)
        else:
            attempt = self._begin(item, given, self.tracer)
        attach(attempt.context)
        if attempt.is_sampled:
            return await self._sampled(attempt, (item,), item, call_next)
        return await self._unsampled(attempt, item, call_next)

    async def _unsampled(self, attempt: _Attempt, record: AnyRecord, call_next: CallNext) -> object:
        """Run the handler of a record whose trace the sampler has left out. Further attempts and outputs are left out,
        too."""
        try:
            value = await call_next(record)
        except Exception:
            self._attempts[record] = attempt
            raise
        if value is not None or (record._history is not None and record._history.deferral is not None):
            self._attempts[record] = attempt
        return value

    def _begin(self, record: AnyRecord, given: Context | None, tracer: Tracer) -> _Attempt:
        """Begin the span of an attempt, if it is sampled. ``given``: the context of the record. Without one, the first
        attempt begins the trace, and is the parent of the others."""
        before = self._attempts.pop(record, None) if self._attempts else None
        context, first = given or self._base, None
        parent = get_current_span(context).get_span_context()
        if before is not None and not parent.is_valid:
            first = context = before.first or before.context
            parent = get_current_span(context).get_span_context()
        if parent.is_valid and not parent.trace_flags.sampled:
            return _Attempt(INVALID_SPAN, context, is_sampled=False)
        if parent.is_valid or before is not None or self._around:
            links = [*self._around]
            if parent.is_valid:
                links.append(Link(parent))
            if before is not None and before.is_sampled:
                before.end("put back")
                links.append(Link(before.span.get_span_context()))
        else:
            links = self._around
        place = self._places.get((record.topic, record.partition)) or self._place(record.topic, record.partition)
        span = tracer.start_span(place[0], context, SpanKind.CONSUMER, place[1], links)
        is_sampled = span.is_recording()
        if is_sampled:
            span.set_attribute("messaging.kafka.offset", record.offset)
            span.set_attribute("aioparallel.attempt", record.attempt)
            if record.raw_value is None:
                span.set_attribute("messaging.kafka.message.tombstone", True)
            self.set_key(span, record.raw_key)
            origin = record.origin
            if origin.topic != record.topic:
                span.set_attribute("aioparallel.origin", f"{origin.topic}-{origin.partition} offset {origin.offset}")
        return _Attempt(span, set_span_in_context(span, context), is_sampled=is_sampled, first=first)

    def _place(self, topic: str, partition: int) -> tuple[str, dict[str, Any]]:
        """The name and those attributes of a span that are the same for all records of a partition."""
        attributes = self._attributes() | {
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
        }
        found = self._places[topic, partition] = f"process {topic}", attributes
        return found

    def _attributes(self) -> dict[str, Any]:
        return {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": self._group,
        }

    async def _sampled(self, attempt: _Attempt, records: Sequence[AnyRecord], item: Any, call_next: CallNext) -> object:
        """Run the handler, and end its span unless something is still to be known."""
        for record in records:
            self._attempts[record] = attempt
        try:
            value = await call_next(item)
            if self._sends and isinstance(value, AsyncIterable):
                value = await collect(value)
        except (Exception, asyncio.CancelledError):
            attempt.ended_at = time_ns()  # attempt_failed() follows
            raise
        except BaseException as error:
            attempt.end("stopped", error)
            raise
        if type(item) is not Record:
            _note_failures(attempt.span, item)
        elif item._history is not None and item._history.deferral is not None:
            return value  # handler_ended(), records_ended() or attempt_failed() follows
        elif value is None:
            self._attempts.pop(item, None)  # nothing follows
        attempt.end("succeeded")
        return value

    async def _batch(self, batch: Batch[AnyRecord], call_next: CallNext) -> object:
        if self.tracer is None:
            return await call_next(batch)
        if self._attempts:
            for record in batch:  # of the attempt before: this one may be left out
                before = self._attempts.pop(record, None)
                if before is not None:
                    before.end("put back")
        found = [(record, get_current_span(self.read(record.headers)).get_span_context()) for record in batch]
        sampled = [one for one in found if one[1].trace_flags.sampled]
        if not sampled and any(context.is_valid for _, context in found):
            return await call_next(batch)
        # A span without a parent would be sampled, or not, independently of the records.
        context = self.read(sampled[0][0].headers) if sampled else self._base
        links = [self._link(*one) for one in found if one[1].is_valid][: _LINKS - len(self._around)]
        attributes = self._attributes() | {"messaging.batch.message_count": len(batch)}
        topics = {record.topic for record in batch}
        name = "process"
        if len(topics) == 1:
            name = f"process {(topic := topics.pop())}"
            attributes["messaging.destination.name"] = topic
            if len(partitions := {record.partition for record in batch}) == 1:
                attributes["messaging.destination.partition.id"] = str(partitions.pop())
        span = self.tracer.start_span(name, context, SpanKind.CONSUMER, attributes, [*self._around, *links])
        attempt = _Attempt(span, set_span_in_context(span, context), is_sampled=span.is_recording())
        attach(attempt.context)
        if attempt.is_sampled:
            return await self._sampled(attempt, batch, batch, call_next)
        return await call_next(batch)

    def _link(self, record: AnyRecord, context: SpanContext) -> Link:
        attributes: dict[str, Any] = {
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        if self._keys and (key := _text_of_key(record.raw_key)) is not None:
            attributes["messaging.kafka.message.key"] = key
        return Link(context, attributes)

    def attempt_failed(self, record: AnyRecord, error: BaseException, follows: str, delay: float | None) -> None:
        """End the span of an attempt that has failed."""
        attempt = self._attempts.get(record)
        has_begun = attempt is not None and (attempt.is_open or not attempt.is_sampled)
        if not has_begun and self.tracer and isinstance(error, DeserializationError | UndecodableRecord):
            # No handler was called.
            attempt = self._attempts[record] = self._begin(record, self.read(record.headers), self.tracer)
        if attempt is None:
            return
        attempt.end(follows, error, delay)
        if follows in ("skipped", "released", "stopped", "put back") or record._source.dropped:
            self._attempts.pop(record, None)

    def forget(self, record: AnyRecord) -> None:
        """Forget a record without a span whose output is sent."""
        self._attempts.pop(record, None)

    def handler_ended(self, record: AnyRecord) -> None:
        """End the span of a record that was deferred, as its outputs are being sent."""
        attempt = self._attempts.get(record)
        if attempt is not None:
            attempt.end("succeeded")

    def records_ended(self, records: Sequence[AnyRecord], outcome: str) -> None:
        """Forget records."""
        if self._attempts:
            for record in records:
                attempt = self._attempts.pop(record, None)
                if attempt is not None:
                    attempt.end(outcome)

    def assigned(self, assignment: Assignment) -> PartitionState | None:
        """Forget records of partitions that are gone."""
        self._forget()
        return None

    def released(self, partition: TopicPartition) -> None:
        """Forget records of partitions that are gone."""
        self._forget()

    def _forget(self) -> None:
        for record, attempt in [*self._attempts.items()]:
            if record._source.dropped and (not attempt.is_open or attempt.ended_at is not None):
                attempt.end("put back")
                del self._attempts[record]

    # -- outputs, dead letters and requests ---------------------------------------------------------------

    def output_sink(self, sink: OutputSink) -> OutputSink:
        """Send outputs with trace contexts."""
        self._sends = True
        return TracedOutputs(sink, self)

    def letter_box(self, box: LetterBox) -> LetterBox:
        """Send dead letters with trace contexts."""
        return TracedLetters(box, self)

    def around_requests(self, send: SendRequest, kept: Collection[str] | None) -> SendRequest:
        """Make a span for each request."""
        return traced_requests(self, send, kept)

    def is_sampled(self, record: AnyRecord) -> bool:
        """Whether this record has a span."""
        attempt = self._attempts.get(record)
        return attempt is not None and attempt.is_sampled

    def context_of(self, record: AnyRecord) -> Context:
        """Return the context in which the handler of this record ran."""
        attempt = self._attempts.get(record)
        return self.read(record.headers) if attempt is None else attempt.context

    def read(self, headers: Iterable[tuple[str, bytes | None]]) -> Context:
        """Return the context in some headers."""
        given = self.contexts.read(tuple(headers), self._base)
        if given is None:
            return self._base
        return set_span_in_context(given, self._base) if isinstance(given, NotSampled) else given

    def headers_for(self, record: AnyRecord, output: Outgoing) -> list[tuple[str, bytes]]:
        """Return the headers by which an output of a record without a span passes its context on."""
        attempt = self._attempts.get(record)
        if attempt is None and not record.headers:
            return []
        try:
            if self.contexts.has_one(output.headers):
                return []
        except (TypeError, ValueError):  # sending it reports that
            return []
        if attempt is not None:
            return self.contexts.written(attempt.context)
        given = self.contexts.read(record.headers, self._base)
        if given is None:
            return []
        return given.written if isinstance(given, NotSampled) else self.contexts.written(given)

    def set_key(self, span: Span, key: bytes | None) -> None:
        """Set the attribute of the key, if it is wanted and a text."""
        if self._keys and (text := _text_of_key(key)) is not None:
            span.set_attribute("messaging.kafka.message.key", text)


def _text_of_key(key: bytes | None) -> str | None:
    """The beginning of a key; None if it is no text: then it has no canonical form as one."""
    if not isinstance(key, bytes):
        return None
    try:
        return key.decode()[:_KEY_LENGTH]
    except UnicodeDecodeError:
        return None


def _note_failures(span: Span, batch: Batch[AnyRecord]) -> None:
    """Add the failures of single records of a batch."""
    failures = batch.failures
    if not failures:
        return
    span.set_attribute("aioparallel.batch.failed_count", len(failures))
    for index, error in [*failures.items()][:_LINKS]:
        record = batch[index]
        where: dict[str, Any] = {
            "messaging.destination.name": record.topic,
            "messaging.destination.partition.id": str(record.partition),
            "messaging.kafka.offset": record.offset,
        }
        span.record_exception(error, where)
