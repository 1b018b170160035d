"""Which spans are made, what is current in handlers, and how spans end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, get_current_span

from aioparallel import (
    ConfigurationError,
    FailurePolicy,
    Outgoing,
    Record,
    RetryLater,
    RetryPolicy,
    Transactions,
    batches,
    in_threads,
)
from aioparallel.config.handling import CallNext
from aioparallel.http import Request, http_handler
from aioparallel.observe.traces import OpenTelemetryTraces
from aioparallel.observe.traces.new_traces import NewTraces
from aioparallel.observe.traces.sending import _Sending
from aioparallel.testing.memory import InMemoryBroker
from tests.support import extensions as plain
from tests.support.http.service import service
from tests.support.memory.consuming import consumer_of
from tests.support.spans import Spans, attributes_of, context_of, linked, span_id
from tests.support.waiting import until

SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C
FORGIVING = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=2), give_up="skip")


@pytest.fixture
def broker() -> InMemoryBroker:
    made = InMemoryBroker()
    for topic in ("t", "out"):
        made.create_topic(topic, 1)
    return made


@pytest.fixture
def spans() -> Spans:
    return Spans()


def append(broker: InMemoryBroker, parent: bytes | None, *more: tuple[str, bytes]) -> None:
    headers = more if parent is None else (("traceparent", parent), *more)
    broker.append("t", b"v", key=b"k", headers=headers)


async def run(broker: InMemoryBroker, traces: OpenTelemetryTraces, handler: Any, **options: Any) -> None:
    async with asyncio.timeout(20), consumer_of(broker, until="end", extensions=[traces], **options) as consumer:
        await consumer.run(handler)
    assert not traces._attempts
    assert not traces.sending


def of(spans: Spans, **options: Any) -> OpenTelemetryTraces:
    return OpenTelemetryTraces(tracer_provider=spans.provider, **options)


def now() -> SpanContext:
    return get_current_span().get_span_context()


# -- sampling ---------------------------------------------------------------------------------------


async def test_traces_that_are_not_sampled(broker: InMemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No span is begun, whatever the sampler would say. The handler sees the context, and outputs pass it on."""
    spans, found = Spans(ALWAYS_ON), list[SpanContext]()
    append(broker, NOT_SAMPLED, ("tracestate", b"a=1"))
    append(broker, NOT_SAMPLED, ("baggage", b"user=anna"))

    async def handle(record: Record) -> Outgoing:
        found.append(now())
        if record.offset == 1:
            assert baggage.get_baggage("user") == "anna"
        return Outgoing("out", b"1", headers=(("own", b"1"),))

    traces = of(spans)
    provider = spans.provider
    tracer = provider.get_tracer("aioparallel")
    monkeypatch.setattr(type(tracer), "start_span", None)
    await run(broker, traces, handle)
    assert not spans.ended
    assert [(one.trace_id, one.trace_flags.sampled, one.is_remote) for one in found] == [(TRACE, False, True)] * 2
    first, second = broker.records("out")
    assert first.headers == (("own", b"1"), ("traceparent", NOT_SAMPLED), ("tracestate", b"a=1"))
    assert dict(second.headers) == {"own": b"1", "traceparent": NOT_SAMPLED, "baggage": b"user=anna"}


async def test_without_a_provider(broker: InMemoryBroker) -> None:
    """No span is made, also for sampled traces, which are passed on."""
    append(broker, SAMPLED)
    append(broker, None)
    found = []

    async def handle(record: Record) -> Outgoing:
        found.append(get_current_span())
        return Outgoing("out", b"1")

    async def handle_all(batch: Any) -> None: ...

    await run(broker, OpenTelemetryTraces(), handle)
    assert [(one.get_span_context().trace_id, one.is_recording()) for one in found] == [(TRACE, False), (0, False)]
    assert [record.headers for record in broker.records("out")] == [(("traceparent", SAMPLED),), ()]
    append(broker, SAMPLED)
    await run(broker, OpenTelemetryTraces(), batches(handle_all))


async def test_the_sampler_decides_about_new_traces(broker: InMemoryBroker) -> None:
    """What it leaves out is left out downstream as well: outputs say so."""
    spans = Spans(ParentBased(TraceIdRatioBased(0)))
    append(broker, None)
    append(broker, SAMPLED)
    await run(broker, of(spans), sends)
    (span,) = spans.named("process t")
    assert attributes_of(span)["messaging.kafka.offset"] == 1
    first, second = (dict(record.headers)["traceparent"] or b"" for record in broker.records("out"))
    assert first.endswith((b"-00", b"-02"))
    assert second.split(b"-")[1] == SAMPLED.split(b"-")[1]


