"""The handler: enriches one flight by asking an HTTP service about it."""

from __future__ import annotations

import json

import httpx

from aioparallel import Record
from examples.flights.flights import compact

__all__ = ["enrich"]


async def enrich(record: Record, service: str, http: httpx.AsyncClient) -> bytes:
    """The flight with its plane, both airports and the weather, as JSON. Raises httpx.HTTPError.

    404 means that the plane is unknown; the response has everything else.
    """
    flight = json.loads(record.value or b"{}")
    path = f"{flight['tailnum'] or 'NA'}/{flight['origin']}/{flight['dest']}/{flight['time_hour']}"
    asking = f"partition={record.partition}&offset={record.offset}"  # for the service's log
    response = await http.get(f"{service}/flights/{path}?{asking}")
    if response.status_code != httpx.codes.NOT_FOUND:
        response.raise_for_status()
    source = {"partition": record.partition, "offset": record.offset}
    return compact({**source, "flight": flight, **json.loads(response.content)})
