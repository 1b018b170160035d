"""Metrics for OpenTelemetry.

Names of the semantic conventions for messaging (development status, 1.43) are used where they have one with the same
meaning: https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/. The others are ``aioparallel.*``.

An observable instrument can never be removed from a meter. So each meter provider has one set of them, which reads the
consumers that are open now.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final

from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.missing_extra import missing_extra

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        Meter,
        MeterProvider,
        Observation,
        get_meter_provider,
    )
    from opentelemetry.metrics import Histogram as OpenTelemetryHistogram
except ModuleNotFoundError as missing:
    raise missing_extra(missing, "metrics for OpenTelemetry need", "otel") from None

from aioparallel.observe.metrics.instruments import INSTRUMENTS, Instrument, Kind
from aioparallel.observe.metrics.measurements import Figures, Histogram, Measurements
from aioparallel.observe.metrics.options import checked_labels, checked_text
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.user_errors import class_of

__all__ = ["OpenTelemetryMetrics"]

SCHEMA: Final = "https://opentelemetry.io/schemas/1.43.0"
ADVISED: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bounds of buckets that the conventions ask for."""
_FRESH: Final = 0.2
"""Seconds for which figures serve: one collection calls back for each instrument."""
_APART: Final = 0.001
"""Of records that are reported together, at most one in so many seconds is recorded: recording takes microseconds."""
_MOST_ERRORS: Final = 50
"""The most types of errors that get their own ``error.type``. The others are ``_OTHER``."""

_NAMES: Final = {
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
}
_OPERATIONS: Final = {
    "messaging.client.consumed.messages": {"messaging.operation.name": "poll", "messaging.operation.type": "receive"},
    "messaging.process.duration": {"messaging.operation.name": "process"},
    "messaging.client.operation.duration": {
        "messaging.operation.name": "commit",
        "messaging.operation.type": "settle",
    },
}
_SUCCESSES: Final = ("succeeded", "accepted")

Attributes = dict[str, str | int]