async def sends(record: Record) -> Outgoing:
    return Outgoing("out", b"1")


async def test_transactions(spans: Spans) -> None:
    """Outputs have contexts there, too, with and without a span."""
    broker = plain.broker_of()
    for parent in (SAMPLED, NOT_SAMPLED):
        broker.append("t", b"v", headers=(("traceparent", parent),))
    traces = of(spans)
    async with asyncio.timeout(20):
        consumer = plain.consumer_of(broker, traces, commits=Transactions(), until="end")
        async with consumer:
            await consumer.run(sends)
    first, second = (dict(record.headers)["traceparent"] or b"" for record in broker.records("out"))
    (span,) = spans.named("send out")
    assert int(first.split(b"-")[2], 16) == span_id(span)
    assert second == NOT_SAMPLED
    assert not traces._attempts
    assert not traces.sending


async def test_batches_that_are_not_sampled(broker: InMemoryBroker, spans: Spans) -> None:
    """They have no span if a record says so and none says otherwise."""
    append(broker, NOT_SAMPLED)
    append(broker, None)

    async def handle(batch: Any) -> Outgoing:
        return Outgoing("out", b"1")

    await run(broker, of(spans), batches(handle, size=2))
    assert not spans.ended
    append(broker, SAMPLED)
    append(broker, NOT_SAMPLED)
    await run(broker, of(spans), batches(handle, size=2))
    (span,) = spans.named("process t")
    assert len(linked(span)) == 2


async def test_a_record_that_runs_alone_after_its_batch(broker: InMemoryBroker, spans: Spans) -> None:
    """The span of the batch has nothing to do with the next attempt of a record that is not sampled."""
    append(broker, SAMPLED)
    append(broker, NOT_SAMPLED)

    async def handle(batch: Any) -> Outgoing:
        if len(batch) > 1:
            raise ValueError("no")
        return Outgoing("out", b"%d" % batch[0].offset)

    await run(broker, of(spans), batches(handle, size=2), failures=FORGIVING)
    assert len(spans.named("process t")) == 2
    (sent,) = spans.named("send out")
    headers = {record.value: dict(record.headers) for record in broker.records("out")}
    assert int((headers[b"0"]["traceparent"] or b"").split(b"-")[2], 16) == span_id(sent)
    assert "traceparent" not in headers[b"1"] or headers[b"1"]["traceparent"] == NOT_SAMPLED


# -- what is current ----------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["context", "task"])
async def test_the_span_is_current(broker: InMemoryBroker, spans: Spans, isolation: Any) -> None:
    """In middleware and handlers, and in what they start. Nothing of a record reaches the next one of its worker."""
    for number in range(50):
        append(broker, SAMPLED if number % 2 else None, *([("baggage", b"n=%d" % number)] if number % 2 else []))
    seen = list[tuple[SpanContext, object]]()

    async def around(record: Record, call_next: CallNext) -> object:
        with spans.tracer.start_as_current_span("middleware"):
            return await call_next(record)

    async def handle(record: Record) -> None:
        with spans.tracer.start_as_current_span(f"work {record.offset}"):
            if record.offset % 3 == 0:
                await asyncio.sleep(0)
            seen.append((now(), baggage.get_baggage("n")))

    await run(broker, of(spans), handle, middleware=[around], isolation=isolation, max_concurrency=2)
    parents = {attributes_of(span)["messaging.kafka.offset"]: span for span in spans.named("process t")}
    between = {span.parent.span_id: span_id(span) for span in spans.named("middleware") if span.parent}
    for number in range(50):
        (work,) = spans.named(f"work {number}")
        assert work.parent is not None
        assert work.parent.span_id == between[span_id(parents[number])]
        assert (context_of(work).trace_id == TRACE) is bool(number % 2)
    assert [found for _, found in seen] == [str(number) if number % 2 else None for number in range(50)]


