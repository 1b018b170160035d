"""Trace contexts in the headers of records: read by the propagator, and written for outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter, TextMapPropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aioparallel.records.record import Headers, Outgoing

__all__ = ["Contexts", "NotSampled", "with_headers"]

O = TypeVar("O", bound=Outgoing)  # noqa: E741

_PARENT: Final = "traceparent"
_STATE: Final = "tracestate"
_BAGGAGE: Final = "baggage"
_OWN: Final = "aioparallel."
_W3C: Final = TraceContextTextMapPropagator()
_LENGTH: Final = 55
"""Bytes of a ``traceparent`` of version 00 (https://www.w3.org/TR/trace-context/)."""
_NOT_SAMPLED: Final = b"-00", b"-02"
"""Its end if it is not sampled; the second bit says that trace ids are random."""


class _Reader(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        # The last one first: who sends a record again appends its own, and propagators take the first value.
        found = [value.decode("utf-8", "replace") for name, value in carrier if name == key and value is not None]
        return found[::-1] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [name for name, _ in carrier]


class _Writer(Setter[list[tuple[str, bytes]]]):
    def set(self, carrier: list[tuple[str, bytes]], key: str, value: str) -> None:
        carrier.append((key, value.encode("utf-8", "replace")))


_READER: Final = _Reader()
_WRITER: Final = _Writer()


class NotSampled(NonRecordingSpan):
    """The remote span in the headers of a record, which is not sampled. Its context is parsed only if somebody asks for
    it, because parsing takes longer than all else."""

    _parsed: SpanContext | None = None

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def get_span_context(self) -> SpanContext:
        """Return the context that the headers name."""
        if self._parsed is None:
            found = _W3C.extract(self._headers, Context(), _READER)
            self._parsed = get_current_span(found).get_span_context()
        return self._parsed

    @property
    def written(self) -> list[tuple[str, bytes]]:
        """The headers that pass it on, as they came."""
        last = {name: value for name, value in self._headers if value is not None and name in (_PARENT, _STATE)}
        return list(last.items())

    def __repr__(self) -> str:
        return f"NotSampled({self.get_span_context()!r})"


class Contexts:
    """Reads and writes contexts with one propagator."""

    def __init__(self, propagator: TextMapPropagator) -> None:
        self._propagator = propagator
        names = frozenset(propagator.fields)
        self._is_w3c = names <= {_PARENT, _STATE, _BAGGAGE}
        self.marks = frozenset({_PARENT}) if self._is_w3c else names - {_BAGGAGE}
        """Names of headers that are a trace context."""

    def read(self, headers: Headers, base: Context) -> Context | NotSampled | None:
        """Return the context in the headers of a record, upon ``base``; None: there is none."""
        if self._is_w3c:
            found: bytes | None = None
            for name, value in headers:
                if name == "traceparent":
                    found = value
                elif name == "baggage":
                    break
            else:
                if found is None:
                    return None
                if len(found) == _LENGTH and found.endswith(_NOT_SAMPLED):
                    return NotSampled(headers)
        return self._propagator.extract(headers, base, _READER)

    def written(self, context: Context) -> list[tuple[str, bytes]]:
        """Return the headers that pass a context on."""
        headers: list[tuple[str, bytes]] = []
        self._propagator.inject(headers, context, _WRITER)
        return headers

    def texts(self, context: Context) -> dict[str, str]:
        """Return the headers of an HTTP request that pass a context on."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, context)
        return headers

    def has_one(self, headers: Iterable[tuple[str, bytes | None]]) -> bool:
        """Whether there is a context in these headers already."""
        return any(name in self.marks for name, _ in headers)


def with_headers(output: O, headers: Sequence[tuple[str, bytes]]) -> O:
    """Return a copy of an output with more headers, before those of a dead letter. An output with baggage of its own
    gets no other one. An output that cannot be sent is returned itself: sending it reports that."""
    given = output.headers
    try:
        if any(name == _BAGGAGE for name, _ in given):
            headers = [header for header in headers if header[0] != _BAGGAGE]
        end = next((number for number, (name, _) in enumerate(given) if name.startswith(_OWN)), len(given))
        return dataclasses.replace(output, headers=(*given[:end], *headers, *given[end:]))
    except (TypeError, ValueError, AttributeError):
        return output
