"""HTTP enrichment: a handler that sends requests to a service for each record. Needs ``aioparallel[http]``.

============  ================================================================
file          what it holds
============  ================================================================
handler       ``http_handler`` and its options
session       the requests of one record, from limits to the meaning of statuses
requests      ``Request``
responses     ``Response``, ``retry_after``
statuses      what each status means for the record
clients       httpx over aiohttp, and aiohttp alone, with one interface
connections   aiohttp's connector with a limit on idle connections
httpx_logging  keeps our requests out of httpx's log
bodies        decodes response bodies and limits their size
client_errors  errors of clients, without headers, queries and content
request_deadlines     the time limit of each request
hosts         a limit for each host
sharing       responses that several records share: single flight, cache
idempotency   values of the header Idempotency-Key
============  ================================================================
"""

from aioparallel.http.handler import HttpHandler, http_handler
from aioparallel.http.requests import Request
from aioparallel.http.responses import Response, retry_after
from aioparallel.http.sharing import Cache
from aioparallel.http.statuses import Meaning, Statuses
from aioparallel.records.errors import BadStatus, RequestFailed, RequestTimeout

__all__ = [
    "BadStatus",
    "Cache",
    "HttpHandler",
    "Meaning",
    "Request",
    "RequestFailed",
    "RequestTimeout",
    "Response",
    "Statuses",
    "http_handler",
    "retry_after",
]