async def test_threads_iterators_and_deferrals(broker: InMemoryBroker, spans: Spans) -> None:
    """The span is current in a thread and in an async iterator, and lasts until a deferral is completed."""
    seen = list[int]()

    @in_threads
    def in_thread(record: Record) -> Outgoing:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(now().span_id)
        return Outgoing("out", b"1")

    async def yields(record: Record) -> AsyncIterator[Outgoing]:
        yield Outgoing("out", b"1")
        await asyncio.sleep(0)
        seen.append(now().span_id)
        yield Outgoing("out", b"2")

    async def returns(record: Record) -> AsyncIterator[Outgoing]:
        return yields(record)

    async def defers(record: Record) -> None:
        seen.append(now().span_id)
        deferral = record.defer(5)
        complete = deferral.fail if record.attempt == 1 else lambda _: deferral.complete(Outgoing("out", b"1"))
        asyncio.get_running_loop().call_later(0.05, complete, ValueError("no"))

    for handler in (in_thread, yields, returns, defers):
        seen.clear()
        broker, spans = InMemoryBroker(), Spans()
        broker.create_topic("t", 1)
        broker.create_topic("out", 1)
        append(broker, SAMPLED)
        await run(broker, of(spans), handler, failures=FORGIVING)
        processed = spans.named("process t")
        assert [span_id(span) for span in processed] == seen
        assert {span.parent.span_id for span in spans.named("send out") if span.parent} == {seen[-1]}
        if handler is defers:
            assert [attributes_of(span)["aioparallel.outcome"] for span in processed] == ["retried", "succeeded"]
            assert all((span.end_time or 0) - (span.start_time or 0) > 40e6 for span in processed)


# -- outputs ------------------------------------------------------------------------------------------


async def test_outputs_with_a_context_of_their_own(broker: InMemoryBroker, spans: Spans) -> None:
    """They are left alone, and so is an object that is returned for each record."""
    own = b"00-11111111111111111111111111111111-2222222222222222-01"
    same = Outgoing("out", b"same")
    for _ in range(2):
        append(broker, SAMPLED)
    append(broker, NOT_SAMPLED)

    async def handle(record: Record) -> list[Outgoing]:
        return [same, Outgoing("out", b"own", headers=(("traceparent", own),))]

    await run(broker, of(spans), handle)
    assert same.headers == ()
    of_same = [record for record in broker.records("out") if record.value == b"same"]
    assert len({dict(record.headers)["traceparent"] for record in of_same}) == 3
    assert all(record.headers == (("traceparent", own),) for record in broker.records("out") if record.value == b"own")
    links = [linked(span) for span in spans.named("send out") if span.kind is trace.SpanKind.CLIENT]
    assert links == [[0x2222222222222222]] * 2


@pytest.mark.parametrize("with_provider", [True, False])
async def test_baggage_is_written_once(broker: InMemoryBroker, spans: Spans, with_provider: bool) -> None:
    """Outputs and dead letters that have the baggage of their record get no second one, and no other one."""
    broker.create_topic("t.dlq", 1)
    append(broker, None, ("baggage", b"user=anna"))
    append(broker, None, ("baggage", b"user=anna"))

    async def handle(record: Record) -> Outgoing:
        if record.offset == 0:
            raise ValueError("no")
        return Outgoing("out", b"1", headers=(("baggage", b"user=bob"),))

    failures = FailurePolicy(retry=RetryPolicy(max_attempts=1), dead_letter="t.dlq")
    await run(broker, of(spans) if with_provider else OpenTelemetryTraces(), handle, failures=failures)
    for topic, value in (("t.dlq", b"user=anna"), ("out", b"user=bob")):
        (record,) = broker.records(topic)
        assert [one for name, one in record.headers if name == "baggage"] == [value]
        assert ("traceparent" in dict(record.headers)) is with_provider


async def test_baggage_alone_is_no_parent(broker: InMemoryBroker, spans: Spans) -> None:
    """The first attempt begins the trace, and is the parent of the others."""
    append(broker, None, ("baggage", b"user=anna"))
    users = []

    async def handle(record: Record) -> None:
        users.append(baggage.get_baggage("user"))
        raise ValueError("no")

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=3), give_up="skip")
    await run(broker, of(spans), handle, failures=failures)
    first, *others = spans.named("process t")
    assert [span.parent.span_id for span in others if span.parent] == [span_id(first)] * 2
    assert users == ["anna"] * 3


