"""Spans of the requests that an ``http_handler`` sends (HTTP semantic conventions, kind CLIENT)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import SpanKind, StatusCode, get_current_span, set_span_in_context

from aioparallel.observe.traces.contexts import Contexts
from aioparallel.records.user_errors import class_of

if TYPE_CHECKING:
    from aioparallel.http.requests import Request, SendRequest
    from aioparallel.http.responses import Response
    from aioparallel.observe.traces.opentelemetry import OpenTelemetryTraces

__all__ = ["traced_requests"]

_PORTS = {"http": 80, "https": 443}


def traced_requests(traces: OpenTelemetryTraces, send: SendRequest, kept: Collection[str] | None) -> SendRequest:
    """Return a function that sends a request as a child of the current span. ``kept``: names of headers that must stay
    as they are; None: all must."""

    async def traced(request: Request, url: str, headers: Mapping[str, str], timeout: float) -> Response:
        context, tracer = get_current(), traces.tracer
        if tracer is None or not get_current_span(context).is_recording():
            headers = _with_context(traces.contexts, request, headers, kept, context)
            return await send(request, url, headers, timeout)
        span = tracer.start_span(request.method, context, SpanKind.CLIENT, _attributes_of(request.method, url))
        context = set_span_in_context(span, context)
        headers = _with_context(traces.contexts, request, headers, kept, context)
        token = attach(context)
        try:
            with _instrumentation_suppressed():
                response = await send(request, url, headers, timeout)
        except BaseException as error:
            span.set_attribute("error.type", class_of(error))
            span.set_status(StatusCode.ERROR)
            raise
        else:
            span.set_attribute("http.response.status_code", response.status)
            if response.status >= 400:
                span.set_attribute("error.type", str(response.status))
                span.set_status(StatusCode.ERROR)
            return response
        finally:
            span.end()
            detach(token)

    return traced


def _attributes_of(method: str, url: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {"http.request.method": method}
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # the client refuses it
        return attributes
    where = f"[{host}]" if ":" in host else host
    # Neither user nor query: both may be secret.
    full = f"{parts.scheme}://{where}{'' if port is None else f':{port}'}{parts.path}"
    return attributes | {
        "server.address": host,
        "server.port": port or _PORTS.get(parts.scheme, 80),
        "url.full": full,
    }


def _with_context(
    contexts: Contexts, request: Request, headers: Mapping[str, str], kept: Collection[str] | None, context: Context
) -> Mapping[str, str]:
    """Return the headers with those of the trace, except where the request, or all of them, have their own."""
    if kept is None or not (found := contexts.texts(context)):
        return headers
    own = {name.lower() for name in request.headers}.union(kept)
    if not own.isdisjoint(contexts.marks):
        return headers
    found = {name: value for name, value in found.items() if name.lower() not in own}
    return {name: value for name, value in headers.items() if name.lower() not in found} | found


def _instrumentation_suppressed() -> AbstractContextManager[object]:
    """Instrumentations of aiohttp and httpx make no second span, if there are any."""
    utils = sys.modules.get("opentelemetry.instrumentation.utils")
    return nullcontext() if utils is None else utils.suppress_http_instrumentation()
