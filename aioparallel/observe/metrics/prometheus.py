"""Metrics for Prometheus: a collector that reads the consumers of a registry when it is scraped."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.missing_extra import missing_extra

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ModuleNotFoundError as missing:
    raise missing_extra(missing, "metrics for Prometheus need", "prometheus") from None

from aioparallel.observe.health import Health
from aioparallel.observe.metrics.instruments import INSTRUMENTS, Instrument, Kind
from aioparallel.observe.metrics.measurements import Distribution, Figures, Histogram, Measurements
from aioparallel.observe.metrics.options import checked_bounds, checked_labels, checked_text
from aioparallel.observe.metrics.serving import MetricsServer, checked_address, serve_metrics
from aioparallel.records.errors import ConfigurationError

__all__ = ["PrometheusMetrics", "expose", "exposition"]

Labels = tuple[tuple[str, str], ...]


@refuses_others
class PrometheusMetrics(Measurements[Distribution]):
    """Metrics of one consumer for Prometheus.

    ::

        consumer = ParallelConsumer("orders", group_id="billing", extensions=[PrometheusMetrics(port=9400)])

    ``consumer``: the label of this name; "" counts the consumers of the group in this process from 1.
    ``registry``: None: prometheus_client's default registry.
    ``port``: serve ``/metrics``, ``/live`` and ``/ready`` at this port while the consumer is open; 0: any free port;
    None: a web application or :func:`~aioparallel.observe.metrics.serve_metrics` does.
    ``host``: the address for ``port``. "127.0.0.1": only this machine. "0.0.0.0" or "::": all interfaces.
    ``labels``: more labels with the same value on all series.
    ``buckets``: upper bounds of histograms by the name of the instrument: ``{"handler.duration": (0.1, 1, 10)}``.

    The series exist from the start of the run until the consumer is left. Figures are read when somebody scrapes, from
    any thread. Raises ConfigurationError.
    """

    def __init__(
        self,
        consumer: str = "",
        *,
        registry: CollectorRegistry | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
        labels: Mapping[str, str] | None = None,
        buckets: Mapping[str, Iterable[float]] | None = None,
    ) -> None:
        bounds = checked_bounds(buckets)
        super().__init__({name: Histogram(partial(_distribution, found)) for name, found in bounds.items()})
        self._name = checked_text("consumer", consumer)
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise ConfigurationError("registry", registry, "must be a prometheus_client.CollectorRegistry")
        self.registry: Final = REGISTRY if registry is None else registry
        """Where the consumer is registered."""
        self._address = None if port is None else checked_address(port, host)
        self._labels = checked_labels(labels or {}, _own_labels())
        self._stack = contextlib.AsyncExitStack()
        self.server: MetricsServer | None = None
        """With ``port``: the server, while the consumer is open."""

    async def start(self) -> None:
        """Register the consumer, and serve its metrics."""
        collector = _collector_of(self.registry)
        collector.add(self, self.context.group_id, self._name, self._labels)
        self._stack.callback(collector.remove, self)
        if self._address is not None:
            port, host = self._address
            server = serve_metrics(port, self, host=host, registry=self.registry)
            self.server = await self._stack.enter_async_context(server)

    async def close(self) -> None:
        """Remove the series, and close the server."""
        await self._stack.aclose()
        self.server = None

    def health(self) -> Health:
        """The health of the consumer, for probes."""
        return self.context.health()


class _Collector(Collector):
    """Reads all consumers of one registry. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = weakref.ref(registry)
        self._lock = threading.Lock()
        self._consumers: dict[Measurements[Distribution], Labels] = {}

    def add(self, one: Measurements[Distribution], group: str, consumer: str, labels: Mapping[str, str]) -> None:
        """Add a consumer. If its labels are taken, its name gets a number."""
        registry = self._registry()
        with self._lock:
            taken = set(self._consumers.values())
            for name in _names(consumer):
                found = (("group", group), ("consumer", name), *labels.items())
                if found not in taken:
                    break
            if not self._consumers and registry is not None:
                registry.register(self)  # calls describe(), which takes no lock
            self._consumers[one] = found

    def remove(self, one: Measurements[Distribution]) -> None:
        """Remove a consumer, if it was added."""
        registry = self._registry()
        with self._lock:
            was_last = self._consumers.pop(one, None) is not None and not self._consumers
            if was_last and registry is not None:
                with contextlib.suppress(KeyError):  # somebody else has done it
                    registry.unregister(self)

    def describe(self) -> Iterable[Metric]:
        """All families without samples: so a registry finds two of one name."""
        return [_family(instrument) for instrument in INSTRUMENTS]

    def collect(self) -> Iterable[Metric]:
        """All families with the samples of all consumers."""
        with self._lock:
            consumers = dict(self._consumers)
        read = [(one, one.figures(), labels) for one, labels in consumers.items()]
        for instrument in INSTRUMENTS:
            family = _family(instrument)
            for one, figures, labels in read:
                if instrument.read is None:
                    _add_histogram(family, instrument, one, labels)
                else:
                    _add_points(family, instrument, one, figures, labels)
            if family.samples:
                yield family