async def test_results_are_what_handlers_return(broker: InMemoryBroker, spans: Spans) -> None:
    """Whether a record is sampled or not: an async iterator is a result like any other."""
    append(broker, SAMPLED)
    append(broker, NOT_SAMPLED)

    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def handle(record: Record) -> AsyncIterator[int]:
        return numbers()

    async with asyncio.timeout(20), consumer_of(broker, until="end", extensions=[of(spans)]) as consumer:
        found = [[number async for number in value] async for _, value in consumer.results(handle)]
    assert found == [[1], [1]]
    assert len(spans.named("process t")) == 1


@pytest.mark.parametrize("together", [False, True])
async def test_an_output_that_is_changed_to_something_invalid(
    broker: InMemoryBroker, spans: Spans, together: bool
) -> None:
    """It fails its record, as without traces."""
    append(broker, SAMPLED)

    async def handle(record: Any) -> Outgoing:
        output = Outgoing("out", b"1")
        output.headers = [1]  # type: ignore[list-item]
        return output

    await run(broker, of(spans), batches(handle) if together else handle, failures=FORGIVING)
    assert not broker.records("out")
    assert not spans.named("send out")


async def test_outputs_that_are_refused(broker: InMemoryBroker, spans: Spans) -> None:
    """Their span has the error, and the next attempt a link to the one before."""
    append(broker, SAMPLED)

    async def handle(record: Record) -> Outgoing:
        return Outgoing("out" if record.attempt == 2 else "missing", b"1")

    await run(broker, of(spans), handle, failures=FORGIVING)
    (refused,) = spans.named("send missing")
    assert attributes_of(refused)["error.type"] == "aioparallel.errors.ProduceFailed"
    first, second = spans.named("process t")
    assert [attributes_of(one)["aioparallel.outcome"] for one in (first, second)] == ["succeeded"] * 2
    assert linked(second) == [0xB7AD6B7169203331, span_id(first)]


async def test_an_output_that_is_acknowledged_after_the_end(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    """Its span has ended with the consumer, and is not ended again."""

    class Listener:
        def delivered(self, records: Any) -> None:
            told.append(records)

        def undelivered(self, record: Record, error: Exception) -> None: ...

    traces, told = of(spans), list[Any]()
    await traces.start()
    record: Record = Record("t", 0, 0, None, b"")
    sending = _Sending(traces, record, Listener())
    sending.begin(Outgoing("out", b"1"))
    await traces.close()
    sending.delivered([record])
    assert len(spans.named("send out")) == len(told) == 1
    assert not caplog.records


# -- ends ---------------------------------------------------------------------------------------------


async def test_delays_and_unreadable_values(broker: InMemoryBroker, spans: Spans) -> None:
    """A requested delay is no error. A record that cannot be deserialised has a span although no handler was called."""
    append(broker, SAMPLED)
    broker.append("t", b"bad", headers=(("traceparent", SAMPLED),))
    asked = list[int]()

    def read(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError("bad")
        return value

    async def handle(record: Record) -> None:
        asked.append(record.offset)
        if len(asked) == 1:
            raise RetryLater(0.01)

    await run(broker, of(spans, keys=True), handle, failures=FORGIVING, value_deserializer=read)
    assert asked == [0, 0]
    found = [attributes_of(span) for span in spans.named("process t")]
    by_offset = {number: [one for one in found if one["messaging.kafka.offset"] == number] for number in (0, 1)}
    assert [one["aioparallel.outcome"] for one in by_offset[0]] == ["waits", "succeeded"]
    assert all("error.type" not in one and one["messaging.kafka.message.key"] == "k" for one in by_offset[0])
    (unreadable,) = by_offset[1]
    assert unreadable["aioparallel.outcome"] == "skipped"
    assert unreadable["error.type"] == "aioparallel.errors.DeserializationError"


async def test_each_attempt_to_deserialize_has_a_span(broker: InMemoryBroker, spans: Spans) -> None:
    """They are retried if nothing else can be done with the record."""
    append(broker, SAMPLED)
    asked = list[bytes]()

    def read(value: bytes) -> bytes:
        asked.append(value)
        if len(asked) < 3:
            raise ValueError("bad")
        return value

    async def handle(record: Record) -> None: ...

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=5), give_up="stop")
    await run(broker, of(spans), handle, failures=failures, value_deserializer=read)
    found = [attributes_of(span)["aioparallel.outcome"] for span in spans.named("process t")]
    assert found == ["retried", "retried", "succeeded"]


