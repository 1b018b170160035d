"""Which new traces are sampled, for the samplers that look at nothing but the trace id.

``start_span()`` of the SDK takes 4 microseconds for a trace that it leaves out: it makes a span, its context and the
sampler's result. With ``TraceIdRatioBased``, alone or within ``ParentBased``, the decision is a comparison. It is made
here, and a span is made only for traces that are sampled.
"""

from __future__ import annotations

import copy
import re
from typing import Any, Final

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer

__all__ = ["LeftOut", "NewTraces"]

_SDK: Final = "opentelemetry.sdk.trace"
# What the SDK's samplers say of themselves.
_RATIO: Final = re.compile(r"(?:ParentBased\{root:)?TraceIdRatioBased\{(?P<rate>[0-9.e-]+)\}.*")
_LIMIT: Final = (1 << 64) - 1
"""The part of a trace id that counts."""


class LeftOut(NonRecordingSpan):
    """The span of a new trace that is not sampled. It gets a context if somebody asks for it."""

    _made: SpanContext | None = None

    def __init__(self, trace_id: int, ids: Any) -> None:
        self._trace_id = trace_id
        self._ids = ids

    def get_span_context(self) -> SpanContext:
        """Return a context that is not sampled, always the same."""
        if self._made is None:
            flags = TraceFlags(TraceFlags.RANDOM_TRACE_ID if self._ids.is_trace_id_random() else TraceFlags.DEFAULT)
            self._made = SpanContext(self._trace_id, self._ids.generate_span_id(), False, flags)
        return self._made

    def __repr__(self) -> str:
        return f"LeftOut({self.get_span_context()!r})"


class NewTraces:
    """Decides as the sampler of this tracer. Use :meth:`of`."""

    def __init__(self, tracer: Any, rate: float) -> None:
        self._ids = tracer.id_generator
        self._generate = tracer.id_generator.generate_trace_id
        self._bound = round(rate * (_LIMIT + 1))
        self.tracer = copy.copy(tracer)
        """After :meth:`left_out` has returned None: makes the span, with the id that was found to be sampled."""
        self.tracer.id_generator = self
        self._trace_id = 0

    @classmethod
    def of(cls, tracer: Tracer) -> NewTraces | None:
        """Return None for other samplers, and other tracers than the SDK's."""
        sampler: Any = getattr(tracer, "sampler", None)
        modules = type(tracer).__module__, type(sampler).__module__
        ids = getattr(tracer, "id_generator", None)
        if modules != (_SDK, f"{_SDK}.sampling") or not hasattr(ids, "is_trace_id_random"):
            return None  # older versions of the SDK have no such method
        found = _RATIO.fullmatch(sampler.get_description())
        return None if found is None else cls(tracer, float(found["rate"]))

    def left_out(self) -> LeftOut | None:
        """Begin a trace. Returns its span if it is not sampled."""
        trace_id = self._generate()
        if trace_id & _LIMIT >= self._bound:
            return LeftOut(trace_id, self._ids)
        self._trace_id = trace_id
        return None

    # -- the id generator of ``tracer`` -----------------------------------------------------------------

    def generate_trace_id(self) -> int:
        """Return the id that is sampled."""
        return self._trace_id

    def generate_span_id(self) -> int:
        """Return a new id."""
        return int(self._ids.generate_span_id())

    def is_trace_id_random(self) -> bool:
        """Whether trace ids are random, as W3C Trace Context says."""
        return bool(self._ids.is_trace_id_random())
