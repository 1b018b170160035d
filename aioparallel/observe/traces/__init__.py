"""Traces of consumers for OpenTelemetry. How to: ``docs/traces.md``.

::

    opentelemetry.py   OpenTelemetryTraces (extra ``otel``): the spans of attempts
    contexts.py        trace contexts in headers
    new_traces.py      which new traces are sampled
    sending.py         spans of outputs and dead letters
    requests.py        spans of the requests of ``http_handler``
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aioparallel.observe.traces.opentelemetry import OpenTelemetryTraces

__all__ = ["OpenTelemetryTraces"]


def __getattr__(name: str) -> object:
    # It needs a library that only those have who use it.
    if name == "OpenTelemetryTraces":
        from aioparallel.observe.traces.opentelemetry import OpenTelemetryTraces  # noqa: PLC0415

        return OpenTelemetryTraces
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