async def test_deadlines_stops_and_lost_partitions(broker: InMemoryBroker, spans: Spans) -> None:
    """The span of each handler that is cancelled ends: an error only at its deadline."""
    append(broker, SAMPLED)

    async def hangs(record: Record) -> None:
        await asyncio.Event().wait()

    await run(broker, of(spans), hangs, failures=FORGIVING, handler_timeout=0.05)
    found = [attributes_of(span) for span in spans.named("process t")]
    assert [one["aioparallel.outcome"] for one in found] == ["retried", "skipped"]
    assert {one["error.type"] for one in found} == {"aioparallel.errors.HandlerTimeout"}

    append(broker, SAMPLED)
    traces = of(spans)
    async with asyncio.timeout(20), consumer_of(broker, extensions=[traces], drain_timeout=0.05) as consumer:
        running = asyncio.create_task(consumer.run(hangs))
        await until(lambda: traces._attempts)
        consumer.stop()
        await running
    assert not traces._attempts
    stopped = spans.named("process t")[-1]
    assert attributes_of(stopped)["aioparallel.outcome"] == "put back"
    assert "error.type" not in attributes_of(stopped)


async def test_handlers_that_ignore_their_cancellation(broker: InMemoryBroker, spans: Spans) -> None:
    """Their span ends when the consumer is left."""
    append(broker, SAMPLED)
    release = asyncio.Event()

    async def stubborn(record: Record) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    traces = of(spans)
    async with asyncio.timeout(20), consumer_of(broker, extensions=[traces], drain_timeout=0.05) as consumer:
        running = asyncio.create_task(consumer.run(stubborn))
        await until(lambda: traces._attempts)
        consumer.stop()
        await running
    (span,) = spans.named("process t")
    assert attributes_of(span)["aioparallel.outcome"] == "put back"
    release.set()
    await asyncio.sleep(0.05)


async def test_the_span_around_the_run(broker: InMemoryBroker, spans: Spans) -> None:
    """It is not the parent of all records: they have links to it."""
    append(broker, None)
    with spans.tracer.start_as_current_span("main") as main:
        await run(broker, of(spans), sends)
    (span,) = spans.named("process t")
    assert span.parent is None
    assert linked(span) == [main.get_span_context().span_id]


# -- beside others ------------------------------------------------------------------------------------


@contextmanager
def instrumented(name: str, class_name: str, spans: Spans) -> Iterator[None]:
    module = pytest.importorskip(f"opentelemetry.instrumentation.{name}")
    one = getattr(module, class_name)()
    one.instrument(tracer_provider=spans.provider, skip_dep_check=True)
    try:
        yield
    finally:
        one.uninstrument()


@pytest.mark.parametrize("client", ["httpx", "aiohttp", "own"])
@pytest.mark.parametrize(
    ("name", "class_name"), [("httpx", "HTTPXClientInstrumentor"), ("aiohttp_client", "AioHttpClientInstrumentor")]
)
async def test_instrumented_clients(
    broker: InMemoryBroker, spans: Spans, client: Any, name: str, class_name: str
) -> None:
    """One span a request, whose context the request carries."""
    import httpx  # noqa: PLC0415

    append(broker, SAMPLED)
    with instrumented(name, class_name, spans):
        async with service() as served:
            if client == "own":
                client = lambda connections: httpx.AsyncClient()  # noqa: E731
            ask: Any = http_handler(lambda record: Request("GET", "/"), base_url=served.url, client=client)
            await run(broker, of(spans), ask)
            (asked,) = served.asked
    (span,) = spans.named("GET")
    assert int(asked.headers["traceparent"].split("-")[2], 16) == span_id(span)


async def test_requests_without_a_span(broker: InMemoryBroker, spans: Spans) -> None:
    """Contexts that are not sampled are passed on; with ``trace=False`` none is."""
    append(broker, NOT_SAMPLED)
    async with service() as served:
        for passes_on in (True, False):
            ask: Any = http_handler(lambda record: Request("GET", "/"), base_url=served.url, trace=passes_on)
            await run(broker, of(spans), ask)
            append(broker, SAMPLED)
        first, second = served.asked
    assert first.headers["traceparent"] == NOT_SAMPLED.decode()
    assert "traceparent" not in second.headers
    assert len(spans.named("GET")) == 1


