"""Extensions that observe a consumer, to measure what they cost."""

from __future__ import annotations

from typing import Any, Final, Literal

__all__ = ["OBSERVED", "Observed", "extensions", "traceparent"]

Observed = Literal["", "unused", "metrics", "traces"]
"""What observes: nothing; the libraries are imported and not used; Prometheus's metrics; traces of one record in a
hundred."""
OBSERVED: Final = "AIOPARALLEL_BENCHMARK_OBSERVED"
"""The environment variable that has it."""
_EVERY: Final = 100


def extensions(observed: str) -> dict[str, Any]:
    """The option of the consumer; nothing if nothing observes, as an older revision may not have it."""
    if not observed:
        return {}
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the other side does not import it
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    from aioparallel.observe.metrics import PrometheusMetrics  # noqa: PLC0415
    from aioparallel.observe.traces import OpenTelemetryTraces  # noqa: PLC0415

    if observed == "unused":
        return {}
    if observed == "metrics":
        return {"extensions": [PrometheusMetrics()]}
    # Without a processor: spans are made, and not exported.
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(1 / _EVERY)))
    return {"extensions": [OpenTelemetryTraces(tracer_provider=provider)]}


def traceparent(number: int) -> tuple[str, bytes]:
    """The header of a record whose trace is sampled if its number is a multiple of a hundred."""
    return "traceparent", b"00-%032x-%016x-%02d" % (number + 1, number + 1, number % _EVERY == 0)