class _Recorded:
    """Values of one histogram with the same attributes."""

    __slots__ = ("_attributes", "_histogram", "_recorded_at")

    def __init__(self, histogram: OpenTelemetryHistogram, attributes: Attributes) -> None:
        self._histogram = histogram
        self._attributes = attributes
        self._recorded_at = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Record the value once, unless it stands for several records and another one was recorded just now."""
        if times > 1:
            now = monotonic()
            if now - self._recorded_at < _APART:
                return
            self._recorded_at = now
        self._histogram.record(value, self._attributes)


@refuses_others
class OpenTelemetryMetrics(Measurements[_Recorded]):
    """Metrics of one consumer for OpenTelemetry.

    ::

        consumer = ParallelConsumer("orders", group_id="billing", extensions=[OpenTelemetryMetrics()])

    ``consumer``: the attribute ``aioparallel.consumer``, for several consumers of a group in one process; "": none.
    ``meter_provider``: None: the global one when the run starts.
    ``attributes``: more attributes with the same value on all points.

    Points exist from the start of the run until the consumer is left. Counters of a later consumer with the same
    attributes go on from there. Raises ConfigurationError.
    """

    def __init__(
        self,
        consumer: str = "",
        *,
        meter_provider: MeterProvider | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            {one.name: Histogram(partial(self._recorded, one)) for one in INSTRUMENTS if one.kind is Kind.HISTOGRAM}
        )
        self._name = checked_text("consumer", consumer)
        if meter_provider is not None and not isinstance(meter_provider, MeterProvider):
            raise ConfigurationError("meter_provider", meter_provider, "must be an OpenTelemetry MeterProvider")
        self._provider = meter_provider
        self._more = checked_labels(attributes or {}, (), "attributes", dotted=True)
        self._error_types: set[str] = set()
        self._read: tuple[float, Figures] | None = None
        self._meter: _ConsumersOfMeter | None = None
        self._before: dict[Hashable, float] = {}  # counters of the consumers before, such as one that was restarted

    async def start(self) -> None:
        """Add the consumer to the meter of the provider."""
        self._meter = _ConsumersOfMeter.of(self._provider or get_meter_provider())
        self._before = dict(self._meter.left)
        self._meter.consumers[self] = None

    async def close(self) -> None:
        """Report nothing more."""
        if self._meter is None:
            return
        self._meter.consumers.pop(self, None)
        self._read = None
        for instrument in INSTRUMENTS:
            if instrument.kind is Kind.COUNTER:
                self._meter.left |= {_series(instrument, one.attributes): one.value for one in self.observe(instrument)}

    def outcome_of(self, error: BaseException) -> str:
        """The type of the error."""
        name = class_of(error)
        if name not in self._error_types and len(self._error_types) >= _MOST_ERRORS:
            return "_OTHER"
        self._error_types.add(name)
        return name

    def observe(self, instrument: Instrument) -> Iterable[Observation]:
        """The points of a counter or gauge."""
        assert instrument.read is not None
        for values, figure in instrument.read(self._figures()):
            attributes = self._attributes(instrument, values)
            if instrument.kind is Kind.COUNTER:
                figure = self.never_lower(instrument.name, values, figure)  # noqa: PLW2901
                if self._before:
                    figure += self._before.get(_series(instrument, attributes), 0)  # noqa: PLW2901
            yield Observation(figure, attributes)

    def _figures(self) -> Figures:
        if self._read is None or monotonic() - self._read[0] > _FRESH:
            found = self.figures()
            self._read = monotonic(), found  # the time after it: a blocked event loop answers late, or not at all
        return self._read[1]

    def _recorded(self, instrument: Instrument, labels: tuple[str, ...]) -> _Recorded:
        assert self._meter is not None
        return _Recorded(self._meter.histograms[instrument.name], self._attributes(instrument, labels))

    def _attributes(self, instrument: Instrument, values: tuple[str, ...]) -> Attributes:
        found: Attributes = {
            **self._more,
            "messaging.system": "kafka",
            "messaging.consumer.group.name": self.context.group_id,
            **_OPERATIONS.get(instrument.semconv, {}),
        }
        if self._name:
            found["aioparallel.consumer"] = self._name
        for label, value in zip(instrument.labels, values, strict=True):
            if label == "outcome" and instrument.kind is Kind.HISTOGRAM and instrument.semconv:
                if value not in _SUCCESSES:
                    found["error.type"] = value
            else:
                found[_NAMES.get(label, f"aioparallel.{label}")] = value
        return found


class _ConsumersOfMeter:
    """The instruments of one provider, and the consumers that they read."""

    _of_providers: Final[weakref.WeakKeyDictionary[MeterProvider, _ConsumersOfMeter]] = weakref.WeakKeyDictionary()
    _lock: Final = threading.Lock()

    def __init__(self, meter: Meter) -> None:
        self.consumers: dict[OpenTelemetryMetrics, None] = {}
        self.histograms: dict[str, OpenTelemetryHistogram] = {}
        """By the names of their instruments."""
        self.left: dict[Hashable, float] = {}
        """Counters of consumers that were left. The next one with the same attributes goes on from there: counters of
        OpenTelemetry must not fall, and the differences that some exporters send must not be negative."""
        for one in INSTRUMENTS:
            if one.kind is Kind.HISTOGRAM:
                self.histograms[one.name] = meter.create_histogram(
                    one.otel_name,
                    unit=one.unit,
                    description=one.description,
                    explicit_bucket_boundaries_advisory=list(ADVISED if one.semconv else one.bounds),
                )
            else:
                create: Callable[..., Any] = (
                    meter.create_observable_counter if one.kind is Kind.COUNTER else meter.create_observable_gauge
                )
                unit = "{message}" if one.semconv else one.unit
                create(one.otel_name, [partial(self._observe, one)], unit=unit, description=one.description)

    @classmethod
    def of(cls, provider: MeterProvider) -> _ConsumersOfMeter:
        """Return those of this provider. Makes them if there are none."""
        with cls._lock:
            found = cls._of_providers.get(provider)
            if found is None:
                found = cls._of_providers[provider] = cls(provider.get_meter("aioparallel", _version(), SCHEMA))
            return found

    def _observe(self, instrument: Instrument, options: CallbackOptions) -> Iterable[Observation]:
        for one in list(self.consumers):
            yield from one.observe(instrument)


def _series(instrument: Instrument, attributes: Mapping[str, Any] | None) -> Hashable:
    return instrument.name, frozenset((attributes or {}).items())


def _version() -> str:
    # Not by an import: this room stands below most of the package.
    return str(sys.modules["aioparallel"].__version__)