async def test_requests_that_fail(broker: InMemoryBroker, spans: Spans) -> None:
    """A status or an error of the connection."""
    from aiohttp import web  # noqa: PLC0415

    append(broker, SAMPLED)
    async with service() as served:
        served.answer = lambda request: web.Response(status=404)
        ask: Any = http_handler(lambda record: Request("GET", "/"), base_url=served.url)
        await run(broker, of(spans), ask, failures=FORGIVING)
    append(broker, SAMPLED)
    await run(broker, of(spans), http_handler(lambda r: Request("GET", served.url)), failures=FORGIVING)
    found = [attributes_of(span) for span in spans.named("GET")]
    assert (found[0]["http.response.status_code"], found[0]["error.type"]) == (404, "404")
    assert [one["error.type"] for one in found[1:]] == ["aioparallel.errors.RequestFailed"] * 2


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"tracer_provider": 1}, {"propagator": 1}, {"keys": 1}])
def test_options_are_checked(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        OpenTelemetryTraces(**options)


def test_nothing_is_imported_unless_used() -> None:
    """Neither with the package nor with its module."""
    code = (
        "import sys, aioparallel, aioparallel.observe.traces, aioparallel.http; print('opentelemetry' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "False\n"


class Plain(TextMapPropagator):
    """Not W3C's."""

    fields = frozenset({"x-trace"})  # type: ignore[assignment]

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        found = getter.get(carrier, "x-trace")
        if not found:
            return context
        parent = SpanContext(int(found[0], 16), 1, True, trace.TraceFlags(1))
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), context)

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        setter.set(carrier, "x-trace", f"{get_current_span(context).get_span_context().trace_id:x}")


async def test_another_propagator(broker: InMemoryBroker, spans: Spans) -> None:
    """Its headers are read and written."""
    append(broker, None, ("x-trace", b"abc"))
    await run(broker, of(spans, propagator=Plain()), sends)
    (span,) = spans.named("process t")
    assert context_of(span).trace_id == 0xABC
    (sent,) = broker.records("out")
    assert sent.headers == (("x-trace", b"abc"),)


# -- new traces ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent_based", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.25, 1e-05, 1.0])
def test_new_traces_are_those_that_the_sampler_takes(rate: float, parent_based: bool) -> None:
    """For the same ids the decision is the sampler's, and spans have the ids that were decided about."""
    ratio = TraceIdRatioBased(rate)
    spans = Spans(ParentBased(ratio) if parent_based else ratio)
    new = NewTraces.of(spans.tracer)
    assert new is not None
    for _ in range(2_000):
        left_out = new.left_out()
        if left_out is not None:
            context = left_out.get_span_context()
            assert context is left_out.get_span_context()
            assert context.is_valid
            assert not context.trace_flags.sampled
            assert not ratio.should_sample(None, context.trace_id, "").decision.is_sampled()  # type: ignore[no-untyped-call]
        else:
            span = new.tracer.start_span("one")
            assert span.is_recording()
            assert span.get_span_context().trace_id == new.generate_trace_id()
            assert span.get_span_context().trace_flags == 3
            span.end()
    assert len(spans.traces) == pytest.approx(2_000 * rate, abs=200)
    assert NewTraces.of(Spans(ALWAYS_ON).tracer) is None
    assert NewTraces.of(trace.NoOpTracer()) is None


@pytest.mark.parametrize("rate", [0.0, 1.0])
async def test_attempts_without_a_context(broker: InMemoryBroker, rate: float) -> None:
    """They are one trace, which the first begins, or all are left out."""
    spans = Spans(ParentBased(TraceIdRatioBased(rate)))
    append(broker, None)
    seen = set[int]()

    async def handle(record: Record) -> Outgoing:
        seen.add(now().trace_id)
        if record.attempt < 4:
            raise ValueError("no")
        return Outgoing("out", b"1")

    failures = FailurePolicy(retry=RetryPolicy(first_delay=0.01, max_attempts=5), give_up="skip")
    await run(broker, of(spans), handle, failures=failures)
    assert len(seen) == 1
    (sent,) = broker.records("out")
    assert int((dict(sent.headers)["traceparent"] or b"").split(b"-")[1], 16) in seen
    if not rate:
        assert not spans.ended
    else:
        assert (
            spans.tree()
            == """\
process t [CONSUMER], attempt 1, retried, ValueError
  process t [CONSUMER], attempt 2, retried, ValueError
  process t [CONSUMER], attempt 3, retried, ValueError
  process t [CONSUMER], attempt 4, succeeded
    send out [PRODUCER]"""
        )
