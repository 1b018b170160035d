"""Asks an HTTP service about each record, and produces the answer to another topic.

In a clone of the repository, in four terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8 --topic orders.enriched:8 --topic orders.dlq
                                                # prints an `export` line: copy it into the other terminals
    python examples/customers.py 8081           # the service: it throttles, fails, and does not know everybody
    python examples/enrich_http.py http://127.0.0.1:8081        # until Ctrl-C
    python examples/orders.py 300

What becomes of an order, by the answer to it:

=======================  ==========================================================================================
200                      orders.enriched; it is complete when the brokers have acknowledged that
429, 503                 waits as long as Retry-After says, and its customer's other orders with it; counts no attempt
other 4xx                orders.dlq at once: asking again would not help
5xx, no connection       tried again after growing pauses, five times in all, then orders.dlq
no order in the record   the same
=======================  ==========================================================================================

``aioparallel dlq list orders.dlq`` shows those that were given up; ``replay`` brings them back.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from urllib.parse import quote

import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, Reject, RetryLater, RetryPolicy, resource
from aioparallel.deserializers import msgspec_json

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")
CONCURRENCY = 200  # orders, and with them requests, at once

BUSY = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


class Order(msgspec.Struct):
    """What a record holds."""

    number: int
    customer: str
    amount: int


async def enrich(record: Record[bytes | None, Order]) -> Outgoing:
    """The order, with its customer."""
    order = record.value
    http = resource("http", httpx.AsyncClient)
    response = await http.get(f"/customers/{quote(order.customer, safe='')}")
    if response.status_code in BUSY:
        raise RetryLater(retry_after(response))
    if response.is_client_error:
        raise Reject(f"{response.status_code} for customer {order.customer}")
    response.raise_for_status()
    enriched = {"number": order.number, "amount": order.amount, "customer": response.json()}
    return Outgoing("orders.enriched", json.dumps(enriched).encode(), key=record.key)


def retry_after(response: httpx.Response) -> float:
    """Seconds to wait: Retry-After is a number of them or a date (RFC 9110); one second without it."""
    text = response.headers.get("Retry-After", "1")
    if text.isdecimal():
        return float(text)
    date = parsedate_to_datetime(text).replace(tzinfo=UTC)  # always GMT
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def http_client(service: str) -> httpx.AsyncClient:
    """Opened with the consumer, closed when it has drained.

    A connection for each handler: with fewer, handlers would wait for one, and fail with PoolTimeout. And httpx over
    aiohttp's transport, for httpx's own pool loses connections when requests are cancelled, and is slow with hundreds.
    """
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    return httpx.AsyncClient(base_url=service, transport=AiohttpTransport(limits=limits), timeout=10)


def main(service: str) -> None:
    """Until Ctrl-C or SIGTERM. ``service``: its address."""
    consumer = ParallelConsumer(
        "orders",
        bootstrap_servers=SERVERS,
        group_id="enrich-orders",
        max_concurrency=CONCURRENCY,
        value_deserializer=msgspec_json(Order),
        handler_timeout=30,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=5), dead_letter="orders.dlq"),
        resources={"http": partial(http_client, service)},
    )
    consumer.run_sync(enrich)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1])