def _distribution(bounds: Sequence[float], labels: tuple[str, ...]) -> Distribution:
    return Distribution(bounds)


def _add_points(
    family: Metric, instrument: Instrument, one: Measurements[Distribution], figures: Figures, labels: Labels
) -> None:
    assert instrument.read is not None
    for values, figure in instrument.read(figures):
        if instrument.kind is Kind.COUNTER:
            figure = one.never_lower(instrument.name, values, figure)  # noqa: PLW2901
        found = dict(labels)
        found.update(zip(instrument.labels, values, strict=True))
        family.add_sample(instrument.prometheus_name, found, float(figure))


def _family(instrument: Instrument) -> Metric:
    return Metric(instrument.prometheus_family, instrument.description, instrument.kind.value)


def _add_histogram(family: Metric, instrument: Instrument, one: Measurements[Distribution], labels: Labels) -> None:
    for values, distribution in list(one.histograms[instrument.name].items()):
        found = dict(labels)
        found.update(zip(instrument.labels, values, strict=True))
        name = instrument.prometheus_family
        total = 0
        for bound, total in _cumulated(distribution):
            le = floatToGoString(bound)  # type: ignore[no-untyped-call]
            family.add_sample(f"{name}_bucket", {**found, "le": le}, float(total))
        family.add_sample(f"{name}_count", found, float(total))
        family.add_sample(f"{name}_sum", found, distribution.sum)


def _cumulated(distribution: Distribution) -> Iterator[tuple[float, int]]:
    total = 0
    for bound, count in zip((*distribution.bounds, float("inf")), list(distribution.counts), strict=True):
        total += count
        yield bound, total


def _names(consumer: str) -> Iterator[str]:
    """The name that was asked for, then others."""
    if consumer:
        yield consumer
    number = 2 if consumer else 1
    while True:
        yield f"{consumer}-{number}" if consumer else str(number)
        number += 1


def _own_labels() -> set[str]:
    return {"group", "consumer", "le"}.union(*(instrument.labels for instrument in INSTRUMENTS))


_COLLECTORS: Final[weakref.WeakKeyDictionary[CollectorRegistry, _Collector]] = weakref.WeakKeyDictionary()
_LOCK: Final = threading.Lock()


def _collector_of(registry: CollectorRegistry) -> _Collector:
    with _LOCK:
        if registry not in _COLLECTORS:
            _COLLECTORS[registry] = _Collector(registry)
        return _COLLECTORS[registry]


def exposition(accept: str, registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
    """The body of ``/metrics`` and its content type. ``accept``: the header of the request. Any thread may call it."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY if registry is None else registry), content_type


async def expose(accept: str, registry: CollectorRegistry | None = None) -> tuple[bytes, str]:
    """:func:`exposition` in a thread of its own: with hundreds of partitions it takes a tenth of a second, in which the
    event loop would be blocked. The loop's default threads may all be in use by handlers."""
    thread = ThreadPoolExecutor(1, "aioparallel-metrics")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, exposition, accept, registry)
    finally:
        thread.shutdown(wait=False)
