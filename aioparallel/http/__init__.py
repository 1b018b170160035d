"""HTTP enrichment: a handler that asks a service about each record. Needs ``pip install "aioparallel[http]"``.

========== =============================================================================================
file       what it holds
========== =============================================================================================
handler    ``http_handler``, its options
asking     one record's requests, from the gate of its host to what its status means
requests   ``Request``
responses  ``Response``, ``retry_after``
statuses   what answers mean
clients    httpx over aiohttp, and aiohttp by itself, behind one door
connections  those of the clients that are made here
sending    the request that is on its way
bodies     bodies of answers: decoded, and bounded
trouble    what has gone wrong, in words of our own
deadlines  the time of each request
hosts      what is under way at each host
sharing    answers that several records share
idempotency  keys by which a service knows a request again
========== =============================================================================================
"""

from aioparallel.errors import BadStatus, RequestFailed, RequestTimeout
from aioparallel.http.handler import HttpHandler, http_handler
from aioparallel.http.requests import Request
from aioparallel.http.responses import Response, retry_after
from aioparallel.http.sharing import Cache
from aioparallel.http.statuses import Meaning, Statuses

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
