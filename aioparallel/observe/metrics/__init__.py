"""Metrics of consumers for Prometheus and OpenTelemetry. How to: ``docs/metrics.md``.

::

    from aioparallel.observe.metrics import PrometheusMetrics

    consumer = ParallelConsumer("orders", group_id="billing", extensions=[PrometheusMetrics(port=9400)])

::

    instruments.py    the list of all instruments
    measurements.py   the extension that both exporters inherit: what it counts, and what it reads when it is asked
    prometheus.py     PrometheusMetrics (extra ``prometheus``)
    opentelemetry.py  OpenTelemetryMetrics (extra ``otel``)
    serving.py        serve_metrics
    options.py        checks of options
"""

from typing import TYPE_CHECKING

from aioparallel.observe.metrics.instruments import INSTRUMENTS, Instrument, Kind
from aioparallel.observe.metrics.serving import MetricsServer, serve_metrics

if TYPE_CHECKING:
    from aioparallel.observe.metrics.opentelemetry import OpenTelemetryMetrics
    from aioparallel.observe.metrics.prometheus import PrometheusMetrics

__all__ = [
    "INSTRUMENTS",
    "Instrument",
    "Kind",
    "MetricsServer",
    "OpenTelemetryMetrics",
    "PrometheusMetrics",
    "serve_metrics",
]


def __getattr__(name: str) -> object:
    # Each exporter needs a library that only those have who use it.
    if name == "PrometheusMetrics":
        from aioparallel.observe.metrics.prometheus import PrometheusMetrics  # noqa: PLC0415

        return PrometheusMetrics
    if name == "OpenTelemetryMetrics":
        from aioparallel.observe.metrics.opentelemetry import OpenTelemetryMetrics  # noqa: PLC0415

        return OpenTelemetryMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
