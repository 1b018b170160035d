"""Asks an HTTP service about each record, and produces the result to another topic.

In a clone of the repository, in four terminals::

    pip install --editable '.[examples]'
    aioparallel broker --topic orders:8 --topic orders.enriched:8 --topic orders.dlq
    python examples/customers.py 8081           # the service: it throttles, fails, and does not know all customers
    python examples/enrich_http.py http://127.0.0.1:8081        # until Ctrl-C
    python examples/orders.py 100

What happens to an order, by the response:

=======================  ==========================================================================================
200                      orders.enriched; it is complete when the brokers have acknowledged that
429; 503, Retry-After    no request goes to the service before the time in Retry-After; counts no attempt
other 4xx                orders.dlq at once: another attempt would not help
other 5xx, no answer     tried again after growing delays, five times in all, then orders.dlq
no order in the record   the same
=======================  ==========================================================================================

``aioparallel dlq list orders.dlq`` shows those that were given up; ``replay`` sends them back.
"""

import json
import logging
import os
import sys
from urllib.parse import quote

import msgspec

from aioparallel import FailurePolicy, Outgoing, ParallelConsumer, Record, RetryPolicy
from aioparallel.deserializers import msgspec_json
from aioparallel.http import Request, Response, http_handler

SERVERS = os.environ.get("AIOPARALLEL_BOOTSTRAP_SERVERS", "localhost:9092")


class Order(msgspec.Struct):
    """The value of a record."""

    number: int
    customer: str
    amount: int


def ask(record: Record[bytes | None, Order]) -> Request:
    """Request the customer."""
    return Request("GET", f"/customers/{quote(record.value.customer, safe='')}")


def enriched(record: Record[bytes | None, Order], response: Response) -> Outgoing:
    """The order with its customer."""
    order = record.value
    value = {"number": order.number, "amount": order.amount, "customer": response.json()}
    return Outgoing("orders.enriched", json.dumps(value).encode(), key=record.raw_key)


def main(service: str) -> None:
    """Run until Ctrl-C or SIGTERM. ``service``: its URL."""
    consumer = ParallelConsumer(
        "orders",
        bootstrap_servers=SERVERS,
        group_id="enrich-orders",
        max_concurrency=200,  # orders, and with them requests, at once
        value_deserializer=msgspec_json(Order),
        handler_timeout=30,
        failures=FailurePolicy(retry=RetryPolicy(max_attempts=5), dead_letter="orders.dlq"),
    )
    consumer.run_sync(http_handler(ask, enriched, base_url=service))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1])
